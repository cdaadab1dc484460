// Whatever the bytes are, the reader answers with a value or an Error: no crash, no hang, no more than its limits.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/job/job_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  static_cast<void>(foreshard::parse_job(text, "fuzz.toml", std::vector<std::string>{}));
  return 0;
}
