#include "sim/device/device.h"

#include <algorithm>

namespace foreshard {

AllocatorSettings allocator_settings(const AllocatorOptions& options, const HardwareProfile& profile, Bytes memory) {
  AllocatorSettings settings;
  settings.expandable_segments = options.expandable_segments;
  settings.exact = profile.kind == "cpu";  // LibTorch asks the C library for each tensor
  if (options.max_split_size_mb > 0) settings.max_split_size = options.max_split_size_mb * kMiB;
  settings.power2_divisions = same_divisions(options.roundup_power2_divisions);
  settings.garbage_collection_threshold = options.garbage_collection_threshold;
  settings.device_memory = memory;
  settings.event_ns = profile.call_ns;
  const auto query = profile.extra.find("query_ns");
  settings.query_ns = query != profile.extra.end() ? static_cast<SimDuration>(query->second) : profile.call_ns / 3;
  settings.driver_ns = profile.driver_alloc_ns;
  return settings;
}

ClockMode clock_mode(const HardwareProfile& profile) {
  const auto mode = profile.extra.find("mode");
  if (profile.kind != "virtual" || mode == profile.extra.end()) return ClockMode::Model;
  if (mode->second == 2) return ClockMode::Instant;
  return mode->second == 1 ? ClockMode::Lazy : ClockMode::Model;
}

std::size_t launch_queue_depth(const HardwareProfile& profile) {
  constexpr double kDepth = 1024;
  if (profile.kind != "gpu") return 0;
  const auto given = profile.extra.find("launch_queue");
  return static_cast<std::size_t>(given != profile.extra.end() ? std::max(0.0, given->second) : kDepth);
}

}  // namespace foreshard
