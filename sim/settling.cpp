#include "sim/settling.h"

#include <algorithm>
#include <cstdlib>

namespace foreshard {
namespace {

constexpr int kQuietSteps = 8;               // alike but for what waits for other streams: there will be no other
constexpr Bytes kLikeShare = 1000;           // of active memory
constexpr SimDuration kDriftShare = 100000;  // a part of a step by which the host may gain on the device in one

/// Blocks that wait for other streams when a step ends may differ for ever, by little.
bool is_like(const IterationResult& a, const IterationResult& b) {
  const auto near = [](Bytes x, Bytes y) { return std::abs(x - y) * kLikeShare <= y; };
  return a.step_time == b.step_time && a.peak_reserved == b.peak_reserved && near(a.peak_active, b.peak_active) &&
         near(a.peak_active + a.end_active, b.peak_active + b.end_active);
}

bool lead_matters(const Device& device) {
  const std::vector<ComputeGap>& gaps = device.activity.gaps;
  return device.allocator.pending().ever() ||
         std::any_of(gaps.begin(), gaps.end(), [](const ComputeGap& gap) { return gap.host_late; });
}

}  // namespace

std::int64_t Settling::driver_calls(const Device& device) {
  const AllocatorStats& stats = device.allocator.stats();
  return stats.device_allocs + stats.device_frees;
}

void Settling::note(const Device& device, const std::vector<IterationResult>& steps) {
  const std::int64_t calls = driver_calls(device) - calls_before_;
  const IterationResult& now = steps.back();
  const IterationResult* const before = steps.size() > 1 ? &steps[steps.size() - 2] : nullptr;
  const bool thrashes = calls == calls_last_ && before != nullptr && now.peak_reserved == before->peak_reserved;
  const SimDuration ahead = device.clock.device_tail() - device.clock.host();
  const bool drifts = std::abs(ahead - ahead_last_) * kDriftShare > now.step_time;
  const bool waits = device.allocator.pending().ever() && before != nullptr;
  const bool same_blocks = !waits || (now.peak_active == before->peak_active && now.end_active == before->end_active);
  quiet_ = calls == 0 && !drifts && before != nullptr && is_like(now, *before) ? quiet_ + 1 : 0;
  const bool steady = same_blocks || quiet_ >= kQuietSteps;
  settled_ = (calls == 0 || thrashes) && steady && !(drifts && lead_matters(device));
  calls_last_ = calls;
  ahead_last_ = ahead;
}

}  // namespace foreshard
