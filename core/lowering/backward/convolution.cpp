#include "core/lowering/backward/convolution.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/lowering/lowering_machine.h"

namespace foreshard::lowering {

CpuConvolutionBuffers filter_gradient_buffers(Emitter& e, const BackwardInput& in, const Layout& g) {
  const LoweringOptions& machine = e.machine().options;
  const Layout& image = in.node.in[0];
  const Layout& filter = in.node.in[1];
  const bool plain_convolution = image.sizes.n == 4 && filter.sizes.n == 4 && image.sizes[1] == filter.sizes[1] &&
                                 !bool_arg(*in.node.op, 6, "transposed", false);
  if (machine.cpu_threads == 0 || machine.cpu_isa != CpuIsa::Amx || g.dtype != DType::BFloat16 || !plain_convolution)
    return {};
  CpuConvolution c;
  c.images = image.sizes[0], c.channels = image.sizes[1], c.filters = filter.sizes[0];
  c.bias = in.wants(2);
  const auto strides = list_arg(*in.node.op, 3, "stride"), padding = list_arg(*in.node.op, 4, "padding");
  for (std::int32_t i = 0; i < 2; ++i) {
    c.in[i] = image.sizes[i + 2], c.out[i] = g.sizes[i + 2], c.filter[i] = filter.sizes[i + 2];
    const auto at = static_cast<std::size_t>(i);
    if (!strides.empty()) c.stride[i] = strides[std::min(at, strides.size() - 1)];
    if (!padding.empty()) c.padding[i] = padding[std::min(at, padding.size() - 1)];
  }
  CpuConvolutionBuffers buffers = cpu_filter_gradient_buffers(c, machine.cpu_threads, machine.cpu_l2_bytes);
  if (!g.contiguous()) buffers.before_result.push_back(g.bytes());  // ATen lays it out before oneDNN does
  return buffers;
}

Flops convolution_backward_flops(const BackwardInput& in) {
  const Layout& filter = in.node.in[1];
  const std::int64_t filters = std::max<std::int64_t>(filter.sizes.n > 0 ? filter.sizes[0] : 1, 1);
  const bool transposed = bool_arg(*in.node.op, 6, "transposed", false);
  const Flops work = 2 * in.node.out[0].numel() * (filter.numel() / filters);
  const Flops spread = 2 * in.node.in[0].numel() * (filter.numel() / filters);
  // PyTorch's counter takes every channel for the filters' gradient, whatever the groups
  const bool channels = in.node.in[0].sizes.n > 1 && filter.sizes.n > 1 && filter.sizes[1] > 0;
  const std::int64_t groups = channels ? in.node.in[0].sizes[1] / filter.sizes[1] : 1;
  return transposed ? ((in.wants(0) ? 1 : 0) + (in.wants(1) ? 1 : 0)) * spread
                    : (in.wants(0) ? work : 0) + (in.wants(1) ? work * groups : 0);
}

ConvolutionRoom::ConvolutionRoom(Emitter& e, const BackwardInput& in) : e_(e), in_(in) {
  if (in.node.rule->formula != OpFormula::Convolution || in.node.op == nullptr) return;
  backend_ = convolution_backend(*in.node.op);
  some_ = in.node.in.size() >= 2 && (in.wants(0) || in.wants(1));
}

std::vector<std::size_t> ConvolutionRoom::order() const {
  std::vector<std::size_t> order(in_.node.in.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (order.size() >= 3 && backend_ == "slow2d") std::swap(order[1], order[2]);
  if (order.size() >= 2 && depthwise()) std::swap(order[0], order[1]);
  return order;
}

void ConvolutionRoom::copy_input() {
  if (!some_ || !in_.wants(1) || !copies_its_input(*in_.node.op)) return;
  if (const Ref input = in_.saved_arg(0)) input_ = whole_gradient(e_, input);
}

void ConvolutionRoom::unfold_for_input() {
  if (some_ && in_.wants(0) && backend_ == "slow2d") unfold();
}

void ConvolutionRoom::unfold() {
  if (!some_ || columns_) return;
  const Unfolds when = in_.wants(0) ? Unfolds::Always : Unfolds::WhereItMust;
  const Bytes bytes = unfolded_bytes(*in_.node.op, in_.node.in[0], in_.node.in[1], in_.node.out[0], when);
  if (bytes > 0) columns_ = e_.tape().make_bytes(bytes, SlotCategory::Workspace);
}

}  // namespace foreshard::lowering
