// A communicator over a slow link: every collective takes a latency and the time of its bytes longer.
//
// For trying out on one machine what a network does to a plan. The caller's thread sleeps, so that other streams
// compute meanwhile; results are those of the communicator inside. Any number of threads, as that one allows.
#pragma once

#include <chrono>
#include <memory>

#include "core/units.h"
#include "exec/communicators/communicator.h"

namespace foreshard::exec {

struct LinkLimit {
  std::chrono::microseconds latency{0};  // of each collective
  double bytes_per_second = 0;           // that one rank sends (and receives); 0: no limit
  bool any() const { return latency.count() > 0 || bytes_per_second > 0; }
  bool operator==(const LinkLimit&) const = default;
};

/// How much longer a collective takes. `bytes` is the full buffer (gathered output, reduce-scatter input, reduced
/// tensor) between `ranks` ranks in a ring: each sends (ranks - 1) / ranks of it, an all-reduce twice that.
std::chrono::nanoseconds link_time(const LinkLimit& limit, Bytes bytes, int ranks, bool both_ways = false);

/// `inner` itself where there is no limit.
std::shared_ptr<Communicator> throttled(std::shared_ptr<Communicator> inner, const LinkLimit& limit);

}  // namespace foreshard::exec
