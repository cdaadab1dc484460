// Backward formulas of gathers, selections, rarer functions, convolutions, batch norms, pools and experts; see
// backward.h.
//
// Where PyTorch adds into fresh zeros in place, so do we; its recordings under a mode show the copying forms.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>
#include <utility>

#include "core/lowering/backward/backward.h"
#include "core/lowering/backward/convolution.h"
#include "core/lowering/composed/composed.h"
#include "core/lowering/lowering_machine.h"
#include "core/lowering/segment_autograd.h"

namespace foreshard::lowering {
namespace {

using Grads = std::vector<Ref>;

/// True if the argument is given and is no None.
bool has_number(const Op& op, std::size_t position, std::string_view name) {
  const double missing = -1e300;
  return number_arg(op, position, name, missing) != missing;
}

/// A kernel that writes into `target` and allocates nothing.
void gather_into(Emitter& e, std::string_view name, const Ref& target, std::initializer_list<const Ref*> inputs) {
  Kernel kernel = e.start(name, KernelClass::Gather, e.layout(target).dtype);
  std::vector<Ref> all{target};
  for (const Ref* input : inputs) {
    all.push_back(*input);
    kernel.read += e.layout(*input).bytes();
  }
  kernel.written = e.layout(target).bytes();
  e.launch(kernel, all, {&target, 1});
}

/// index_put_ with accumulation on a GPU.
std::vector<Ref> sorted_indices(Emitter& e, const BackwardInput& in, const Ref& g) {
  std::vector<Ref> out;
  Dims places;  // several indices are broadcast to each other
  for (std::size_t i = 1; i < in.node.in.size(); ++i) {
    if (is_floating(in.node.in[i].dtype)) return out;
    places = broadcast_sizes(places, in.node.in[i].sizes);
  }
  if (e.machine().options.cpu_threads > 0 || in.node.in.size() < 2) return out;
  std::int64_t count = places.product();
  if (in.node.in[1].dtype == DType::Bool) {  // nonzero, once more
    if (in.node.in.size() > 2) return out;
    count = chosen_by(in.node.in[1], in.node.in[0], e.layout(g));
    out.push_back(e.tape().make_bytes(8 * count * in.node.in[1].sizes.n, SlotCategory::Workspace));
  }
  for (const Bytes bytes : accumulated_put_workspace(count))
    out.push_back(e.tape().make_bytes(bytes, SlotCategory::Workspace));
  return out;
}

/// Zeros of this layout, into which `name` puts the gradient at the saved places.
Ref put_back(Emitter& e, std::string_view zeros, std::string_view name, const Layout& layout, const Ref& index,
             const Ref& g, const BackwardInput* sorts = nullptr) {
  Kernel kernel = e.start(zeros, KernelClass::Elementwise, layout.dtype);
  Ref out = e.tape().make(plain(layout), e.category());
  kernel.written = layout.bytes();
  e.launch(kernel, {&g, zeros == "aten.new_zeros.default" ? 1U : 0U}, {&out, 1});
  const std::vector<Ref> temporary = sorts != nullptr ? sorted_indices(e, *sorts, g) : std::vector<Ref>();
  const Ref whole = sorts != nullptr ? whole_gradient(e, g) : Ref();
  gather_into(e, name, out, {&index, &g});
  return out;
}

/// topk, sort, max along a dimension: the gradient goes to the places that were picked. A dimension that was taken away
/// is there again, as one.
Ref unpicked(Emitter& e, BackwardInput& in, const Ref& g) {
  const Layout& from = in.node.in[0];
  Ref places = in.saved_result(1), values = g;
  if (from.sizes.n > e.layout(g).sizes.n) {
    const std::size_t position = in.node.op->name.starts_with("aten.kthvalue") ? 2 : 1;
    const std::int32_t dim = wrap_dim(int_arg(*in.node.op, position, "dim", -1), from.sizes.n);
    Dims kept;
    for (std::int32_t i = 0; i < from.sizes.n; ++i) kept.push(i == dim ? 1 : e.layout(g).sizes[i < dim ? i : i - 1]);
    places = e.view(places, kept);
    values = e.view(g, kept);
  }
  return put_back(e, "aten.zeros.default", "aten.scatter_.src", from, places, values);
}

Ref pick(Emitter& e, std::string_view name, const Layout& layout, const Ref& g, const Ref& index) {
  return e.fresh(name, KernelClass::Gather, plain(layout), {&g, &index});
}

/// native_group_norm_backward on a GPU: sums of the gradient by channel, the channels' and the groups' factors.
std::vector<Ref> group_norm_scratch(Emitter& e, const BackwardInput& in) {
  std::vector<Ref> out;
  const Layout& x = in.node.in[0];
  if (in.node.op->name != "aten.native_group_norm.default" || e.machine().options.cpu_threads > 0 || x.sizes.n < 2)
    return out;
  const Bytes channels = 4 * x.sizes[0] * x.sizes[1];
  const Bytes groups = 4 * x.sizes[0] * std::max<std::int64_t>(int_arg(*in.node.op, 6, "group", 1), 1);
  const auto temp = [&](Bytes bytes) { out.push_back(e.tape().make_bytes(bytes, SlotCategory::Workspace)); };
  for (int i = 0; i < 2 && x.sizes.n > 2; ++i) temp(channels);
  for (int i = 0; i < 2 && in.wants(0); ++i) temp(groups);
  if (in.wants(0) && in.saved_arg(1) && x.sizes.n > 2) temp(channels);
  return out;
}

/// Kernels that know no mask: cuDNN's and MIOpen's batch norm give all three gradients, prelu's both, oneDNN's
/// convolution the filters' with the bias's.
bool makes_anyway(Emitter& e, const BackwardInput& in, std::size_t i) {
  const std::string_view name = in.node.rule->name;
  if (name == "aten.cudnn_batch_norm.default" || name == "aten.miopen_batch_norm.default")
    return i < 3 && in.saved_result(1) && bool_arg(*in.node.op, 5, "training", true);
  if (name == "aten._prelu_kernel.default") return true;
  return in.node.rule->formula == OpFormula::Convolution && e.machine().options.cpu_threads > 0 && i == 1 &&
         in.node.in[0].dtype != DType::Float64 && in.wants(2);
}

/// Kernels that take a gradient's steps as they are.
bool reads_steps(std::string_view name) {
  for (const std::string_view part : {"grid_sampler", "batch_norm", "replication_pad", "fractional_max_pool"})
    if (name.find(part) != std::string_view::npos) return true;
  return false;
}

/// One kernel of its own: aten.x.default -> aten.x_backward.default, aten.x_forward.default the same.
Grads own_kernel(Emitter& e, BackwardInput& in, const Ref& g) {
  Grads out(in.node.in.size());
  std::string name = out_of_place(in.node.op->name);
  const std::size_t dot = std::min(name.rfind('.'), name.size());
  const std::string tail = "_forward";
  const bool forward = dot > tail.size() && name.compare(dot - tail.size(), tail.size(), tail) == 0;
  name.replace(forward ? dot - tail.size() : dot, forward ? tail.size() : 0, "_backward");
  const bool fixed_statistics =
      name.starts_with("aten.cudnn_batch_norm") && !bool_arg(*in.node.op, 5, "training", true);
  if (fixed_statistics || name.starts_with("aten._native_batch_norm_legit"))
    name = "aten.native_batch_norm_backward.default";
  const bool convolution = in.node.rule->formula == OpFormula::Convolution;
  Kernel kernel = e.start(name, convolution ? KernelClass::Gemm : KernelClass::Reduction, e.layout(g).dtype);
  kernel.convolution = convolution && !unfolds_into_memory(in.node.op);
  if (convolution && in.node.in.size() >= 2) kernel.flops = convolution_backward_flops(in);
  kernel.read = e.layout(g).bytes();
  for (const Ref& saved : in.saved) kernel.read += saved ? e.layout(saved).bytes() : 0;
  Ref beside;
  if (convolution && in.node.in.size() >= 2 && in.wants(1)) {
    const CpuConvolutionBuffers buffers = filter_gradient_buffers(e, in, e.layout(g));
    if (buffers.beside_result > 0) beside = e.tape().make_bytes(buffers.beside_result, SlotCategory::Workspace);
    std::vector<Ref> before;
    for (const Bytes bytes : buffers.before_result)
      before.push_back(e.tape().make_bytes(bytes, SlotCategory::Workspace));
  }
  ConvolutionRoom room(e, in);
  const bool as_it_lies = in.node.rule->kind == KernelClass::Elementwise || in.node.rule->form == OpForm::InPlace ||
                          reads_steps(name) || room.depthwise();
  const Ref whole = as_it_lies ? Ref() : whole_gradient(e, g);
  room.copy_input();
  Grads made(out.size());
  for (const std::size_t i : room.order()) {
    if (!in.wants(i) && !makes_anyway(e, in, i)) continue;
    // prelu's kernel does not sum for a weight that was broadcast; the engine does
    const bool broadcast = i > 0 && in.node.op->name == "aten._prelu_kernel.default";
    made[i] = e.tape().make(plain(in.node.in[broadcast ? 0 : i]), e.category());
    kernel.written += e.layout(made[i]).bytes();
    if (i == 0) room.unfold_for_input();
  }
  room.unfold();
  std::vector<Ref> scratch = group_norm_scratch(e, in);
  if (name == "aten.native_batch_norm_backward.default" && e.machine().options.cpu_threads == 0) {
    const Bytes staging = fixed_statistics ? 0 : batch_norm_staging(e.layout(g), 2);
    if (staging > 0) scratch.push_back(e.tape().make_bytes(staging, SlotCategory::Workspace));
  }
  e.launch(kernel, fixed_statistics ? taken(g, in, "g x0 x1 x3 x4 r1 r2") : taken(g, in), made);
  for (std::size_t i = 0; i < out.size(); ++i)
    if (in.wants(i)) out[i] = std::move(made[i]);
  return out;
}

/// maximum, minimum: equal elements share the gradient.
Grads extremum(Emitter& e, BackwardInput& in, const Ref& g) {
  Grads out(in.node.in.size());
  const Ref a = in.saved_arg(0), b = in.saved_arg(1);
  const bool maximum = in.node.op->name == "aten.maximum.default";
  for (const std::size_t i : {std::size_t{1}, std::size_t{0}}) {
    if (!in.wants(i)) continue;
    Ref half = e.elementwise("aten.div.Scalar", {&g});
    Ref equal = e.elementwise("aten.eq.Tensor", {&a, &b}, DType::Bool);
    out[i] = e.elementwise("aten.where.self", {&equal, &half, &g}, e.layout(g).dtype);
    Ref lost = e.elementwise(maximum == (i == 1) ? "aten.gt.Tensor" : "aten.lt.Tensor", {&a, &b}, DType::Bool);
    gather_into(e, "aten.masked_fill_.Scalar", out[i], {&lost});
  }
  return out;
}

/// g with the reduced dimensions back as ones.
Ref kept_dims(Emitter& e, BackwardInput& in, const Ref& g) {
  const Layout& from = in.node.in[0];
  if (e.layout(g).sizes.n == from.sizes.n || e.layout(g).sizes.n == 0) return g;
  Dims kept = from.sizes;
  for (const std::int32_t dim : reduced_dims(*in.node.op, from.sizes.n)) kept[dim] = 1;
  return contiguous_layout(kept, from.dtype).numel() == e.layout(g).numel() ? e.view(g, kept) : g;
}

/// Of a vector norm, by its order.
Ref norm(Emitter& e, BackwardInput& in, const Ref& self, const Ref& result, const Ref& g) {
  const Op& op = *in.node.op;
  const double order = number_arg(op, 1, op.name == "aten.linalg_vector_norm.default" ? "ord" : "p", 2.0);
  Ref zero;                                                    // until the whole expression is done
  const auto share = [&](const Ref& over, const Ref& under) {  // nothing where the norm is zero
    Ref quotient = e.elementwise("aten.div.Tensor", {&over, &under});
    zero = e.elementwise("aten.eq.Scalar", {&result}, DType::Bool);
    gather_into(e, "aten.masked_fill_.Scalar", quotient, {&zero});
    return quotient;
  };
  if (order == 0.0) return {};
  if (order == 1.0) {
    Ref sign = e.elementwise("aten.sgn.default", {&self});
    return e.elementwise("aten.mul.Tensor", {&sign, &g});
  }
  if (order == 2.0) {
    Ref direction = share(self, result);
    return e.elementwise("aten.mul.Tensor", {&g, &direction});
  }
  Ref size = e.elementwise("aten.abs.default", {&self});
  if (std::isinf(order)) {
    Ref either;
    {
      Ref largest = e.elementwise("aten.eq.Tensor", {&size, &result}, DType::Bool);
      Ref nan = e.elementwise("aten.isnan.default", {&size}, DType::Bool);
      either = e.elementwise("aten.logical_or.default", {&largest, &nan}, DType::Bool);
    }
    Ref count = e.sum(either, reduced_dims(op, in.node.in[0].sizes.n), true, "aten.sum.dim_IntList",
                      KernelClass::Reduction, DType::Int64);
    Ref each = e.elementwise("aten.div.Tensor", {&g, &count});
    Ref there = e.elementwise("aten.mul.Tensor", {&each, &either});
    Ref sign = e.elementwise("aten.sgn.default", {&self});
    return e.elementwise("aten.mul.Tensor", {&sign, &there});
  }
  if (order < 2.0) {
    gather_into(e, "aten.pow_.Scalar", size, {});
    if (order < 1.0) {
      Ref none = e.elementwise("aten.eq.Scalar", {&self}, DType::Bool);
      gather_into(e, "aten.masked_fill_.Scalar", size, {&none});
    }
    Ref sign = e.elementwise("aten.sgn.default", {&self});
    Ref power = e.elementwise("aten.mul.Tensor", {&sign, &size});
    Ref under = e.elementwise("aten.pow.Tensor_Scalar", {&result});
    Ref factor = order < 1.0 ? e.elementwise("aten.mul.Tensor", {&power, &g}) : share(g, under);
    return order < 1.0 ? e.elementwise("aten.mul.Tensor", {&factor, &under})
                       : e.elementwise("aten.mul.Tensor", {&power, &factor});
  }
  gather_into(e, "aten.pow_.Scalar", size, {});
  Ref power = e.elementwise("aten.mul.Tensor", {&self, &size});
  Ref under = e.elementwise("aten.pow.Tensor_Scalar", {&result});
  Ref factor = share(g, under);
  return e.elementwise("aten.mul.Tensor", {&power, &factor});
}

Grads selecting_reductions(Emitter& e, BackwardInput& in, const Ref& g) {
  Grads out(in.node.in.size());
  const Ref self = in.saved_arg(0), result = in.saved_result(0);
  const Layout& from = in.node.in[0];
  const Ref wide = kept_dims(e, in, g);
  if (in.node.rule->formula == OpFormula::LogSumExp) {
    const Ref kept = kept_dims(e, in, result);
    Ref distance = e.elementwise("aten.sub.Tensor", {&self, &kept});
    Ref share = e.elementwise("aten.exp.default", {&distance});
    out[0] = e.elementwise("aten.mul.Tensor", {&wide, &share});
  } else if (in.node.rule->formula == OpFormula::Var) {
    const std::vector<std::int32_t> dims = reduced_dims(*in.node.op, from.sizes.n);
    Ref mean = e.sum(self, dims, !dims.empty(), dims.empty() ? "aten.mean.default" : "aten.mean.dim",
                     KernelClass::Reduction, from.dtype);
    Ref distance = e.elementwise("aten.sub.Tensor", {&self, &mean});
    Ref scaled = e.elementwise("aten.mul.Scalar", {&wide});
    out[0] = e.elementwise("aten.mul.Tensor", {&scaled, &distance});
  } else {
    out[0] = norm(e, in, self, kept_dims(e, in, result), wide);
  }
  return out;
}

/// index_put without accumulation: what was overwritten has no gradient.
Ref without_put(Emitter& e, BackwardInput& in, const Ref& g, const Ref& index) {
  if (bool_arg(*in.node.op, 3, "accumulate", false)) return g;
  const Layout put = puts_tensor(*in.node.op) ? in.node.in.back() : contiguous_layout({}, in.node.in[0].dtype);
  Ref zeros = e.fresh("aten.zeros.default", KernelClass::Elementwise, plain(put), {});
  return e.fresh("aten.index_put.default", KernelClass::Gather, plain(in.node.in[0]), {&g, &index, &zeros}, 2);
}

/// What index_put's index tensors take out of `from`; its values may be broadcast to it.
Layout picked_layout(const Layout& from, const std::vector<Layout>& args) {
  const Layout& values = args.back();
  const auto indices = static_cast<std::int32_t>(args.size()) - 2;
  Layout wide = args[1];
  for (std::size_t i = 2; i + 1 < args.size(); ++i)
    if (args[i].numel() > wide.numel()) wide = args[i];
  if (wide.dtype == DType::Bool || indices > from.sizes.n ||
      wide.sizes.n + from.sizes.n - indices > static_cast<std::int32_t>(kMaxDims))
    return values;
  Dims sizes = wide.sizes;
  for (std::int32_t i = indices; i < from.sizes.n; ++i) sizes.push(from.sizes[i]);
  const Layout picked = contiguous_layout(sizes, values.dtype);
  return picked.numel() > values.numel() ? picked : values;
}

Grads picks(Emitter& e, BackwardInput& in, const Ref& g) {
  Grads out(in.node.in.size());
  const Layout& from = in.node.in[0];
  const Ref index = in.saved_arg(1);
  switch (in.node.rule->formula) {
    case OpFormula::Gather:
      if (in.wants(0)) out[0] = put_back(e, "aten.new_zeros.default", "aten.scatter_add_.default", from, index, g);
      break;
    case OpFormula::IndexSelect:
      if (in.wants(0)) out[0] = put_back(e, "aten.new_zeros.default", "aten.index_add_.default", from, index, g);
      break;
    case OpFormula::Index:
      if (in.wants(0)) out[0] = put_back(e, "aten.new_zeros.default", "aten.index_put_.default", from, index, g, &in);
      break;
    case OpFormula::Pick: out[0] = unpicked(e, in, g); break;
    case OpFormula::ScatterAdd:
    case OpFormula::IndexAdd:
    case OpFormula::IndexPut: {
      const OpFormula formula = in.node.rule->formula;
      if (in.wants(0)) out[0] = formula == OpFormula::IndexPut ? without_put(e, in, g, index) : g;
      const std::size_t values = in.node.in.size() - 1;
      const bool number = formula == OpFormula::IndexPut && !puts_tensor(*in.node.op);
      if (number || values < 2 || !in.wants(values)) break;
      Layout there = in.node.in[values];
      if (formula == OpFormula::IndexPut) there = picked_layout(in.node.in[0], in.node.in);
      out[values] = pick(e,
                         formula == OpFormula::ScatterAdd ? "aten.gather.default"
                         : formula == OpFormula::IndexAdd ? "aten.index_select.default"
                                                          : "aten.index.Tensor",
                         there, g, index);
      if (formula == OpFormula::IndexAdd && number_arg(*in.node.op, 99, "alpha", 1.0) != 1.0)
        out[values] = e.elementwise("aten.mul.Scalar", {&out[values]});
      break;
    }
    default: break;
  }
  return out;
}

/// scatter_reduce: sums go where they came from; the largest and the smallest share among equals.
Grads scatter_reduce(Emitter& e, BackwardInput& in, const Ref& g) {
  Grads out(in.node.in.size());
  const Op& op = *in.node.op;
  const Ref self = in.saved_arg(0), index = in.saved_arg(1), source = in.saved_arg(2), result = in.saved_result(0);
  std::string how = "sum";
  for (const Arg& arg : op.args)
    if (const auto* text = std::get_if<std::string>(&arg.value)) how = *text;
  for (const NamedArg& named : op.kwargs)
    if (const auto* text = std::get_if<std::string>(&named.arg.value); text != nullptr && named.name == "reduce")
      how = *text;
  const bool with_self = bool_arg(op, 5, "include_self", true);
  const auto without_self = [&] {
    if (!with_self)
      out[0] = e.fresh("aten.scatter.value", KernelClass::Gather, plain(in.node.in[0]), {&out[0], &index});
  };
  // Both gradients are made whoever wants them.
  if (how == "mean") {
    Ref count;
    {
      Ref start = e.elementwise(with_self ? "aten.ones_like.default" : "aten.zeros_like.default", {&g});
      Ref ones = e.elementwise("aten.ones_like.default", {&source});
      count = e.fresh("aten.scatter_add.default", KernelClass::Gather, plain(in.node.in[0]), {&start, &index, &ones});
    }
    {
      Ref none = e.elementwise("aten.eq.Scalar", {&count}, DType::Bool);
      gather_into(e, "aten.masked_fill_.Scalar", count, {&none});
    }
    out[0] = e.elementwise("aten.div.Tensor", {&g, &count});
    Ref counts = pick(e, "aten.gather.default", in.node.in[2], count, index);
    {
      Ref there = pick(e, "aten.gather.default", in.node.in[2], g, index);
      out[2] = e.elementwise("aten.div.Tensor", {&there, &counts});
    }
    without_self();
    return out;
  }
  if (how != "amax" && how != "amin") {
    out[0] = g;
    out[2] = pick(e, "aten.gather.default", in.node.in[2], g, index);
    return out;
  }
  const DType dtype = e.layout(g).dtype;
  const auto equal = [&](const Ref& a, const Ref& b) { return e.elementwise("aten.eq.Tensor", {&a, &b}, DType::Bool); };
  Ref there = pick(e, "aten.gather.default", in.node.in[2], result, index);
  Ref mine_count = e.cast(equal(self, result), dtype), theirs_count = e.cast(equal(source, there), dtype);
  Ref count = e.fresh("aten.scatter_add.default", KernelClass::Gather, plain(in.node.in[0]),
                      {&mine_count, &index, &theirs_count});
  Ref each = e.elementwise("aten.div.Tensor", {&g, &count});
  {
    Ref mask = equal(self, result);
    out[0] = e.elementwise("aten.mul.Tensor", {&mask, &each}, dtype);
  }
  {
    Ref back = pick(e, "aten.gather.default", in.node.in[2], each, index), mask = equal(source, there);
    out[2] = e.elementwise("aten.mul.Tensor", {&mask, &back}, dtype);
  }
  without_self();
  return out;
}

/// repeat_backward: the copies side by side as dimensions of their own, summed at once.
Grads repeat(Emitter& e, BackwardInput& in, const Ref& g) {
  Grads out(in.node.in.size());
  const Layout& from = in.node.in[0];
  Ref rest = g;  // new dimensions in front are summed one by one
  for (std::int32_t lead = e.layout(g).sizes.n - from.sizes.n; lead > 0; --lead)
    rest = e.sum(rest, {0}, false, "aten.sum.dim_IntList", KernelClass::Reduction, from.dtype);
  const Layout whole = e.layout(rest);
  Dims split;
  std::vector<std::int32_t> copies;
  for (std::int32_t i = 0; i < whole.sizes.n; ++i) {
    const std::int64_t own = from.sizes[i];
    const std::int64_t times = own > 0 ? whole.sizes[i] / own : 1;
    const bool fits = split.n + 2 <= static_cast<std::int32_t>(kMaxDims);
    if (times != 1 && fits) {
      copies.push_back(split.n);
      split.push(times);
    }
    split.push(own);
  }
  if (copies.empty()) {
    out[0] = rest;
    return out;
  }
  if (contiguous_layout(split, from.dtype).numel() != whole.numel()) {
    out[0] = e.fresh("aten.sum.dim_IntList", KernelClass::Reduction, plain(from), {&rest});
    return out;
  }
  Ref apart = e.reshape(rest, split);
  out[0] = e.sum(apart, copies, false, "aten.sum.dim_IntList", KernelClass::Reduction, from.dtype);
  return out;
}

/// One kernel for each side that wants its gradient.
Grads mse_loss(Emitter& e, BackwardInput& in, const Ref& g) {
  Grads out(in.node.in.size());
  std::string name = in.node.op->name;
  name.insert(std::min(name.rfind('.'), name.size()), "_backward");
  const Ref a = in.saved_arg(0), b = in.saved_arg(1);
  if (in.wants(0)) out[0] = e.fresh(name, KernelClass::Loss, plain(in.node.in[0]), {&g, &a, &b});
  if (in.wants(1)) out[1] = e.fresh(name, KernelClass::Loss, plain(in.node.in[1]), {&g, &b, &a});
  return out;
}

/// Every input is a slice of the gradient.
Grads stack(Emitter& e, BackwardInput& in, const Ref& g) {
  Grads out(in.node.in.size());
  const std::int32_t dim = wrap_dim(int_arg(*in.node.op, 1, "dim", 0), e.layout(g).sizes.n);
  for (std::size_t i = 0; i < out.size(); ++i) {
    Layout layout = plain(in.node.in[i]);
    for (std::int32_t d = 0; d < layout.sizes.n; ++d) layout.strides[d] = e.layout(g).strides[d < dim ? d : d + 1];
    if (in.wants(i)) out[i] = e.tape().alias(g, layout);
  }
  return out;
}

/// Nothing where a bound was met.
Grads clamp(Emitter& e, BackwardInput& in, const Ref& g) {
  Grads out(in.node.in.size());
  const Ref self = in.saved_arg(0);
  Ref zero =
      e.fresh("aten.scalar_tensor.default", KernelClass::Elementwise, contiguous_layout(Dims{}, e.layout(g).dtype), {});
  const Op& op = *in.node.op;
  const bool only_high = op.name.starts_with("aten.clamp_max");
  const bool low = !only_high && has_number(op, 1, "min");
  const bool high = only_high || has_number(op, 2, "max");
  Ref inside = e.elementwise(low || !high ? "aten.ge.Scalar" : "aten.le.Scalar", {&self}, DType::Bool);
  Ref below;  // stays until the statement's end
  if (low && high) {
    below = e.elementwise("aten.le.Scalar", {&self}, DType::Bool);
    gather_into(e, "aten.logical_and_.default", inside, {&below});
  }
  out[0] = e.elementwise("aten.where.self", {&inside, &g, &zero}, e.layout(g).dtype);
  return out;
}

/// The copies of each element lie side by side.
Grads repeat_interleave(Emitter& e, BackwardInput& in, const Ref& g) {
  Grads out(in.node.in.size());
  const Layout& from = in.node.in[0];
  const bool flat = std::none_of(in.node.op->args.begin() + std::min<std::ptrdiff_t>(2, std::ssize(in.node.op->args)),
                                 in.node.op->args.end(),
                                 [](const Arg& arg) { return std::holds_alternative<std::int64_t>(arg.value); }) &&
                    int_arg(*in.node.op, 99, "dim", -100) == -100;
  Dims sizes = from.sizes;
  std::int32_t dim = wrap_dim(int_arg(*in.node.op, 2, "dim", 0), from.sizes.n);
  if (flat) {
    sizes = Dims{};
    sizes.push(from.numel());
    dim = 0;
  }
  const std::int64_t times = from.numel() > 0 ? e.layout(g).numel() / from.numel() : 1;
  Dims apart;
  for (std::int32_t i = 0; i < sizes.n; ++i) {
    apart.push(sizes[i]);
    if (i == dim) apart.push(times);
  }
  Ref copies = e.reshape(g, apart);
  Ref all = e.sum(copies, {dim + 1}, true, "aten.sum.dim_IntList", KernelClass::Reduction, from.dtype);
  out[0] = e.view(all, from.sizes);
  return out;
}

/// What was overwritten has no gradient; what was put in has its own.
Grads scatter_value(Emitter& e, BackwardInput& in, const Ref& g) {
  Grads out(in.node.in.size());
  const Ref index = in.saved_arg(1);
  if (in.wants(0)) out[0] = e.fresh("aten.scatter.value", KernelClass::Gather, plain(in.node.in[0]), {&g, &index});
  if (in.wants(2)) out[2] = pick(e, "aten.gather.default", in.node.in[2], g, index);
  return out;
}

}  // namespace

std::vector<Ref> backward_of_more(Emitter& e, BackwardInput& in, const Ref& g) {
  Grads out(in.node.in.size());
  switch (in.node.rule->formula) {
    case OpFormula::Gather:
    case OpFormula::IndexSelect:
    case OpFormula::Index:
    case OpFormula::Pick:
    case OpFormula::ScatterAdd:
    case OpFormula::IndexAdd:
    case OpFormula::IndexPut: return picks(e, in, g);
    case OpFormula::Convolution:
    case OpFormula::OwnKernel: return own_kernel(e, in, g);
    case OpFormula::Extremum: return extremum(e, in, g);
    case OpFormula::QuantisedLinear: return quantised_linear_backward(e, in, g);
    case OpFormula::LogSumExp:
    case OpFormula::Var:
    case OpFormula::VectorNorm: return selecting_reductions(e, in, g);
    case OpFormula::MseLoss: return mse_loss(e, in, g);
    case OpFormula::Stack: return stack(e, in, g);
    case OpFormula::Clamp: return clamp(e, in, g);
    case OpFormula::Roll: out[0] = e.elementwise(out_of_place(in.node.op->name), {&g}); return out;
    case OpFormula::Zeros: out[0] = e.elementwise("aten.zeros_like.default", {&g}); return out;
    case OpFormula::Repeat: return repeat(e, in, g);
    case OpFormula::RepeatInterleave: return repeat_interleave(e, in, g);
    case OpFormula::ScatterValue: return scatter_value(e, in, g);
    case OpFormula::ScatterReduce: return scatter_reduce(e, in, g);
    default: return out;
  }
}

}  // namespace foreshard::lowering
