#include "sim/device/kernel_cost.h"

#include <algorithm>
#include <cmath>

namespace foreshard {
namespace {

constexpr std::size_t kDTypes = static_cast<std::size_t>(DType::Complex64) + 1;
constexpr std::int64_t kTileM = 128, kTileN = 128;  // output tile of one thread block of a GEMM
// Elements that one thread handles in PyTorch's kernels.
constexpr double kVectorised = 8, kUnrolled = 4;
constexpr double kReduced = 32;       // of the input of a reduction over rows
constexpr double kRowOfClasses = 64;  // one thread block for a row of a loss's classes

/// What the virtual device goes by: threads of the kernel's launch, from what it reads and writes.
double threads_of(const Kernel& kernel) {
  const auto item = static_cast<double>(itemsize(kernel.dtype));
  const double read = static_cast<double>(kernel.read), written = static_cast<double>(kernel.written);
  const double made = written / item;
  switch (kernel.kind) {
    case KernelClass::Reduction: return std::max(read, written) / item / kReduced;
    case KernelClass::Loss: return std::max(read, written) / item / kRowOfClasses;
    case KernelClass::Gather: return made / kVectorised;
    default: break;
  }
  const double operands = written > 0 ? read / written : 0;
  if (operands == std::floor(operands)) return made / kVectorised;  // all alike
  if (operands < 0.9) return made / kUnrolled;                      // a wider copy
  return made / (item < 4 ? kUnrolled : kUnrolled / 2);             // broadcast along some dimension
}

/// 10^12 per second is 10^3 per nanosecond. A dtype that the profile does not name runs at float32's rate.
std::vector<double> per_ns(const std::map<DType, double>& rates, double otherwise) {
  const auto fp32 = rates.find(DType::Float32);
  std::vector<double> table(kDTypes, (fp32 != rates.end() ? fp32->second : otherwise) * 1e3);
  for (const auto& [dtype, rate] : rates) table[static_cast<std::size_t>(dtype)] = rate * 1e3;
  return table;
}

double lookup(const std::map<std::string, double>& extra, const char* key, double otherwise) {
  const auto it = extra.find(key);
  return it == extra.end() ? otherwise : it->second;
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
      virtual_(profile.kind == "virtual"),
      ramps_(profile.kind == "gpu"),
      launch_ns_(profile.launch_ns),
      op_ns_(profile.op_ns),
      call_ns_(profile.call_ns),
      min_kernel_ns_(profile.min_kernel_ns),
      segment_forward_ns_(static_cast<SimDuration>(lookup(profile.extra, "segment_forward_ns", 0))),
      segment_backward_ns_(static_cast<SimDuration>(lookup(profile.extra, "segment_backward_ns", 0))),
      bytes_per_ns_(profile.hbm_gb_per_s * profile.hbm_share),
      attention_share_(profile.attention_share),
      ns_per_thread_(lookup(profile.extra, "ns_per_thread", 0.015)),
      link_bytes_per_ns_(profile.host_link_gb_per_s),
      staging_bytes_per_ns_(profile.host_copy_gb_per_s),
      sm_count_(std::max(profile.sm_count, 1)),
      tf32_(tf32_gemm_tflops(profile) * 1e3),
      tf32_peak_(std::max(lookup(profile.extra, kTf32Peak, 0) * 1e3, tf32_)),
      names_(kDTypes, false),
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

SimDuration KernelCost::memory_bound(Bytes bytes) const {
  return with_ramp(min_kernel_ns_, static_cast<SimDuration>(static_cast<double>(bytes) / bytes_per_ns_));
}

double KernelCost::gemm_rate(const Kernel& kernel) const {
  const double own = rate(gemm_, kernel.dtype);
  return kernel.dtype == DType::Float32 && kernel.convolution ? std::max(own, tf32_) : own;
}

std::int64_t KernelCost::tiles(const Kernel& kernel) const {
  if (virtual_ || kernel.kind != KernelClass::Gemm || kernel.m <= 0 || kernel.n <= 0) return 0;
  return ceil_div(kernel.m, kTileM) * ceil_div(kernel.n, kTileN) * std::max<std::int64_t>(kernel.batch, 1);
}

SimDuration KernelCost::gemm(const Kernel& kernel) const {
  double ns = static_cast<double>(kernel.flops) / gemm_rate(kernel);
  if (const std::int64_t all = tiles(kernel); all > sm_count_) {
    // The last wave of output tiles leaves multiprocessors idle.
    const double waves = static_cast<double>(all) / sm_count_;
    ns *= static_cast<double>(ceil_div(all, sm_count_)) / waves;
  }
  return static_cast<SimDuration>(ns);
}

SimDuration KernelCost::device(const Kernel& kernel) const {
  if (kernel.launches <= 0) return 0;
  const SimDuration least = min_kernel_ns_ * kernel.launches;
  SimDuration compute = 0;
  switch (kernel.kind) {
    case KernelClass::Gemm: compute = gemm(kernel); break;
    case KernelClass::Attention:
      compute =
          static_cast<SimDuration>(static_cast<double>(kernel.flops) / (rate(peak_, kernel.dtype) * attention_share_));
      break;
    default:
      if (virtual_) return std::max(least, static_cast<SimDuration>(threads_of(kernel) * ns_per_thread_));
      compute = static_cast<SimDuration>(static_cast<double>(kernel.flops) / rate(vector_, kernel.dtype));
  }
  if (virtual_) return std::max(least, compute);  // its kernels know no memory
  const auto moved = static_cast<SimDuration>(static_cast<double>(kernel.read + kernel.written) / bytes_per_ns_);
  return with_ramp(least, std::max(compute, moved));
}

SimDuration KernelCost::threads(double count) const {
  return std::max(min_kernel_ns_, static_cast<SimDuration>(count * ns_per_thread_));
}

SimDuration KernelCost::by_launch(const Kernel& kernel, const Place& place) const {
  const auto& [op, backward, heads, rows, head_size] = place;
  constexpr double kSoftmaxBlock = 1024, kSoftmaxBackwardBlock = 512, kLayerNormBlock = 128;
  constexpr double kCatThreads = 3 * 32 * 128;  // of three tensors, by multiprocessor
  constexpr SimDuration kMemset = 2000;
  constexpr int kSortLaunches = 22;  // of the indices of an embedding, beside those that read gradients
  constexpr Bytes kLarge = 1 * kMiB, kGatherBytes = 16;
  constexpr Numel kWarp = 32;
  const bool narrow = itemsize(kernel.dtype) < 4;
  const double made = static_cast<double>(kernel.written) / static_cast<double>(itemsize(kernel.dtype));
  const auto read = static_cast<double>(kernel.read) / static_cast<double>(itemsize(kernel.dtype));
  if (kernel.launches <= 0) return 0;
  if (kernel.kind == KernelClass::Attention) {  // flash attention as causal with heads of 128; others have few threads
    if (op.find("flash") == std::string_view::npos || head_size == 0) return min_kernel_ns_ * kernel.launches;
    return device(kernel) * 64 / head_size;
  }
  if (op == "aten._log_softmax.default") return threads(static_cast<double>(rows) * kSoftmaxBlock);
  if (op == "aten._log_softmax_backward_data.default")
    return threads(static_cast<double>(rows) * kSoftmaxBackwardBlock);
  if (op == "aten.native_layer_norm.default") return threads(static_cast<double>(rows) * kLayerNormBlock);
  if (op == "aten.nll_loss_forward.default") return min_kernel_ns_;
  if (op == "aten.nll_loss_backward.default") return min_kernel_ns_ + threads(made / kVectorised);
  if (op == "aten.native_dropout.default") return min_kernel_ns_;  // as many as run at once
  if (op == "aten.cat.default")  // backward's pieces lie one after the other, forward's are strided
    return backward ? threads(std::min(made / kVectorised, kCatThreads * sm_count_)) : min_kernel_ns_;
  if (op == "aten.native_layer_norm_backward.default")
    return min_kernel_ns_ + threads(static_cast<double>(rows) * kLayerNormBlock);
  if (op == "aten.native_dropout_backward.default") return threads(made / kVectorised);
  if (kernel.kind == KernelClass::Gather && rows > 0) {  // whole warps for a row, 16 bytes a thread
    const Numel each = ceil_div(kernel.written / rows, kGatherBytes);
    return threads(static_cast<double>(rows * round_up(each, kWarp)));
  }
  if (op == "aten.sum.dim_IntList" && kernel.launches == 2) return kMemset + min_kernel_ns_;
  if (op == "aten.embedding_dense_backward.default")
    return kernel.launches > 2 ? kSortLaunches * min_kernel_ns_ : threads(made / kVectorised) + 2 * threads(read);
  // Of transposed, sliced or expanded tensors.
  const bool expands = backward && op == "aten.div.Scalar";
  const bool transposed = heads && (op == "aten.add.Tensor" || op == "aten.add_.Tensor");
  if (expands || transposed || op == "aten.neg.default" || op == "aten.clone.default")
    return threads(made / (narrow ? kUnrolled : kUnrolled / 2));
  if (backward && op == "aten.pow.Tensor_Scalar" && kernel.written > kLarge)  // to the power of one: a copy
    return min_kernel_ns_ + static_cast<SimDuration>(static_cast<double>(kernel.read + kernel.written) / bytes_per_ns_);
  return device(kernel);
}

SimDuration KernelCost::copy(Bytes moved, DType dtype) const {
  if (!virtual_) return memory_bound(moved);
  const double elements = static_cast<double>(moved) / 2 / static_cast<double>(itemsize(dtype));
  return std::max(min_kernel_ns_, static_cast<SimDuration>(elements / kVectorised * ns_per_thread_));
}

SimDuration KernelCost::fill(Bytes written) const { return memory_bound(written); }

SimDuration KernelCost::list(Bytes moved, std::int64_t launches) const {
  const SimDuration least = copy(0, DType::Float32) * launches;
  return virtual_ ? least : std::max(least, copy(moved, DType::Float32));
}

SimDuration KernelCost::scaled(Bytes bytes, DType dtype) const {
  constexpr Bytes kPasses = 2, kByElement = 8;  // the virtual device's launch has a thread for every element
  return copy((virtual_ ? kByElement : kPasses) * bytes, dtype);
}

SimDuration KernelCost::host_pass(Bytes bytes) const {
  constexpr double kHostBytesPerNs = 20;  // a foreach call on a server CPU is bound by its memory
  return virtual_ ? 0 : static_cast<SimDuration>(static_cast<double>(bytes) / kHostBytesPerNs);
}

SimDuration KernelCost::transfer(Bytes bytes) const {
  return min_kernel_ns_ + static_cast<SimDuration>(static_cast<double>(bytes) / link_bytes_per_ns_);
}

SimDuration KernelCost::staging(Bytes bytes) const {
  return static_cast<SimDuration>(static_cast<double>(bytes) / staging_bytes_per_ns_);
}

}  // namespace foreshard
