#include "sim/device/retime.h"

#include <algorithm>
#include <cmath>
#include <memory>

namespace foreshard {
namespace {

SimDuration scaled(SimDuration duration, double factor) {
  return factor == 1.0 ? duration : std::llround(static_cast<double>(duration) * factor);
}

/// Who changes what a unit does, by unit from -1 on; the last one named counts.
class Changes {
 public:
  explicit Changes(const std::vector<UnitChange>& changes) {
    for (const UnitChange& change : changes) {
      const auto place = static_cast<std::size_t>(change.unit + 1);
      if (place >= by_unit_.size()) by_unit_.resize(place + 1, nullptr);
      by_unit_[place] = &change;
    }
  }

  const UnitChange* of(std::int32_t unit) const {
    const auto place = static_cast<std::size_t>(unit + 1);
    return place < by_unit_.size() ? by_unit_[place] : nullptr;
  }

 private:
  std::vector<const UnitChange*> by_unit_;
};

}  // namespace

std::vector<SimTime> retime(const IssueTape& tape, const std::vector<UnitChange>& changes) {
  const Changes changed(changes);
  const std::vector<IssueTape::Word>& words = tape.words();
  const auto end = std::make_unique_for_overwrite<SimTime[]>(words.size());
  std::vector<SimTime> ends;
  ends.reserve(tape.iterations().size());
  end[0] = 0;
  SimTime host = 0;
  std::size_t k = 1;
  for (const IssueTape::Iteration& iteration : tape.iterations()) {
    for (; k < iteration.words; ++k) {
      const IssueTape::Word& word = words[k];
      const SimTime tail =
          std::max(end[static_cast<std::size_t>(word.tail)], end[static_cast<std::size_t>(word.other)]);
      host = std::max(host + word.before, end[static_cast<std::size_t>(word.hold)]);
      const UnitChange* const change = changed.of(word.unit);
      if (change == nullptr) {
        end[k] = std::max(tail + word.device, host + word.behind);
        host += word.within;
      } else if (word.kind == IssueTape::Kind::Run) {
        const std::size_t last = k + 1 < words.size() ? words[k + 1].kernels : tape.kernels().size();
        end[k] = tail;
        for (std::size_t at = word.kernels; at < last; ++at) {
          const IssueTape::Kernel& kernel = tape.kernels()[at];
          host += kernel.host;
          end[k] = std::max(end[k], host) + scaled(kernel.device, change->compute);
        }
      } else {
        const SimDuration device = scaled(word.device, change->communication);
        end[k] = std::max(tail + device, host + word.behind - word.device + device);
      }
    }
    SimTime last = 0;
    for (const std::int32_t tail : iteration.tails) last = std::max(last, end[static_cast<std::size_t>(tail)]);
    ends.push_back(last);
  }
  return ends;
}

}  // namespace foreshard
