// The virtual device's log of a watched script (FAKEGPU_LOG): which collectives each step issued for which unit, and
// everything as a timeline. Read line by line; a log that ends in the middle of a line is read until there.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/result.h"
#include "core/timeline.h"
#include "core/units.h"

namespace foreshard::shadow {

enum class CollectiveKind : std::uint8_t { Gather, Reduce, AllReduce, Broadcast, AllToAll, Other };

struct LoggedCollective {
  CollectiveKind kind = CollectiveKind::Other;
  std::string unit;   // whose unshard or reduction issued it; "(root)", or empty: no unit's
  Bytes bytes = 0;    // of the whole vector
  Bytes element = 0;  // bytes of one
  std::int64_t ranks = 1;
};

struct DeviceLog {
  std::vector<std::vector<LoggedCollective>> steps;  // those that ended, in host order
  Timeline timeline;
};

struct LogOptions {
  std::int32_t rank = 0;
  bool timeline = false;  // else it stays empty
  std::string hardware;   // of the timeline's provenance
};

/// Errors: no such file; a line that is no JSON before the last.
Result<DeviceLog> read_device_log(const std::string& path, const LogOptions& options);

}  // namespace foreshard::shadow
