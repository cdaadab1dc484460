// What names in PyTorch recordings mean: kernels of NCCL, copies, runtime calls, ranges of FSDP. Pure functions; names
// are those that docs/traces.md lists.
#pragma once

#include <optional>
#include <string_view>

#include "core/plan.h"
#include "core/timeline.h"
#include "core/units.h"

namespace foreshard {

/// Whether `part` stands anywhere in `text`.
inline bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

/// NCCL's and RCCL's kernels, whatever they carry.
bool is_nccl_kernel(std::string_view name);

/// Of a kernel's name, a collective's name in `args`, or a range's ("nccl:_all_gather_base"); nothing if it names none.
std::optional<SpanKind> collective_kind(std::string_view name);

/// Work on a device: collective, memset, copy, compute.
SpanKind device_work_kind(std::string_view name);

/// A call of the runtime or driver: whether it waits for the device.
bool is_waiting_call(std::string_view name);

/// A call that puts work on a stream, so that correlation numbers lead from it to the work.
bool is_launching_call(std::string_view name);

/// Bytes of one element of a dtype as PyTorch's communication records spell it ("BFloat16", "Float"); 0 = unknown.
Bytes recorded_dtype_bytes(std::string_view name);

/// A range that FSDP puts around its own work.
struct FsdpRange {
  enum class Runtime { Fsdp1, Fsdp2 } runtime = Runtime::Fsdp2;
  std::string_view what;  // "pre_forward", "all_gather_copy_out", ...
  std::string_view unit;  // FSDP2: the module's name, "" = root; FSDP1 does not say it
  Phase phase = Phase::None;
  bool copies = false;  // kernels in it move parameters or gradients, and compute nothing
};
std::optional<FsdpRange> fsdp_range(std::string_view name);

/// N of "ProfilerStep#N".
std::optional<std::int32_t> profiler_step(std::string_view name);

}  // namespace foreshard
