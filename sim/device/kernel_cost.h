// How long one kernel takes on the device and one call on the host: a roofline from the hardware profile. Other devices
// derive from it: the virtual one has a clock of its own (launch_cost.h). Which of them it is, only kernel_cost_of()
// asks. Pure functions of the profile; durations in nanoseconds.
#pragma once

#include <array>
#include <memory>
#include <string_view>
#include <vector>

#include "core/lowering/lowering.h"
#include "core/units.h"
#include "sim/device/work_times.h"
#include "sim/machine/profile.h"

namespace foreshard {

/// 10^12 float32 operations per second that convolutions reach on tensor cores; 0 where the device has none. Where it
/// was not measured, the share of its peak that half precision reaches.
double tf32_gemm_tflops(const HardwareProfile& profile);

/// What is asked for only where a device goes by it: a view of a function, which lives until the call returns.
template <class T>
class Asked {
 public:
  template <class F>
  Asked(const F& of)  // NOLINT(google-explicit-constructor): a lambda at the call
      : of_(&of), call_([](const void* function) -> T { return (*static_cast<const F*>(function))(); }) {}
  T operator()() const { return call_(of_); }

 private:
  const void* of_;
  T (*call_)(const void*);
};

class KernelCost {
 public:
  explicit KernelCost(const HardwareProfile& profile);
  virtual ~KernelCost() = default;

  /// Device time of all launches of a lowered kernel.
  virtual SimDuration device(const Kernel& kernel) const;
  /// Where a kernel stands in its program: PyTorch's launch parameters follow from it.
  struct Place {
    std::string_view op;
    bool backward = false;
    bool heads = false;   // the result has heads of their own dimension, which lie transposed
    Numel rows = 0;       // of the result, all dimensions but the last
    Numel head_size = 0;  // of the model's attention
  };
  virtual SimDuration device(const Kernel& kernel, const Asked<Place>& /*place*/) const { return device(kernel); }
  /// Tiles of a product of matrices, which fill multiprocessors in waves; 0 of other kernels.
  virtual std::int64_t tiles(const Kernel& kernel) const;
  /// Host time to dispatch and launch it. A host's own segments are issued whole, at segment_host().
  SimDuration host(const Kernel& kernel, bool backward = false) const {
    if (work_.measured()) return 0;
    const SimDuration op = backward ? backward_op_ns_ : op_ns_;
    return kernel.launches > 0 ? op + kernel.launches * launch_ns_ : op;
  }
  /// The rate that a kernel's operations are held against: the data sheet's for its dtype. A dtype that the profile
  /// does not name is taken as float32, whose convolutions run as TF32 where the device does.
  struct Peak {
    DType dtype = DType::Float32;
    bool tf32 = false;
    double flops_per_ns = 0;
  };
  Peak peak(const Kernel& kernel) const;
  /// One of FSDP's own copies or elementwise kernels: bytes read + written (specification, section 7).
  virtual SimDuration copy(Bytes moved, DType dtype) const;
  SimDuration fill(Bytes written) const;
  /// The same, where `threads` says how many the launch has.
  virtual SimDuration copy(Bytes moved, DType dtype, const Asked<double>& /*threads*/) const {
    return copy(moved, dtype);
  }
  virtual SimDuration fill(Bytes written, const Asked<double>& /*threads*/) const { return fill(written); }
  /// cudaMemset, which is no kernel.
  virtual SimDuration clear(Bytes bytes) const { return fill(bytes); }
  /// One call over a list of tensors (torch._foreach_*), in so many launches.
  virtual SimDuration list(Bytes moved, std::int64_t launches) const;
  /// A tensor of so many bytes times one number that lies on the device.
  virtual SimDuration scaled(Bytes bytes, DType dtype) const;
  /// The host itself goes over so many bytes.
  virtual SimDuration host_pass(Bytes bytes) const;
  /// Host time of the sends and receives that a collective is made of, beside the first: one launch for all of them.
  virtual SimDuration further_sends(std::int64_t /*count*/) const { return 0; }
  /// From when on a communicator, busy until `tail`, takes its next collective.
  virtual SimTime takes_from(SimTime tail) const { return tail; }
  /// Over the host link.
  SimDuration transfer(Bytes bytes) const;
  /// Host time of staging a transfer from or to pageable memory.
  SimDuration staging(Bytes bytes) const;

  /// A host's own work; see sim/device/work_times.h. The rest of this class serves where it was not measured.
  const WorkTimes& work() const { return work_; }
  SimDuration segment_host() const { return work_.measured() ? launch_ns_ : 0; }
  /// What a segment costs the stream beside its operators.
  SimDuration segment(bool backward) const { return backward ? segment_backward_ns_ : segment_forward_ns_; }

  SimDuration launch_ns() const { return launch_ns_; }
  SimDuration op_ns() const { return op_ns_; }
  SimDuration call_ns() const { return call_ns_; }

 protected:
  SimDuration min_kernel_ns() const { return min_kernel_ns_; }
  int sm_count() const { return sm_count_; }
  /// Bytes through the device's memory.
  SimDuration moving(Bytes bytes) const { return static_cast<SimDuration>(static_cast<double>(bytes) / bytes_per_ns_); }
  /// The operations of a product, in full waves of a full device.
  SimDuration product(const Kernel& kernel) const;
  SimDuration attention(const Kernel& kernel) const;

 private:
  SimDuration gemm(const Kernel& kernel) const;
  double gemm_rate(const Kernel& kernel) const;
  SimDuration memory_bound(Bytes bytes) const;
  SimDuration with_ramp(SimDuration least, SimDuration work) const;
  double rate(const std::vector<double>& table, DType dtype) const { return table[static_cast<std::size_t>(dtype)]; }

  WorkTimes work_;
  bool ramps_;  // a card: every kernel fills and drains the device
  SimDuration launch_ns_, op_ns_, backward_op_ns_, call_ns_, min_kernel_ns_, segment_forward_ns_, segment_backward_ns_;
  double bytes_per_ns_;                    // HBM, reached
  std::array<double, 3> attention_share_;  // by AttentionKind
  double narrow_share_, narrowest_share_;  // of a product's rate, with rows aligned to 4 or 8 bytes, and to 2
  double link_bytes_per_ns_, staging_bytes_per_ns_;
  int sm_count_;
  double tf32_, tf32_peak_;                   // operations per nanosecond; 0: the device has no such cores
  std::vector<bool> names_;                   // by DType: has a peak of its own
  std::vector<double> gemm_, peak_, vector_;  // operations per nanosecond, by DType
};

/// The device of a profile.
std::unique_ptr<const KernelCost> kernel_cost_of(const HardwareProfile& profile);

}  // namespace foreshard
