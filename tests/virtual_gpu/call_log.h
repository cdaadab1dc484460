// The virtual device's log of calls, as values: what was asked of CUDA and NCCL, in host order.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace foreshard::exec {

struct DeviceCall {
  std::string api;   // "ncclAllGather", "cudaStreamWaitEvent", ...
  std::string name;  // of a kernel, a copy's direction, a mark's text
  std::string op;    // of a reduction
  std::int64_t stream = -1;
  std::int64_t event = -1, event_stream = -1;
  std::int64_t bytes = 0;
  std::int64_t ranks = 0;
  std::int64_t communicator = -1;  // in order of creation in the process
};

/// The calls of this process since the last call of this function. REQUIRES the virtual device, with FAKEGPU_LOG set.
std::vector<DeviceCall> calls_since_last();

/// The calls of a process that is over, from its log.
std::vector<DeviceCall> calls_in(const std::string& path);

/// The calls of a log's text.
std::vector<DeviceCall> parse_calls(const std::string& text);

/// Puts a line "mark" with this text into the log.
void mark_calls(const std::string& text);

/// What goes wrong from here on, in place of FAKEGPU_FAIL (shadow/device/README.md).
void fail_calls(const std::string& text);

/// What the device's race detector has found, one a line. REQUIRES FAKEGPU_RACES=1.
std::string races_of_device();
/// Forgets that, and who touched which memory.
void forget_races();

}  // namespace foreshard::exec
