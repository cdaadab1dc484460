// A convolution's backward as an operator of a forward, and what is differentiated of it (gradient penalties): other
// convolutions, as _convolution_double_backward of aten/src/ATen/native/Convolution.cpp has them.
#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/lowering/backward/backward.h"
#include "core/lowering/lowering_machine.h"

namespace foreshard::lowering {
namespace {

/// The convolution that a convolution_backward is of: grad_output, input, weight, bias_sizes, then what all have.
Op convolution_of(const Op& backward) {
  constexpr std::size_t kOwn = 4, kShared = 6;
  Op op;
  op.name = "aten.convolution.default";
  op.args.resize(3);
  for (std::size_t i = kOwn; i < kOwn + kShared && i < backward.args.size(); ++i) op.args.push_back(backward.args[i]);
  op.kwargs = backward.kwargs;
  return op;
}

std::int64_t number(const std::vector<std::int64_t>& list, std::int32_t i, std::int64_t fallback) {
  return list.empty() ? fallback : list[std::min(static_cast<std::size_t>(i), list.size() - 1)];
}

/// A convolution of images with filters that lie as they do, without a bias.
Ref convolved(Emitter& e, const Op& op, const Ref& image, const Ref& filter, const Dims& sizes) {
  Emitter inner(e.machine(), &op, -1);
  return forward_op(inner, *find_op_rule(op.name), op, {image, filter},
                    {contiguous_layout(sizes, e.layout(image).dtype)})
      .front();
}

/// gW = conv(ggI, gO) over the batch: strides and dilations change places.
Ref filters_gradient(Emitter& e, Op op, const Ref& ggi, const Ref& g_out, const Layout& filter) {
  std::swap(op.args[3], op.args[5]);
  const bool transposed = bool_arg(op, 6, "transposed", false);
  if (op.args.size() > 6) op.args[6].value = false;
  Ref image = e.transpose(transposed ? g_out : ggi, 0, 1), over = e.transpose(transposed ? ggi : g_out, 0, 1);
  if (unfolds_into_memory(&op))
    for (NamedArg& named : op.kwargs)
      if (named.name == "backend") named.arg.value = std::string("slowdilated2d");
  const auto strides = list_arg(op, 3, "stride"), padding = list_arg(op, 4, "padding");
  const auto dilations = list_arg(op, 5, "dilation");
  const auto whole = [&e](const Ref& ref) {
    return e.layout(ref).contiguous() ? ref
                                      : e.fresh("aten.clone.default", KernelClass::Copy, plain(e.layout(ref)), {&ref});
  };
  image = whole(image), over = whole(over);
  Dims sizes;
  sizes.push(e.layout(image).sizes[0]);
  sizes.push(e.layout(over).sizes[0]);
  for (std::int32_t i = 2; i < e.layout(image).sizes.n; ++i) {
    const std::int64_t reach = number(dilations, i - 2, 1) * (e.layout(over).sizes[i] - 1) + 1;
    sizes.push((e.layout(image).sizes[i] + 2 * number(padding, i - 2, 0) - reach) / number(strides, i - 2, 1) + 1);
  }
  const Ref made = convolved(e, op, image, over, sizes);
  Layout part = e.layout(e.transpose(made, 0, 1));  // and what lies beyond the filters is cut off
  part.sizes = filter.sizes;
  return e.tape().alias(made, part);
}

}  // namespace

std::vector<Ref> convolution_backward_in_forward(Emitter& e, const Op& op, const std::vector<Ref>& args) {
  const Op forward = convolution_of(op);
  Node node;
  node.rule = find_op_rule(forward.name);
  node.op = &forward;
  node.out.push_back(e.layout(args[0]));
  std::vector<Ref> saved;
  for (std::int32_t i = 0; i < 3; ++i) {
    const bool wanted = static_cast<std::size_t>(i) < op.out.size() && op.out[static_cast<std::size_t>(i)].valid();
    node.next.push_back({wanted ? 0 : -1, 0});
    if (i == 2) {
      Dims channels;
      channels.push(e.layout(args[0]).sizes[1]);
      node.in.push_back(contiguous_layout(channels, e.layout(args[0]).dtype));
      continue;
    }
    node.in.push_back(e.layout(args[static_cast<std::size_t>(i) + 1]));
    node.saved.push_back({{}, false, false, i, 0, {}});
    saved.push_back(args[static_cast<std::size_t>(i) + 1]);
  }
  std::vector<Ref> grads{args[0]};
  BackwardInput in{node, grads, saved};
  std::vector<Ref> made = backward_of(e, in), out;
  for (std::size_t i = 0; i < made.size(); ++i)
    if (i < op.out.size() && op.out[i].valid()) out.push_back(made[i]);
  return out;
}

std::vector<Ref> convolution_double_backward(Emitter& e, BackwardInput& in) {
  std::vector<Ref> out(in.node.in.size());
  const Ref g_out = in.saved_arg(0), weight = in.saved_arg(2), ggi = in.grads[0];
  if (!ggi || !g_out || !weight) {  // of the filters' gradient: as large as what it is of
    for (std::size_t i = 0; i < out.size(); ++i)
      if (in.wants(i)) out[i] = e.fresh(in.node.op->name, KernelClass::Gemm, plain(in.node.in[i]), {&in.grads.back()});
    return out;
  }
  const Op op = convolution_of(*in.node.op);
  out[0] = convolved(e, op, ggi, weight, in.node.in[0].sizes);
  out[2] = filters_gradient(e, op, ggi, g_out, in.node.in[2]);
  return out;
}

}  // namespace foreshard::lowering
