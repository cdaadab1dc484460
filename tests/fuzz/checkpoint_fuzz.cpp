// Manifests of checkpoints: whatever the bytes are, a value whose numbers fit together or an Error. The checksum is
// made right first, so that what is behind it is reached.
#include <fmt/format.h>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

#include "exec/checkpoint/checkpoint_manifest.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace foreshard::exec;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  static_cast<void>(parse_manifest(text, "checkpoint.json"));
  auto document = nlohmann::json::parse(text, nullptr, false);
  if (!document.is_object()) return 0;
  document.erase("checksum");
  const auto replace = nlohmann::json::error_handler_t::replace;
  const std::string plain = document.dump(-1, ' ', false, replace);
  document["checksum"] = fmt::format("{:08x}", crc32_of(std::as_bytes(std::span(plain))));
  const auto manifest = parse_manifest(document.dump(-1, ' ', false, replace), "checkpoint.json");
  if (!manifest) return 0;
  for (const CheckpointTensor& tensor : manifest->tensors) {
    for (const CheckpointPart& part : tensor.parts) {
      foreshard::Numel pieces = 0;
      for (const PieceRun& run : part.runs) pieces += run.count;
      if (pieces < 100'000) static_cast<void>(extents_of(part.runs));
    }
  }
  return 0;
}
