#include "tests/traces/trace_files.h"

#include <zlib.h>
#include <zstd.h>

#include <cstdio>
#include <cstring>
#include <fstream>

#include "tests/support/temporary_path.h"

namespace foreshard::testing {

TraceFile::TraceFile(const std::string& name, std::string_view bytes) : path_(temporary_path(name)) { write(bytes); }
TraceFile::~TraceFile() { std::remove(path_.c_str()); }

void TraceFile::write(std::string_view bytes) const {
  std::ofstream(path_, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

std::string gzipped(std::string_view bytes) {
  z_stream state{};
  deflateInit2(&state, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&state, bytes.size()) + 64, '\0');
  state.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  state.avail_in = static_cast<uInt>(bytes.size());
  state.next_out = reinterpret_cast<Bytef*>(out.data());
  state.avail_out = static_cast<uInt>(out.size());
  deflate(&state, Z_FINISH);
  out.resize(state.total_out);
  deflateEnd(&state);
  return out;
}

std::string zstd_packed(std::string_view bytes) {
  std::string out(ZSTD_compressBound(bytes.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), bytes.data(), bytes.size(), 3));
  return out;
}

std::string tar_of(std::initializer_list<std::pair<std::string, std::string>> files) {
  std::string archive;
  for (const auto& [name, content] : files) {
    std::string header(512, '\0');
    std::memcpy(header.data(), name.data(), name.size());
    std::snprintf(header.data() + 124, 12, "%011zo", content.size());
    header[156] = '0';
    std::memcpy(header.data() + 257, "ustar", 6);
    std::memset(header.data() + 148, ' ', 8);
    unsigned sum = 0;
    for (const char c : header) sum += static_cast<unsigned char>(c);
    std::snprintf(header.data() + 148, 8, "%06o", sum);
    archive += header + content;
    archive.resize((archive.size() + 511) / 512 * 512, '\0');
  }
  archive.append(1024, '\0');
  return archive;
}

}  // namespace foreshard::testing
