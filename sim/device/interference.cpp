#include "sim/device/interference.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace foreshard {
namespace {

constexpr double kLargestShare = 0.5;

double share_of(const HardwareProfile& profile) {
  if (profile.kind != "gpu" || profile.architecture == CardArchitecture() || profile.sm_count <= 0) return 0;
  const auto given = profile.extra.find(kTakenMultiprocessors);
  const double taken = given != profile.extra.end() ? given->second : static_cast<double>(profile.channels);
  return std::clamp(taken / profile.sm_count, 0.0, kLargestShare);
}

}  // namespace

Interference::Interference(const HardwareProfile& profile) : Interference(share_of(profile)) {
  if (!active()) return;
  multiprocessors_ = profile.sm_count;
  taken_ = std::max<std::int64_t>(1, std::llround(share_of(profile) * profile.sm_count));
}

double Interference::slowdown(std::int64_t tiles) const {
  if (tiles <= 0 || multiprocessors_ <= taken_) return slowdown_;
  const std::int64_t alone = ceil_div(tiles, multiprocessors_), beside = ceil_div(tiles, multiprocessors_ - taken_);
  return static_cast<double>(beside) / static_cast<double>(alone) - 1;
}

template <class Of>
void Interference::Windows::each(SimTime begin, SimTime end, const Of& of) const {
  const std::size_t oldest = count_ > kMost ? count_ - kMost : 0;
  for (std::size_t k = count_; k-- > oldest;) {
    const Window& window = ring_[k % kMost];
    if (window.end <= begin && window.begin < end) break;  // windows of one stream are in order
    if (window.begin < end) of(window, std::min(window.end, end) - std::max(window.begin, begin));
  }
}

SimDuration Interference::Windows::overlap(SimTime begin, SimTime end) const {
  SimDuration total = 0;
  each(begin, end, [&](const Window&, SimDuration time) { total += time; });
  return total;
}

double Interference::Windows::slowed(SimTime begin, SimTime end) const {
  double total = 0;
  each(begin, end, [&](const Window& window, SimDuration time) {
    total += window.slowed * static_cast<double>(time) / static_cast<double>(window.end - window.begin);
  });
  return total;
}

Interference::Windows::Stretch Interference::Windows::stretch(SimTime begin) const {
  Stretch result{begin, std::numeric_limits<SimTime>::max(), 0};
  const std::size_t oldest = count_ > kMost ? count_ - kMost : 0;
  for (std::size_t k = count_; k-- > oldest;) {
    const Window& window = ring_[k % kMost];
    if (window.end <= begin) break;  // as overlap() does
    result.windows += window.begin <= begin ? 1 : 0;
    result.end = std::min(result.end, window.begin <= begin ? window.end : window.begin);
  }
  return result;
}

void Interference::Windows::keep(SimTime begin, SimTime end, double slowdown) {
  if (end <= begin) return;
  Window& last = ring_[last_];
  if (last.end >= begin && last.begin <= begin) {
    if (end <= last.end) return;
    last.slowed += slowdown * static_cast<double>(end - last.end);
    last.end = end;
    return;
  }
  last_ = count_++ % kMost;
  ring_[last_] = {begin, end, slowdown * static_cast<double>(end - begin)};
}

SimDuration Interference::compute_anywhere(SimTime start, SimDuration alone, double slowdown) {
  double duration = static_cast<double>(alone) + owed_;
  owed_ = 0;
  if (start < stretch_.begin || start >= stretch_.end) stretch_ = collectives_.stretch(start);
  const SimDuration beside =
      start + alone <= stretch_.end ? stretch_.windows * alone : collectives_.overlap(start, start + alone);
  duration += slowdown * static_cast<double>(beside);
  const auto taken = static_cast<SimDuration>(duration);
  computed_.keep(start, start + taken, slowdown);
  return taken;
}

void Interference::settle(LaunchList& list) const {
  for (LaunchList::Launch& launch : list.launches) {
    const double slowdown = launch.slowdown < 0 ? slowdown_ : launch.slowdown;
    const auto alone = static_cast<double>(launch.device);
    launch.beside = static_cast<SimDuration>(alone + slowdown * alone);
    launch.slowed = slowdown * alone;
    launch.slowed_beside = slowdown * static_cast<double>(launch.beside);
  }
  list.settled = slowdown_;
}

void Interference::collective(SimTime begin, SimTime end) {
  owed_ += computed_.slowed(begin, end);
  collectives_.keep(begin, end);
  stretch_ = {};
}

}  // namespace foreshard
