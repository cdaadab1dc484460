#include "sim/interference.h"

#include <algorithm>

namespace foreshard {
namespace {

constexpr std::size_t kMostWindows = 256;  // nothing reaches back further than a few units
constexpr double kLargestShare = 0.5;

double share_of(const HardwareProfile& profile) {
  if (profile.kind != "gpu" || profile.generation == "none" || profile.sm_count <= 0) return 0;
  return std::min(kLargestShare, static_cast<double>(profile.channels) / profile.sm_count);
}

}  // namespace

Interference::Interference(const HardwareProfile& profile) : Interference(share_of(profile)) {}

SimDuration Interference::overlap(const std::deque<Window>& windows, SimTime begin, SimTime end) {
  SimDuration total = 0;
  for (auto window = windows.rbegin(); window != windows.rend(); ++window) {
    if (window->begin >= end) continue;
    if (window->end <= begin) break;  // windows of one stream are in order
    total += std::min(window->end, end) - std::max(window->begin, begin);
  }
  return total;
}

void Interference::keep(std::deque<Window>& windows, SimTime begin, SimTime end) {
  if (end <= begin) return;
  if (!windows.empty() && windows.back().end >= begin && windows.back().begin <= begin) {
    windows.back().end = std::max(windows.back().end, end);
    return;
  }
  windows.push_back({begin, end});
  if (windows.size() > kMostWindows) windows.pop_front();
}

SimDuration Interference::compute(SimTime start, SimDuration alone) {
  double duration = static_cast<double>(alone) + owed_;
  owed_ = 0;
  duration += slowdown_ * static_cast<double>(overlap(collectives_, start, start + alone));
  const auto taken = static_cast<SimDuration>(duration);
  keep(computed_, start, start + taken);
  return taken;
}

void Interference::collective(SimTime begin, SimTime end) {
  owed_ += slowdown_ * static_cast<double>(overlap(computed_, begin, end));
  keep(collectives_, begin, end);
}

}  // namespace foreshard
