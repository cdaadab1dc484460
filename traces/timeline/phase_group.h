// The plan's phases in the four words that pictures and tables use.
#pragma once

#include <cstdint>
#include <string_view>

namespace foreshard {

/// Of a span's phase: "forward", "backward", "clip", "optimizer", or "" for the others.
std::string_view phase_group(std::int32_t phase);

}  // namespace foreshard
