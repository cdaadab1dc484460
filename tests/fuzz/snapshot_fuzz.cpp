// PyTorch's memory snapshots: pickles of any bytes.
#include <cstdint>

#include "traces/formats/memory_snapshot.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static_cast<void>(
      foreshard::parse_memory_snapshot({reinterpret_cast<const char*>(data), size}, "fuzz.pickle").has_value());
  return 0;
}
