// nsys' exports: databases of any bytes.
#include <cstdint>

#include "traces/formats/nsys.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static_cast<void>(foreshard::parse_nsys({reinterpret_cast<const char*>(data), size}, "fuzz.sqlite").has_value());
  return 0;
}
