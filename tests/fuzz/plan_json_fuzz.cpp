// Whatever the bytes are, the reader answers with a value or an Error: no crash, no hang, no more than its limits.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/plan/form/plan_json.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  static_cast<void>(foreshard::plan_from_json(text, "plan.json"));
  return 0;
}
