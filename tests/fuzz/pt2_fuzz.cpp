// Any bytes as a .pt2 archive: an Error or a Model, never a crash.
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "core/model/pt2/model.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  auto members = foreshard::read_pt2_bytes(bytes, "fuzz.pt2");
  if (!members) {
    members = foreshard::Pt2Members{};  // the bytes as the program itself, so that the checksum guards nothing
    members->program_name = "models/model.json";
    members->program = bytes;
  }
  const auto program = foreshard::parse_pt2_program(std::move(*members), "fuzz.pt2");
  if (!program) return 0;
  static_cast<void>(foreshard::model_from_pt2_program(*program, "fuzz.pt2", {}));
  foreshard::ProgramOptions half;
  half.compute_dtype = foreshard::DType::BFloat16;
  static_cast<void>(foreshard::model_from_pt2_program(*program, "fuzz.pt2", {}, half));
  return 0;
}
