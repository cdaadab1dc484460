// Rotary scalings: what rope_scaling (newer files: rope_parameters) of a config.json says, read and checked.
//
// The kinds of Transformers: default, linear, llama3, yarn, dynamic, longrope. All turn by [dims / 2] frequencies; what
// they change in the program is the factor on cos and sin and, for the last two, what every forward does to the
// frequencies. Their values are the executor's affair (exec/run/buffers.cpp).
#pragma once

#include <cstdint>

#include "core/model/families/config_reader.h"

namespace foreshard::families {

/// What a forward does to the frequencies before it uses them (dynamic_rope_update of the library).
enum class RopeUpdate : std::uint8_t {
  None,
  Grow,    // dynamic: asks twice whether the sequence is longer than the model's maximum, which ours never is
  Select,  // longrope: the long or the short frequencies, by the length of the sequence
};

struct RopeScaling {
  RopeUpdate update = RopeUpdate::None;
  double factor = 1.0;                  // on cos and sin
  double stretch = 1.0;                 // YaRN's factor of mscale_all_dim, which DeepSeek squares into its scores
  double share = 1.0;                   // of a head that turns, where the family knows such a share
  std::int64_t original_positions = 0;  // the length at which longrope changes; dynamic: the model's maximum
  std::int64_t factors = 0;             // entries of longrope's lists, 0 = none: dims / 2
};

/// What a family does in its own way.
struct RopeDefaults {
  std::int64_t positions = 2048;        // of the model
  std::int64_t original_positions = 0;  // where the file names none; 0: `positions`
  double share = 1.0;
  bool only_longrope = false;  // Phi-3: default and longrope, which older files call su or yarn
};

/// Errors go to the reader.
RopeScaling read_rope(ConfigReader& config, const RopeDefaults& family);

/// Longrope's lists hold one number for every two elements that turn.
void check_rope_factors(ConfigReader& config, const RopeScaling& rope, std::int64_t dims);

}  // namespace foreshard::families
