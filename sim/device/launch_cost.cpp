#include "sim/device/launch_cost.h"

#include <algorithm>
#include <cmath>

namespace foreshard {
namespace {

// Elements that one thread handles in PyTorch's kernels.
constexpr double kVectorised = 8, kUnrolled = 4;
constexpr SimDuration kMemset = 2000;
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

}  // namespace

LaunchCost::LaunchCost(const HardwareProfile& profile) : KernelCost(profile), ns_per_thread_(0.015) {
  if (const auto given = profile.extra.find("ns_per_thread"); given != profile.extra.end()) {
    ns_per_thread_ = given->second;
  }
}

SimDuration LaunchCost::device(const Kernel& kernel) const {
  if (kernel.launches <= 0) return 0;
  const SimDuration least = min_kernel_ns() * kernel.launches;
  switch (kernel.kind) {
    case KernelClass::Gemm: return std::max(least, product(kernel));
    case KernelClass::Attention: return std::max(least, attention(kernel));
    default: return std::max(least, static_cast<SimDuration>(threads_of(kernel) * ns_per_thread_));
  }
}

SimDuration LaunchCost::threads(double count) const {
  return std::max(min_kernel_ns(), static_cast<SimDuration>(count * ns_per_thread_));
}

SimDuration LaunchCost::by_launch(const Kernel& kernel, const Place& place) const {
  const auto& [op, backward, heads, rows, head_size] = place;
  constexpr double kSoftmaxBlock = 1024, kSoftmaxBackwardBlock = 512, kLayerNormBlock = 128;
  constexpr double kCatThreads = 3 * 32 * 128;  // of three tensors, by multiprocessor
  constexpr int kSortLaunches = 22;             // of the indices of an embedding, beside those that read gradients
  constexpr Bytes kLarge = 1 * kMiB, kGatherBytes = 16;
  constexpr Numel kWarp = 32;
  const bool narrow = itemsize(kernel.dtype) < 4;
  const double made = static_cast<double>(kernel.written) / static_cast<double>(itemsize(kernel.dtype));
  const auto read = static_cast<double>(kernel.read) / static_cast<double>(itemsize(kernel.dtype));
  if (kernel.launches <= 0) return 0;
  if (kernel.kind == KernelClass::Attention) {  // flash attention as causal with heads of 128; others have few threads
    if (op.find("flash") == std::string_view::npos || head_size == 0) return min_kernel_ns() * kernel.launches;
    return device(kernel) * 64 / head_size + (kernel.launches - 1) * min_kernel_ns();
  }
  if (op == "aten._log_softmax.default") return threads(static_cast<double>(rows) * kSoftmaxBlock);
  if (op == "aten._log_softmax_backward_data.default")
    return threads(static_cast<double>(rows) * kSoftmaxBackwardBlock);
  if (op == "aten.native_layer_norm.default") return threads(static_cast<double>(rows) * kLayerNormBlock);
  if (op == "aten.nll_loss_forward.default") return min_kernel_ns();
  if (op == "aten.nll_loss_backward.default") return min_kernel_ns() + threads(made / kVectorised);
  if (op == "aten.native_dropout.default") return min_kernel_ns();  // as many as run at once
  if (op == "aten.cat.default")  // backward's pieces lie one after the other, forward's are strided
    return backward ? threads(std::min(made / kVectorised, kCatThreads * sm_count())) : min_kernel_ns();
  if (op == "aten.native_layer_norm_backward.default")
    return min_kernel_ns() + threads(static_cast<double>(rows) * kLayerNormBlock);
  if (op == "aten.native_dropout_backward.default") return threads(made / kVectorised);
  if (kernel.kind == KernelClass::Gather && rows > 0) {  // whole warps for a row, 16 bytes a thread
    const Numel each = ceil_div(kernel.written / rows, kGatherBytes);
    return threads(static_cast<double>(rows * round_up(each, kWarp)));
  }
  if (op == "aten.sum.dim_IntList" && kernel.launches == 2) return kMemset + min_kernel_ns();
  if (op == "aten.embedding_dense_backward.default")
    return kernel.launches > 2 ? kSortLaunches * min_kernel_ns() : threads(made / kVectorised) + 2 * threads(read);
  // Of transposed, sliced or expanded tensors.
  const bool expands = backward && op == "aten.div.Scalar";
  const bool transposed = heads && (op == "aten.add.Tensor" || op == "aten.add_.Tensor");
  if (expands || transposed || op == "aten.neg.default" || op == "aten.clone.default")
    return threads(made / (narrow ? kUnrolled : kUnrolled / 2));
  if (backward && op == "aten.pow.Tensor_Scalar" && kernel.written > kLarge)  // to the power of one: a copy
    return min_kernel_ns() + moving(kernel.read + kernel.written);
  return device(kernel);
}

SimDuration LaunchCost::copy(Bytes moved, DType dtype) const {
  const double elements = static_cast<double>(moved) / 2 / static_cast<double>(itemsize(dtype));
  return threads(elements / kVectorised);
}

SimDuration LaunchCost::clear(Bytes bytes) const { return kMemset + moving(bytes); }

SimDuration LaunchCost::list(Bytes /*moved*/, std::int64_t launches) const {
  return copy(0, DType::Float32) * launches;
}

SimDuration LaunchCost::scaled(Bytes bytes, DType dtype) const {
  constexpr Bytes kByElement = 8;  // the launch has a thread for every element
  return copy(kByElement * bytes, dtype);
}

}  // namespace foreshard
