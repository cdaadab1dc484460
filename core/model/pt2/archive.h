// The container of a .pt2 archive: a zip from which a few small texts are read and everything else is left alone.
//
// Limits come first: the central directory is looked at before the library opens the file, members are bounded before
// they are inflated, checksums are compared, pickles and weights are never touched, nothing is ever written. Both
// layouts are read: one top folder (2.8 and later) and the flat one of 2.7 and before. An archive of several programs
// is asked for one by its name, that of models/<name>.json.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>

#include "core/result.h"
#include "core/units.h"

namespace foreshard {

struct Pt2Limits {
  std::int64_t max_members = 100'000;
  Bytes max_directory = 32 * kMiB;     // of the central directory
  Bytes max_program = 48 * kMiB;       // models/<name>.json, inflated
  Bytes max_config = 16 * kMiB;        // weights and constants configurations, inflated
  std::size_t max_values = 6'000'000;  // structural characters of one JSON text: bounds what parsing it takes
  int max_depth = 128;
};

/// The texts of an archive that planning needs. Configurations are empty where the layout has none.
struct Pt2Members {
  std::string program_name;  // member name, as errors show it: "archive/models/model.json"
  std::string program;
  std::string weights_name, weights;
  std::string constants_name, constants;
  std::unordered_map<std::string, Bytes> payload_bytes;  // of data/weights/*, by the last part of the name
};

/// `program`: which one, empty where there is only one. Error: no such program, or several and none named; the message
/// lists their names.
Result<Pt2Members> read_pt2_archive(const std::string& path, std::string_view program = {},
                                    const Pt2Limits& limits = {});

/// Same, of an archive in memory; `file` only names it in errors.
Result<Pt2Members> read_pt2_bytes(std::string_view bytes, const std::string& file, std::string_view program = {},
                                  const Pt2Limits& limits = {});

}  // namespace foreshard
