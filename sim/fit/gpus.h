// GPUs as people write them: "8xh100-sxm-80", "2x8xa100-sxm-80" (nodes, GPUs of each), "4x/my/calibrated.toml".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/result.h"

namespace foreshard {

struct Gpus {
  std::int64_t world_size = 0, ranks_per_node = 0;
  std::string profile;  // id or path
  bool operator==(const Gpus&) const = default;
};

/// A profile is found by its id, by its path, or by a part of its id that no other has ("8x4090"). Without nodes, nodes
/// have 8 GPUs. Errors: no such profile (with the near ones), several that could be meant, GPUs that do not fill nodes.
Result<Gpus> parse_gpus(std::string_view text);

}  // namespace foreshard
