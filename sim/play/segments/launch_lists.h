// The launches of lowered lists of kernels, each settled once a simulation. Owned by one SegmentPlayer.
#pragma once

#include <optional>
#include <vector>

#include "sim/device/launch_list.h"
#include "sim/play/instructions/play_context.h"
#include "sim/play/segments/template_times.h"

namespace foreshard {

class LaunchLists {
 public:
  explicit LaunchLists(PlayContext& context) : context_(context) {}

  /// `number` is the list's among those of all templates and passes. Valid until the next call.
  const LaunchList& of(std::size_t number, const std::vector<TimedKernel>& times) {
    if (number >= lists_.size()) lists_.resize(number + 1);
    std::optional<LaunchList>& list = lists_[number];
    if (!list) {
      list = launches_of(times);
      context_.device.interference.settle(*list);
    }
    return *list;
  }

 private:
  PlayContext& context_;
  std::vector<std::optional<LaunchList>> lists_;  // once asked
};

}  // namespace foreshard
