#include "core/memory_log.h"

#include <array>

namespace foreshard {

std::string_view memory_action_name(MemoryAction action) {
  constexpr std::array<std::string_view, 8> kNames{"alloc",        "free_requested", "free_completed", "segment_alloc",
                                                   "segment_free", "segment_map",    "segment_unmap",  "oom"};
  return kNames[static_cast<std::size_t>(action)];
}

}  // namespace foreshard
