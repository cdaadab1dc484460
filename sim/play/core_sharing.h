// Work that shares a host's cores. Streams of the host backend are threads, and so are Gloo's; the ranks of one machine
// stand beside each other. What runs at the same time takes speed from each other, and a thread that slept needs a
// while until it goes on. A simulation of a profile that was calibrated on a host is therefore played twice: the first
// time its order of issue is written down (sim/device/retime.h), then the shared cores say when everything runs, and
// the second time the clock follows that.
//
//   alone   D |==compute==|        D |==compute==|
//           A       |=gather=|     A                |=gather=|
//   shared  D |==compute====|
//           A       |==gather===|       each at the speed that calibration measured beside the other
//
// One rank is looked at: all ranks of a machine do the same at the same time. That ranks come to a collective at
// different times, and that its threads wait for a core, is in the spread of its times: a few take several times the
// mean, which hides behind less. Pure; nanoseconds.
#pragma once

#include <vector>

#include "core/job.h"
#include "sim/device/device_clock.h"
#include "sim/device/retime.h"
#include "sim/machine/profile.h"
#include "sim/network/collectives.h"

namespace foreshard {

/// By the profile's measured curves; no load where it has none.
HostLoad host_load(const HardwareProfile& profile, CollectiveKind kind, const GroupPlacement& group, Bytes bytes);

struct SharedCores {
  double cores = 1;         // of one rank
  SimDuration wake_ns = 0;  // until a thread that waited goes on
  // HardwareProfile::collective_spread: each iteration's collectives take these in turn, evenly mixed.
  std::vector<double> collective_spread = {};
};
/// Whether the profile says how its cores are shared: a host's, calibrated with its work.
bool shares_cores(const HardwareProfile& profile);
SharedCores shared_cores(const HardwareProfile& profile, const Job& job);

/// When each piece of work on the tape runs, in the order of issue; zero is the tape's beginning.
std::vector<WorkSpan> share_cores(const IssueTape& tape, const SharedCores& cores);

}  // namespace foreshard
