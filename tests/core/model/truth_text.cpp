// The oracle's comparison reads its files through this function; in the oracle itself main.cpp has it.
#include <zlib.h>

#include <stdexcept>
#include <string>

namespace foreshard::oracle {

std::string read_text(const std::string& path) {
  gzFile file = gzopen(path.c_str(), "rb");
  if (file == nullptr) throw std::runtime_error("cannot open " + path);
  std::string text;
  char buffer[1 << 16];
  for (int n = 0; (n = gzread(file, buffer, sizeof buffer)) > 0;) text.append(buffer, static_cast<std::size_t>(n));
  gzclose(file);
  return text;
}

}  // namespace foreshard::oracle
