// The reader of sweeps: whatever the bytes are, the answer is a document or an Error; what was read is written again.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "cli/reports/sweep_document.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto read = foreshard::cli::parse_sweep(text, "fuzz.json");
  if (!read) return 0;
  const std::string written = foreshard::cli::sweep_json(*read);
  if (!foreshard::cli::parse_sweep(written, "written.json")) std::abort();
  return 0;
}
