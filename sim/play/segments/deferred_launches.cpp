#include "sim/play/segments/deferred_launches.h"

#include <algorithm>
#include <utility>

namespace foreshard {
namespace {

std::int64_t allocations(const KernelList& list, std::int32_t begin, std::int32_t end) {
  return std::count_if(list.events.begin() + begin, list.events.begin() + end,
                       [](const MemoryEvent& event) { return event.alloc && !event.noted; });
}

}  // namespace

DeferrableList deferrable_list(const KernelList& list, const std::vector<TimedKernel>& times) {
  DeferrableList deferrable;
  std::int32_t event = 0, polled = 0;
  for (std::size_t k = 0; k < times.size(); ++k) {
    const TimedKernel& timed = times[k];
    const bool in_order = timed.before_begin == event && timed.before_end >= timed.before_begin &&
                          timed.after_begin == timed.before_end && timed.after_end >= timed.after_begin;
    const bool plain = timed.communicator < 0 && list.kernels[k].offload == OffloadStep::None;
    if (!in_order || !plain || (timed.waits && !timed.launches)) return {};
    event = timed.after_end;
    if (!timed.launches) continue;
    deferrable.polls.push_back(static_cast<std::int32_t>(allocations(list, polled, timed.before_end)));
    polled = timed.before_end;
  }
  if (event != static_cast<std::int32_t>(list.events.size())) return {};
  deferrable.all_polls = allocations(list, 0, event);
  deferrable.possible = true;
  return deferrable;
}

DeferredLaunches::DeferredLaunches(PlayContext& context) : context_(context) {
  context.device.allocator.before_time_matters([this] { launch_due(); });
}

DeferredLaunches::~DeferredLaunches() { context_.device.allocator.before_time_matters({}); }

bool DeferredLaunches::begin(const Run& run) {
  Device& device = context_.device;
  const PendingFrees& pending = device.allocator.pending();
  if (device.allocator.tapes().answers(kCompute)) return false;  // what the driver costs is paid at once
  const SimTime host = device.clock.host();
  if (pending.any()) {
    // Nothing holds the host in the run, and all polls are over before the first of those that wait is done.
    const std::size_t launches = run.launches->launches.size();
    const bool straight =
        run.launches->waits.empty() && device.clock.queue(kCompute).takes(launches, host, device.clock.queue_depth());
    if (!straight || !pending.waits_beyond(host + run.launches->host, run.deferrable->all_polls)) return false;
  }
  run_ = run;
  event_ = 0;
  begun_ = host;
  poll_ = pending.any() ? pending.questions() : 0;
  return true;
}

void DeferredLaunches::end() {
  Device& device = context_.device;
  const LaunchList& launches = *run_.launches;
  run_.list = nullptr;
  const SimDuration paid = device.clock.host() - begun_;
  device.activity.events += static_cast<std::int64_t>(launches.launches.size());
  device.clock.placed(kCompute, begun_, device.clock.tail(kCompute));
  if (paid == 0) return device.launch_all(launches, run_.phase);
  host_before_.clear();
  SimDuration behind = paid;
  for (const std::int32_t polls : run_.deferrable->polls) {
    host_before_.push_back(polls * poll_);
    behind -= polls * poll_;
  }
  device.launch_all(launches, run_.phase, host_before_);
  device.clock.host_cost(behind);
}

/// Everything is again as if nothing had waited: so says the order of events and kernels.
void DeferredLaunches::launch_due() {
  if (!open()) return;
  const KernelList& list = *std::exchange(run_.list, nullptr);
  Device& device = context_.device;
  SimDuration behind = device.clock.host() - begun_;
  device.clock.placed(kCompute, begun_, device.clock.tail(kCompute));
  std::int32_t polled = 0;
  for (const TimedKernel& timed : *run_.times) {
    if (timed.before_end > event_) break;
    const SimDuration polls = allocations(list, std::exchange(polled, timed.before_end), timed.before_end) * poll_;
    behind -= polls;
    device.clock.host_cost(polls);
    if (timed.launches)
      device.launch_kernel(timed.host, {timed.device, timed.slowdown}, run_.phase);
    else
      device.clock.host_cost(timed.host);
    if (timed.waits) device.clock.stream_synchronize(kCompute);
  }
  device.clock.host_cost(behind);
}

}  // namespace foreshard
