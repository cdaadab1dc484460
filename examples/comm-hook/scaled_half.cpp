// A communication hook of one's own: gradients travel in half precision, scaled by the largest element of all ranks, so
// that nothing overflows and little underflows.
//
//   c++ -std=c++20 -O2 -shared -fPIC -I FORESHARD -I TORCH/include scaled_half.cpp -o libscaled_half.so
//   foreshard run job.toml --nproc 2 --load ./libscaled_half.so --set fsdp.runtime=fsdp1 --set
//   fsdp.comm_hook=own:scaled_half
//
// FORESHARD is the source folder, TORCH the wheel's; symbols of LibTorch come from the program that loads the library.
#include <ATen/ATen.h>

#include <utility>

#include "exec/units/comm_hook.h"

namespace {

using foreshard::DType;
using foreshard::ReduceOp;
using foreshard::exec::CommHookCall;

constexpr double kLargest = 1.0;  // of a scaled element; sums of `ranks` of them stay far below half's 65504

void scaled_half(const CommHookCall& call) {
  const at::Tensor largest = call.gradient.abs().max().to(at::kFloat).reshape({1});
  if (call.group != nullptr) call.group->all_reduce(largest.data_ptr(), 1, DType::Float32, ReduceOp::Max);
  const at::Tensor scale = largest.clamp_min(1e-30) / kLargest;
  const at::Tensor half = (call.gradient / scale).to(at::kHalf);
  const at::Tensor target = call.output.defined() ? call.output : call.gradient;
  at::Tensor sum = half;
  if (call.output.defined() && call.group != nullptr) {
    sum = at::empty_like(target, at::TensorOptions(at::kHalf));
    call.group->reduce_scatter(sum.data_ptr(), half.data_ptr(), sum.numel(), DType::Float16, ReduceOp::Sum);
  } else if (call.group != nullptr) {
    call.group->all_reduce(half.data_ptr(), half.numel(), DType::Float16, ReduceOp::Sum);
  }
  target.copy_(sum.to(target.scalar_type()).mul_(scale / call.ranks));  // the mean: FSDP divides no more
}

}  // namespace

FORESHARD_PLUGIN(registry) { registry.add("scaled_half", scaled_half); }
