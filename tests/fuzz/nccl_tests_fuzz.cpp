// The reader of nccl-tests outputs: whatever the bytes are, the answer is curves with ascending sizes or an Error.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "sim/truth/nccl_tests.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto runs = foreshard::parse_nccl_tests({reinterpret_cast<const char*>(data), size}, "fuzz.txt");
  if (!runs) return 0;
  for (const auto& run : *runs) {
    const auto& sizes = run.measured.bytes;
    if (sizes.empty() || sizes.size() != run.measured.ns.size() || !std::is_sorted(sizes.begin(), sizes.end()))
      std::abort();
  }
  return 0;
}
