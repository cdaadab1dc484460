// How many floating-point operations a step does, by dtype, and the least time in which the device could do them: what
// MFU and HFU are made of. Owned by one player.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "core/dtype.h"
#include "core/lowering/lowering.h"
#include "core/units.h"
#include "sim/device/kernel_cost.h"

namespace foreshard {

/// Operations of one dtype, with the peak that they are held against: the profile's peak_tflops, of float32
/// convolutions its TF32 peak where it has one.
struct WorkShare {
  DType dtype = DType::Float32;
  bool tf32 = false;
  double flops = 0, recomputed_flops = 0;
  double peak_tflops = 0;
  bool operator==(const WorkShare&) const = default;
};

enum class Pass : std::uint8_t { Forward, Recompute, Backward };

class WorkCount {
 public:
  /// The next template, in order; `device_ns` are the durations of the list's kernels as they are played.
  void add_template();
  void add_pass(Pass pass, const KernelList& list, const std::vector<SimDuration>& device_ns, const KernelCost& cost);

  /// From now on another iteration is counted.
  void begin();
  void ran(std::size_t index, Pass pass) { ++templates_[index].runs[static_cast<std::size_t>(pass)]; }

  /// By dtype, in the order in which they were first met; those that did nothing are left out.
  std::vector<WorkShare> shares() const;
  /// Nanoseconds at peak. A kernel that was measured to beat the profile's peak counts with its own time, so that no
  /// step takes less.
  double least_ns() const { return least_ns(Pass::Forward) + least_ns(Pass::Backward); }
  double recomputed_least_ns() const { return least_ns(Pass::Recompute); }

 private:
  struct Template {
    std::array<std::vector<double>, 3> flops;  // by pass, then by place in kinds_
    std::array<double, 3> least_ns{};
    std::array<std::int64_t, 3> runs{};
  };
  double least_ns(Pass pass) const;
  std::size_t kind_of(const Kernel& kernel, const KernelCost& cost);

  std::vector<Template> templates_;
  std::vector<WorkShare> kinds_;  // without their numbers
};

}  // namespace foreshard
