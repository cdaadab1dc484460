// Whatever the bytes are, the reader answers with a value or an Error: no crash, no hang, no more than its limits.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "core/model/families/config_model.h"
#include "core/model/json_input.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto json = foreshard::parse_json(text, "config.json")) {
    static_cast<void>(foreshard::model_from_config_json(*json, "config.json", {}, {}));
  }
  return 0;
}
