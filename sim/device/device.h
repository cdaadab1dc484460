// One simulated device: clock, driver memory, caching allocator with its ledger, kernel costs and what has run. A plain
// bundle with the few operations that everything that plays on it needs. Owned by one simulation.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "core/job.h"
#include "core/plan.h"
#include "sim/device/activity.h"
#include "sim/device/allocator/caching_allocator.h"
#include "sim/device/device_clock.h"
#include "sim/device/driver_memory.h"
#include "sim/device/interference.h"
#include "sim/device/kernel_cost.h"
#include "sim/device/launch_list.h"
#include "sim/device/memory_book.h"
#include "sim/machine/profile.h"
#include "sim/network/collectives.h"

namespace foreshard {

inline int index_of(Stream stream) { return static_cast<int>(stream); }

/// PYTORCH_CUDA_ALLOC_CONF's words and the profile's host costs.
AllocatorSettings allocator_settings(const AllocatorOptions& options, const HardwareProfile& profile, Bytes memory);
ClockMode clock_mode(const HardwareProfile& profile);
/// What a card's stream takes ahead: the driver's 1,024 launches; hosts and virtual devices have no such queue.
std::size_t launch_queue_depth(const HardwareProfile& profile);

/// Time on a stream, and what more it takes beside a collective: its share of that, or less than 0 for the usual.
struct DeviceWork {
  DeviceWork(SimDuration time_, double slowdown_ = -1) : time(time_), slowdown(slowdown_) {}
  SimDuration time;
  double slowdown;
};

struct Device {
  Device(const HardwareProfile& profile_, const AllocatorOptions& options, Bytes memory,
         std::size_t streams = kStreamCount)
      : profile(profile_),
        owned_cost(kernel_cost_of(profile_)),
        cost(*owned_cost),
        clock(clock_mode(profile_), static_cast<int>(streams), launch_queue_depth(profile_)),
        driver(memory),
        allocator(allocator_settings(options, profile_, memory), driver, clock, static_cast<int>(streams)),
        book(allocator),
        interference(profile_) {}
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  /// Issues work: host cost first, then the stream. Returns when it runs.
  WorkSpan launch(Stream stream, SimDuration host_ns, const DeviceWork& work, const ActivitySpan& what,
                  SimTime not_before = 0, int communicator = -1) {
    SimDuration device_ns = work.time;
    if (written_ != nullptr)
      written_->launches.push_back({clock.host() - written_until_ + host_ns, device_ns, work.slowdown});
    clock.host_cost(host_ns);
    const SimTime idle_since = clock.tail(index_of(stream));
    const bool compute = stream == Stream::D;
    const SimTime free_at = compute ? compute_tail : 0;
    if (compute && interference.active()) {
      const SimTime start = std::max({idle_since, clock.queue(index_of(stream)).enter(clock.host()), not_before});
      device_ns = beside(start, work);
    }
    const WorkSpan span = clock.enqueue(index_of(stream), device_ns, not_before, communicator);
    written_until_ = clock.host();
    ++activity.events;
    if (compute) {
      if (span.start > free_at) activity.gaps.push_back({free_at, span.start, span.start > idle_since, what.phase});
      compute_tail = span.end;
      activity.compute_busy += span.end - span.start;
    }
    if (activity.keep_spans) {
      ActivitySpan& kept = activity.spans.emplace_back(what);
      kept.start = span.start;
      kept.end = span.end;
      kept.stream = stream;
    }
    return span;
  }

  /// launch() of a kernel of the compute stream of which no span is kept. REQUIRES clock.is_plain() and that nothing
  /// is written down.
  void launch_kernel(SimDuration host_ns, const DeviceWork& work, Phase phase) {
    const int stream = index_of(Stream::D);
    LaunchQueue& queue = clock.queue(stream);
    const SimTime host = queue.enter(clock.host() + host_ns), tail = clock.tail(stream);
    const SimTime start = std::max(tail, host);
    const SimDuration time = interference.active() ? beside(start, work) : work.time;
    if (start > compute_tail) activity.gaps.push_back({compute_tail, start, start > tail, phase});
    compute_tail = start + time;
    queue.issue(compute_tail, clock.queue_depth());
    activity.compute_busy += time;
    ++activity.events;
    clock.placed(stream, host, compute_tail);
  }

  /// From now on what is launched is written down, with all that the host pays before it; nullptr ends it. REQUIRES
  /// that nothing but compute is launched meanwhile, and that the host waits for nothing else.
  void write_launches(LaunchList* list) {
    if (written_ != nullptr) written_->host_after = clock.host() - written_until_;
    written_ = list;
    written_until_ = clock.host();
  }

  /// What torch's allocator of pinned memory gives: blocks of a power of two, by a call of the driver. A host as device
  /// has none.
  void pin_host_memory(Bytes bytes) {
    if (profile.kind == "cpu" || bytes <= 0) return;
    pinned_host += static_cast<Bytes>(std::bit_ceil(static_cast<std::uint64_t>(bytes)));
    clock.host_cost(profile.driver_alloc_ns);
  }

  /// Kernels of the compute stream, one after the other, as launch() would place them; no spans are kept. `host_before`
  /// is what the host pays before the kernel at this place; called in order, last with the number of kernels.
  /// `Kernel` has host, device, slowdown, launches and waits. REQUIRES clock.is_plain(), and no wait without a launch.
  template <class Kernel, class HostBefore>
  void launch_all(const std::vector<Kernel>& kernels, Phase phase, const HostBefore& host_before) {
    const int stream = index_of(Stream::D);
    SimTime host = clock.host(), tail = clock.tail(stream);
    LaunchQueue& queue = clock.queue(stream);
    const std::size_t depth = clock.queue_depth();
    const bool busy = interference.active();
    for (std::size_t k = 0; k < kernels.size(); ++k) {
      const Kernel& kernel = kernels[k];
      host += host_before(k) + kernel.host;
      if (!kernel.launches) continue;
      host = queue.enter(host);
      const SimTime start = std::max(tail, host);
      const SimDuration time = busy ? beside(start, {kernel.device, kernel.slowdown}) : kernel.device;
      if (start > compute_tail) activity.gaps.push_back({compute_tail, start, start > tail, phase});
      tail = compute_tail = start + time;
      queue.issue(tail, depth);
      activity.compute_busy += time;
      if (kernel.waits) host = std::max(host, tail);
    }
    clock.placed(stream, host + host_before(kernels.size()), tail);
  }

  /// The same of a whole list, whose host pays for nothing else ...
  void launch_all(const LaunchList& list, Phase phase) {
    launch_list(list, phase, [](std::size_t) { return SimDuration{0}; });
  }
  /// ... or for so much before each launch.
  void launch_all(const LaunchList& list, Phase phase, const std::vector<SimDuration>& host_before) {
    launch_list(list, phase, [&](std::size_t k) { return host_before[k]; });
  }

  SimDuration beside(SimTime start, const DeviceWork& work) {
    return work.slowdown < 0 ? interference.compute(start, work.time)
                             : interference.compute(start, work.time, work.slowdown);
  }

  const HardwareProfile& profile;
  std::unique_ptr<const KernelCost> owned_cost;
  const KernelCost& cost;
  DeviceClock clock;
  DriverMemory driver;
  CachingAllocator allocator;
  MemoryBook book;
  Interference interference;
  Activity activity;
  Bytes pinned_host = 0;
  SimTime compute_tail = 0;  // end of the last work on D; clock.tail(D) also moves by waits

 private:
  struct Placing {
    SimTime host = 0, tail = 0;
  };

  template <class HostBefore>
  void launch_list(const LaunchList& list, Phase phase, const HostBefore& host_before) {
    const int stream = index_of(Stream::D);
    Placing at{clock.host(), clock.tail(stream)};
    SimTime last = compute_tail;
    SimDuration computed = 0;
    LaunchQueue::Launches queue(clock.queue(stream), clock.queue_depth());
    Interference::Kernels beside_collectives(interference);
    const bool busy = interference.active();
    const bool settled = interference.is_settled(list) && clock.queue_depth() > 0;
    std::size_t wait = 0;
    for (std::size_t k = 0; k < list.launches.size(); ++k) {
      if (settled && at.tail == last) {
        k = launch_behind(list, k, wait < list.waits.size() ? list.waits[wait] : list.launches.size(), at, queue,
                          beside_collectives, host_before);
        computed += at.tail - std::exchange(last, at.tail);
        if (k == list.launches.size()) break;
      }
      const LaunchList::Launch& launch = list.launches[k];
      at.host = queue.enter(at.host + host_before(k) + launch.host);
      const SimTime start = std::max(at.tail, at.host);
      const SimDuration time = !busy ? launch.device
                               : launch.slowdown < 0
                                   ? beside_collectives.compute(start, launch.device)
                                   : beside_collectives.compute(start, launch.device, launch.slowdown);
      if (start > last) activity.gaps.push_back({last, start, start > at.tail, phase});
      at.tail = last = start + time;
      queue.issue(at.tail);
      computed += time;
      if (wait == list.waits.size() || k != list.waits[wait]) continue;
      at.host = std::max(at.host, at.tail);
      ++wait;
    }
    compute_tail = last;
    activity.compute_busy += computed;
    clock.placed(stream, at.host + list.host_after, at.tail);
  }

  /// Those from `k` to `end` that the host issues before the device has done the one before, while the same collectives
  /// run: most of all launches, of which nothing has to be asked. The first that is not one of them.
  template <class HostBefore>
  static std::size_t launch_behind(const LaunchList& list, std::size_t k, std::size_t end, Placing& at,
                                   LaunchQueue::Launches& queue, Interference::Kernels& kernels,
                                   const HostBefore& host_before) {
    const Interference::Kernels::Steady steady = kernels.steady(at.tail);
    double slowed = steady.slowed;
    const auto place = [&](auto time, auto share) {
      for (; k < end; ++k) {
        const LaunchList::Launch& launch = list.launches[k];
        const SimTime host = queue.enter(at.host + host_before(k) + launch.host);
        if (host > at.tail || at.tail + launch.device > steady.until) break;
        at.host = host;
        at.tail += launch.*time;
        slowed += launch.*share;
        queue.issue(at.tail);
      }
    };
    if (steady.beside)
      place(&LaunchList::Launch::beside, &LaunchList::Launch::slowed_beside);
    else
      place(&LaunchList::Launch::device, &LaunchList::Launch::slowed);
    if (steady.until >= 0) kernels.keep(at.tail, slowed);
    return k;
  }

  LaunchList* written_ = nullptr;
  SimTime written_until_ = 0;  // of the host
};

}  // namespace foreshard
