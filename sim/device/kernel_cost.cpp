#include "sim/device/kernel_cost.h"

#include <algorithm>
#include <cmath>

#include "sim/device/launch_cost.h"

namespace foreshard {
namespace {

constexpr std::int64_t kTileM = 128, kTileN = 128;  // output tile of one thread block of a GEMM

/// 10^12 per second is 10^3 per nanosecond. A dtype that the profile does not name runs at float32's rate.
std::vector<double> per_ns(const std::map<DType, double>& rates, double otherwise) {
  const auto fp32 = rates.find(DType::Float32);
  std::vector<double> table(kDTypeCount, (fp32 != rates.end() ? fp32->second : otherwise) * 1e3);
  for (const auto& [dtype, rate] : rates) table[static_cast<std::size_t>(dtype)] = rate * 1e3;
  return table;
}

double lookup(const std::map<std::string, double>& extra, const char* key, double otherwise) {
  const auto it = extra.find(key);
  return it == extra.end() ? otherwise : it->second;
}

/// Time against that of a long causal pass forward, whose rate counts the half that it leaves out. Tiles on the
/// diagonal are computed whole, and each row of tiles begins and ends: a row costs as much as so many pairs more.
/// FlashAttention 2 and cuDNN alike on an H200, within 8 % from 512 to 8,192 keys
/// (docs/measurements/2026-11-28-h200.md).
double attention_weight(const Kernel& kernel) {
  constexpr double kMaskedForward = 490, kMaskedBackward = 850, kForward = 90, kBackward = 370;  // keys a row
  constexpr double kBackwardRate = 0.92, kNarrowHeadRate = 0.91;
  constexpr std::int64_t kNarrowHead = 64;
  if (kernel.n <= 0) return 1;  // shapes that are not known
  const double keys = static_cast<double>(kernel.n);
  const double more =
      kernel.causal ? (kernel.backward ? kMaskedBackward : kMaskedForward) : (kernel.backward ? kBackward : kForward);
  double weight = (kernel.causal ? 1 : 2) * (1 + more / keys);
  if (kernel.backward) weight /= kBackwardRate;
  if (kernel.k <= kNarrowHead) weight /= kNarrowHeadRate;
  return weight;
}

}  // namespace

double tf32_gemm_tflops(const HardwareProfile& profile) {
  const double reached = lookup(profile.extra, kTf32Reached, 0), peak = lookup(profile.extra, kTf32Peak, 0);
  if (reached > 0 || peak <= 0) return reached;
  const auto half = profile.gemm_tflops.find(DType::BFloat16), half_peak = profile.peak_tflops.find(DType::BFloat16);
  if (half == profile.gemm_tflops.end() || half_peak == profile.peak_tflops.end() || half_peak->second <= 0) return 0;
  return peak * half->second / half_peak->second;
}

KernelCost::KernelCost(const HardwareProfile& profile)
    : work_(profile),
      ramps_(profile.kind == "gpu"),
      launch_ns_(profile.launch_ns),
      op_ns_(profile.op_ns),
      backward_op_ns_(static_cast<SimDuration>(lookup(profile.extra, kBackwardOpNs, static_cast<double>(op_ns_)))),
      call_ns_(profile.call_ns),
      min_kernel_ns_(profile.min_kernel_ns),
      segment_forward_ns_(static_cast<SimDuration>(lookup(profile.extra, "segment_forward_ns", 0))),
      segment_backward_ns_(static_cast<SimDuration>(lookup(profile.extra, "segment_backward_ns", 0))),
      bytes_per_ns_(profile.hbm_gb_per_s * profile.hbm_share),
      attention_share_{profile.attention_share, lookup(profile.extra, kEfficientShare, profile.attention_share),
                       lookup(profile.extra, kCudnnShare, profile.attention_share)},
      narrow_share_(lookup(profile.extra, kNarrowShare, 1)),
      narrowest_share_(lookup(profile.extra, kNarrowestShare, narrow_share_)),
      link_bytes_per_ns_(profile.host_link_gb_per_s),
      staging_bytes_per_ns_(profile.host_copy_gb_per_s),
      sm_count_(std::max(profile.sm_count, 1)),
      tf32_(tf32_gemm_tflops(profile) * 1e3),
      tf32_peak_(std::max(lookup(profile.extra, kTf32Peak, 0) * 1e3, tf32_)),
      names_(kDTypeCount, false),
      gemm_(per_ns(profile.gemm_tflops, 1.0)),
      peak_(per_ns(profile.peak_tflops, 1.0)),
      vector_(per_ns(profile.vector_tflops.empty() ? profile.peak_tflops : profile.vector_tflops, 1.0)) {
  for (const auto& [dtype, rate] : profile.peak_tflops) names_[static_cast<std::size_t>(dtype)] = true;
}

KernelCost::Peak KernelCost::peak(const Kernel& kernel) const {
  if (kernel.dtype == DType::Float32 && kernel.convolution && tf32_peak_ > 0) return {DType::Float32, true, tf32_peak_};
  const DType dtype = names_[static_cast<std::size_t>(kernel.dtype)] ? kernel.dtype : DType::Float32;
  return {dtype, false, rate(peak_, dtype)};
}

/// Rates are those of a full device. A card's kernels start, fill it and drain it one after the other: an empty one's
/// time comes on top of the work, so twice the batch takes a little less than twice the time.
SimDuration KernelCost::with_ramp(SimDuration least, SimDuration work) const {
  return ramps_ ? least + work : std::max(least, work);
}

SimDuration KernelCost::memory_bound(Bytes bytes) const { return with_ramp(min_kernel_ns_, moving(bytes)); }

double KernelCost::gemm_rate(const Kernel& kernel) const {
  double own = rate(gemm_, kernel.dtype);
  if (itemsize(kernel.dtype) == 2 && kernel.alignment < 16)
    own *= kernel.alignment < 4 ? narrowest_share_ : narrow_share_;
  return kernel.dtype == DType::Float32 && kernel.convolution ? std::max(own, tf32_) : own;
}

SimDuration KernelCost::product(const Kernel& kernel) const {
  return static_cast<SimDuration>(static_cast<double>(kernel.flops) / gemm_rate(kernel));
}

SimDuration KernelCost::attention(const Kernel& kernel) const {
  const double pairs_per_ns = rate(peak_, kernel.dtype) * attention_share_[static_cast<std::size_t>(kernel.attention)];
  return static_cast<SimDuration>(static_cast<double>(kernel.flops) * (ramps_ ? attention_weight(kernel) : 1) /
                                  pairs_per_ns);
}

std::int64_t KernelCost::tiles(const Kernel& kernel) const {
  if (kernel.kind != KernelClass::Gemm || kernel.m <= 0 || kernel.n <= 0) return 0;
  return ceil_div(kernel.m, kTileM) * ceil_div(kernel.n, kTileN) * std::max<std::int64_t>(kernel.batch, 1);
}

SimDuration KernelCost::gemm(const Kernel& kernel) const {
  const std::int64_t all = tiles(kernel);
  if (all <= sm_count_) return product(kernel);
  // The last wave of output tiles leaves multiprocessors idle.
  const double waves = static_cast<double>(all) / sm_count_;
  const double ns = static_cast<double>(kernel.flops) / gemm_rate(kernel);
  return static_cast<SimDuration>(ns * (static_cast<double>(ceil_div(all, sm_count_)) / waves));
}

SimDuration KernelCost::device(const Kernel& kernel) const {
  if (kernel.launches <= 0) return 0;
  SimDuration compute = 0;
  switch (kernel.kind) {
    case KernelClass::Gemm: compute = gemm(kernel); break;
    case KernelClass::Attention: compute = attention(kernel); break;
    default: compute = static_cast<SimDuration>(static_cast<double>(kernel.flops) / rate(vector_, kernel.dtype));
  }
  return with_ramp(min_kernel_ns_ * kernel.launches, std::max(compute, moving(kernel.read + kernel.written)));
}

SimDuration KernelCost::copy(Bytes moved, DType /*dtype*/) const { return memory_bound(moved); }

SimDuration KernelCost::fill(Bytes written) const { return memory_bound(written); }

SimDuration KernelCost::list(Bytes moved, std::int64_t launches) const {
  return std::max(copy(0, DType::Float32) * launches, copy(moved, DType::Float32));
}

SimDuration KernelCost::scaled(Bytes bytes, DType dtype) const {
  constexpr Bytes kPasses = 2;
  return copy(kPasses * bytes, dtype);
}

SimDuration KernelCost::host_pass(Bytes bytes) const {
  constexpr double kHostBytesPerNs = 20;  // a foreach call on a server CPU is bound by its memory
  return static_cast<SimDuration>(static_cast<double>(bytes) / kHostBytesPerNs);
}

SimDuration KernelCost::transfer(Bytes bytes) const {
  return min_kernel_ns_ + static_cast<SimDuration>(static_cast<double>(bytes) / link_bytes_per_ns_);
}

SimDuration KernelCost::staging(Bytes bytes) const {
  return static_cast<SimDuration>(static_cast<double>(bytes) / staging_bytes_per_ns_);
}

std::unique_ptr<const KernelCost> kernel_cost_of(const HardwareProfile& profile) {
  if (profile.kind == "virtual") return std::make_unique<const LaunchCost>(profile);
  return std::make_unique<const KernelCost>(profile);
}

}  // namespace foreshard
