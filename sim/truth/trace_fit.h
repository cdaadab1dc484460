// A hardware profile fitted to a recording of a job that somebody else ran: `calibrate --from` a trace.
//
// The job says what one step computes; the recording says how long that took. Rates of matrix products, attention and
// memory-bound kernels are moved until the roofline gives the recorded sums; collectives become measured curves. What a
// recording cannot show (peaks, links between machines) stays as the base profile has it. Pure functions; durations in
// nanoseconds of one rank's steady iteration.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/lowering/lowering.h"
#include "core/plan.h"
#include "core/timeline.h"
#include "core/units.h"
#include "sim/machine/profile.h"

namespace foreshard {

enum class WorkClass : std::uint8_t { Gemm, Attention, MemoryBound };
std::string_view work_class_name(WorkClass work);

/// By the name of a device kernel or of an ATen operator. Nullopt: not the model's own work (FSDP's copies, the
/// optimizer, clipping).
std::optional<WorkClass> work_class_of(std::string_view kernel_name);

/// All kernels of the plan's last iteration, recomputed ones included; they live as long as `lowered`.
std::vector<const Kernel*> steady_kernels(const Plan& plan, const LoweredProgram& lowered);

struct RecordedWork {
  SimDuration gemm = 0, attention = 0, memory_bound = 0;  // sums on the stream that computes
  std::int64_t kernels = 0;
  bool operator==(const RecordedWork&) const = default;
};

/// The model's work of `rank` in [begin, end).
RecordedWork recorded_work(const Timeline& timeline, std::int32_t rank, SimTime begin, SimTime end);

/// One number that was fitted, for people: "gemm_tflops.bfloat16".
struct FittedRate {
  std::string key;
  double before = 0, after = 0;
  double residual = 0;  // predicted over recorded sum, minus 1, with the fitted number
  SimDuration recorded = 0;
};

/// Moves the rates of classes that both sides have. A rate never passes the data sheet's peak, nor a share 1.
std::vector<FittedRate> fit_rates(HardwareProfile& profile, const std::vector<const Kernel*>& kernels,
                                  const RecordedWork& recorded);

/// All-gather, reduce-scatter and all-reduce of `rank` by size, where spans say their bytes. Of equal ones the fast
/// quarter counts: the others wait for late ranks inside the kernel. Ascending sizes.
std::vector<MeasuredCollective> recorded_collectives(const Timeline& timeline, std::int32_t rank, int group_ranks);

/// 10^9 bytes per second of large copies between host and device; 0 if there are none.
double recorded_host_link(const Timeline& timeline, std::int32_t rank);

/// Median duration of the host's launch calls; 0 if the recording has none.
SimDuration recorded_launch(const Timeline& timeline, std::int32_t rank);

/// What a host thread does from the end of one launch call to the begin of its next, waits taken off: the dispatch of
/// one operator, the recorder's own cost in it. The mean; gaps beyond 20 medians are something else (data, a barrier).
/// 0 if there are none.
SimDuration recorded_dispatch(const Timeline& timeline, std::int32_t rank);

}  // namespace foreshard
