// Operators at work, backward: the kernels of every formula in PyTorch's order, with the temporaries that a C++
// expression keeps until its end. Gradients come back per tensor argument; the engine sums them to the argument's shape
// afterwards.
#include "core/lowering/backward/backward.h"
#include "core/lowering/composed/composed.h"

#include <algorithm>
#include <array>

#include "core/lowering/float8/float8_products.h"
#include "core/lowering/lowering_machine.h"
#include "core/lowering/mesh_rules.h"

namespace foreshard::lowering {

Ref whole_gradient(Emitter& e, const Ref& g) {
  const Layout layout = e.layout(g);
  if (e.machine().options.cpu_threads > 0 || layout.contiguous()) return {};
  return e.tape().make_bytes(layout.bytes(), SlotCategory::Temporary);
}

namespace {

using Grads = std::vector<Ref>;

bool column_major(const Layout& layout) {
  return layout.sizes.n == 2 && layout.strides[0] == 1 && layout.strides[1] == layout.sizes[0] && !layout.contiguous();
}

/// d(mat1) of mat1 @ mat2.
Ref mm_left(Emitter& e, const Ref& g, const Ref& mat2, const Layout& mat1) {
  if (column_major(mat1)) {
    Ref gt = e.transpose(g, 0, 1);
    Ref out = e.matmul("aten.mm.default", mat2, gt);
    return e.transpose(out, 0, 1);
  }
  Ref t = e.transpose(mat2, 0, 1);
  return e.matmul("aten.mm.default", g, t);
}

/// d(mat2) of mat1 @ mat2.
Ref mm_right(Emitter& e, const Ref& g, const Ref& mat1, const Layout& mat2) {
  if (column_major(mat2)) {
    Ref gt = e.transpose(g, 0, 1);
    Ref out = e.matmul("aten.mm.default", gt, mat1);
    return e.transpose(out, 0, 1);
  }
  Ref t = e.transpose(mat1, 0, 1);
  return e.matmul("aten.mm.default", t, g);
}

Grads products(Emitter& e, BackwardInput& in, const Ref& g) {
  Grads out(in.node.in.size());
  switch (in.node.rule->formula) {
    case OpFormula::Mm:
      if (in.wants(1)) out[1] = mm_right(e, g, in.saved_arg(0), in.node.in[1]);
      if (in.wants(0)) out[0] = mm_left(e, g, in.saved_arg(1), in.node.in[0]);
      break;
    case OpFormula::Addmm:
      if (in.wants(1)) out[1] = times(e, in, "alpha", mm_left(e, g, in.saved_arg(2), in.node.in[1]));
      if (in.wants(2)) out[2] = times(e, in, "alpha", mm_right(e, g, in.saved_arg(1), in.node.in[2]));
      if (in.wants(0)) out[0] = times(e, in, "beta", g);
      break;
    case OpFormula::Addbmm: {  // the sum over the batch: every product has the whole gradient
      const Layout& left = in.node.in[1];
      Dims sizes = e.layout(g).sizes;
      if (left.sizes.n != 3 || sizes.n != 2) break;
      Dims wide;
      wide.push(left.sizes[0]);
      wide.push(sizes[0]);
      wide.push(sizes[1]);
      const Ref all = e.expand(g, wide);
      if (in.wants(1)) {
        Ref t = e.transpose(in.saved_arg(2), 1, 2);
        out[1] = times(e, in, "alpha", e.matmul("aten.bmm.default", all, t));
      }
      if (in.wants(2)) {
        Ref t = e.transpose(in.saved_arg(1), 1, 2);
        out[2] = times(e, in, "alpha", e.matmul("aten.bmm.default", t, all));
      }
      if (in.wants(0)) out[0] = times(e, in, "beta", g);
      break;
    }
    case OpFormula::Bmm:
      if (in.wants(1)) {
        Ref t = e.transpose(in.saved_arg(0), 1, 2);
        out[1] = e.matmul("aten.bmm.default", t, g);
      }
      if (in.wants(0)) {
        Ref t = e.transpose(in.saved_arg(1), 1, 2);
        out[0] = e.matmul("aten.bmm.default", g, t);
      }
      break;
    case OpFormula::Baddbmm:
      if (in.wants(1)) {
        Ref t = e.transpose(in.saved_arg(2), 1, 2);
        out[1] = times(e, in, "alpha", e.matmul("aten.bmm.default", g, t));
      }
      if (in.wants(2)) {
        Ref t = e.transpose(in.saved_arg(1), 1, 2);
        out[2] = times(e, in, "alpha", e.matmul("aten.bmm.default", t, g));
      }
      if (in.wants(0)) out[0] = times(e, in, "beta", g);
      break;
    default: break;
  }
  return out;
}

/// linear(x, w, b) as one operator: exported programs have it; on a GPU it runs as addmm or mm on flattened views.
Grads linear(Emitter& e, BackwardInput& in, const Ref& g) {
  Grads out(in.node.in.size());
  const Layout& x = in.node.in[0];
  const auto flat = [](const Layout& layout) {
    Dims sizes;
    const std::int64_t last = layout.sizes.n > 0 ? layout.sizes[layout.sizes.n - 1] : 1;
    sizes.push(last > 0 ? layout.numel() / last : 0);
    sizes.push(last);
    return sizes;
  };
  Ref rows = e.reshape(g, flat(e.layout(g)));
  if (in.wants(1)) {
    Ref input = e.reshape(in.saved_arg(0), flat(x));
    Ref gt = e.transpose(rows, 0, 1);
    out[1] = e.matmul("aten.mm.default", gt, input);
  }
  if (in.wants(0)) {
    Ref d = e.matmul("aten.mm.default", rows, in.saved_arg(1));
    out[0] = e.view(d, x.sizes);
  }
  if (in.wants(2)) out[2] = rows;
  return out;
}

/// `count` elements of dimension `dim` of the gradient, as a view.
Ref narrow(Emitter& e, const Ref& g, std::int32_t dim, std::int64_t count) {
  Layout layout = e.layout(g);
  if (dim < layout.sizes.n) layout.sizes[dim] = count;
  return e.tape().alias(g, layout);
}

Ref join(Emitter& e, BackwardInput& in, const Layout& whole) {  // split, unbind: the pieces side by side
  const DType dtype = whole.dtype;
  for (std::size_t i = 0; i < in.grads.size(); ++i)
    if (!in.grads[i])
      in.grads[i] =
          e.fresh("aten.zeros.default", KernelClass::Elementwise, contiguous_layout(in.node.out[i].sizes, dtype), {});
  Kernel kernel = e.start(in.node.rule->formula == OpFormula::Unbind ? "aten.stack.default" : "aten.cat.default",
                          KernelClass::Copy, dtype);
  kernel.read = whole.bytes();
  Ref out = e.tape().make(contiguous_layout(whole.sizes, dtype), e.category());
  kernel.written = whole.bytes();
  e.launch(kernel, in.grads, {&out, 1});
  return out;
}

Grads shapes(Emitter& e, BackwardInput& in, const Ref& g) {
  Grads out(in.node.in.size());
  const Op& op = *in.node.op;
  const Layout& from = in.node.in[0];
  const std::int32_t n = from.sizes.n;
  switch (in.node.rule->formula) {
    case OpFormula::View: out[0] = e.reshape(g, from.sizes); break;
    case OpFormula::Alias:
    case OpFormula::Clone: out[0] = g; break;
    case OpFormula::ToCopy: out[0] = e.cast(g, from.dtype); break;
    case OpFormula::Unsqueeze:
    case OpFormula::Squeeze: out[0] = e.view(g, from.sizes); break;
    case OpFormula::Expand: out[0] = e.sum_to(g, from.sizes); break;
    case OpFormula::ExpandEach:
      for (std::size_t i = out.size(); i-- > 0;)
        if (in.wants(i) && i < in.grads.size() && in.grads[i]) out[i] = e.sum_to(in.grads[i], in.node.in[i].sizes);
      break;
    case OpFormula::Transpose: {
      Layout layout = e.layout(g);
      if (op.name.starts_with("aten.permute")) {
        const Layout given = layout;
        const auto order = list_arg(op, 1, "dims");
        for (std::int32_t i = 0; i < n && static_cast<std::size_t>(i) < order.size(); ++i) {
          layout.sizes[wrap_dim(order[static_cast<std::size_t>(i)], n)] = given.sizes[i];
          layout.strides[wrap_dim(order[static_cast<std::size_t>(i)], n)] = given.strides[i];
        }
        out[0] = e.tape().alias(g, layout);
      } else if (n >= 2) {
        const bool named = op.name != "aten.t.default" && op.name != "aten.numpy_T.default";
        out[0] = e.transpose(g, wrap_dim(named ? int_arg(op, 1, "dim0", 0) : 0, n),
                             wrap_dim(named ? int_arg(op, 2, "dim1", 1) : 1, n));
      } else {
        out[0] = g;
      }
      break;
    }
    case OpFormula::Slice:
      out[0] =
          e.fresh("aten.slice_backward.default", KernelClass::Copy, contiguous_layout(from.sizes, from.dtype), {&g}, 2);
      break;
    case OpFormula::Select:
      out[0] = e.fresh("aten.select_backward.default", KernelClass::Copy, contiguous_layout(from.sizes, from.dtype),
                       {&g}, 2);
      break;
    case OpFormula::Split:
    case OpFormula::Unbind: out[0] = join(e, in, from); break;
    case OpFormula::Cat: {
      const std::int32_t dim = wrap_dim(int_arg(op, 1, "dim", 0), n);
      for (std::size_t i = 0; i < out.size(); ++i)
        if (in.wants(i)) out[i] = narrow(e, g, dim, in.node.in[i].sizes[dim]);
      break;
    }
    case OpFormula::Pad:
      out[0] =
          e.fresh("aten.constant_pad_nd.default", KernelClass::Copy, contiguous_layout(from.sizes, from.dtype), {&g});
      break;
    default: break;
  }
  return out;
}

Ref softmax(Emitter& e, BackwardInput& in, const Ref& g) {
  const Layout& from = in.node.in[0];
  const Ref result = in.saved_result(0);
  const bool log = in.node.rule->formula == OpFormula::LogSoftmax;
  Kernel kernel = e.start(log ? "aten._log_softmax_backward_data.default" : "aten._softmax_backward_data.default",
                          log ? KernelClass::Loss : KernelClass::Reduction, e.layout(g).dtype);
  const Ref whole = log ? whole_gradient(e, g) : Ref();
  Ref made = e.tape().make(contiguous_layout(from.sizes, from.dtype), e.category());
  Ref product, rows;  // inside the operator on CUDA: gradient times result, which lies as the gradient does, in rows
  if (!log && e.machine().options.cpu_threads == 0) {
    const Layout given = e.layout(g), forward = e.layout(result);
    const std::array<const Layout*, 2> factors{&given, &forward};
    product = e.tape().make(elementwise_layout(factors, from.sizes, given.dtype), SlotCategory::Temporary);
    rows = whole_gradient(e, product);
    kernel.launches += rows ? 2 : 1;
  }
  e.finish(kernel, {&g, &result}, {&made});
  return made;
}

Grads layer_norm(Emitter& e, BackwardInput& in, const Ref& g) {
  Grads out(in.node.in.size());
  const Layout& from = in.node.in[0];
  const Ref input = in.saved_arg(0), weight = in.saved_arg(1);
  Kernel kernel = e.start("aten.native_layer_norm_backward.default", KernelClass::Reduction, from.dtype);
  kernel.launches = 2;
  const Ref whole = whole_gradient(e, g), whole_input = whole_gradient(e, input);
  for (std::size_t i = 0; i < out.size() && i < 3; ++i)
    if (in.wants(i)) out[i] = e.tape().make(contiguous_layout(in.node.in[i].sizes, in.node.in[i].dtype), e.category());
  kernel.read = e.layout(g).bytes() + e.layout(input).bytes() + (weight ? e.layout(weight).bytes() : 0);
  kernel.written = out[0] ? from.bytes() : 0;
  e.launch(kernel, taken(g, in), out);
  return out;
}

Grads reductions(Emitter& e, BackwardInput& in, const Ref& g) {
  Grads out(in.node.in.size());
  const Op& op = *in.node.op;
  const Layout& from = in.node.in[0];
  switch (in.node.rule->formula) {
    case OpFormula::Sum:
    case OpFormula::Mean: {
      Ref wide = g;
      if (e.layout(g).sizes.n != from.sizes.n && e.layout(g).sizes.n > 0) {  // keepdim was false
        Dims kept = from.sizes;
        for (const std::int64_t dim : list_arg(op, 1, "dim")) kept[wrap_dim(dim, from.sizes.n)] = 1;
        wide = e.view(g, kept);
      }
      out[0] = e.expand(wide, from.sizes);
      if (in.node.rule->formula == OpFormula::Mean) {
        const Ref expanded = out[0];
        out[0] = e.fresh("aten.div.Scalar", KernelClass::Elementwise, contiguous_layout(from.sizes, e.layout(g).dtype),
                         {&expanded});
      }
      break;
    }
    case OpFormula::Cumsum: {
      if (from.sizes.n == 0 || from.sizes[wrap_dim(int_arg(op, 1, "dim", 0), from.sizes.n)] == 1) {  // nothing to add
        out[0] = g;
        break;
      }
      Ref flipped = e.elementwise("aten.flip.default", {&g});
      Ref summed =
          e.fresh("aten.cumsum.default", KernelClass::Reduction, contiguous_layout(from.sizes, from.dtype), {&flipped});
      out[0] = e.elementwise("aten.flip.default", {&summed});
      break;
    }
    case OpFormula::Softmax:
    case OpFormula::LogSoftmax: out[0] = softmax(e, in, g); break;
    case OpFormula::NllLoss: {
      Kernel kernel = e.start("aten.nll_loss_backward.default", KernelClass::Loss, from.dtype);
      kernel.launches = 2;
      kernel.read = e.layout(g).bytes();
      out[0] = e.tape().make(contiguous_layout(from.sizes, from.dtype), e.category());
      kernel.written = from.bytes();
      e.launch(kernel, taken(g, in), {out.data(), 1});
      break;
    }
    case OpFormula::LayerNorm: return layer_norm(e, in, g);
    default: break;
  }
  return out;
}

Grads embedding(Emitter& e, BackwardInput& in, const Ref& g) {
  // embedding_dense_backward on CUDA: up to 3072 indices one kernel, else sort, unique, scans and per-segment sums.
  // Bags are always sorted, but where the greatest of a bag knows its row.
  constexpr std::int64_t kRowsPerThread = 10, kWarp = 32, kFewIndices = 3072;
  Grads out(in.node.in.size());
  const Layout& weight = in.node.in[0];
  const std::int64_t count = in.node.in[1].numel();
  Tape& tape = e.tape();
  const bool bags = in.node.op->name.starts_with("aten._embedding_bag");
  const bool greatest = bags && int_arg(*in.node.op, 4, "mode", 0) == 2;
  Kernel kernel = e.start(bags ? "aten._embedding_bag_backward.default" : "aten.embedding_dense_backward.default",
                          KernelClass::Gather, weight.dtype);
  const Ref whole = whole_gradient(e, g);
  kernel.written = weight.bytes();
  kernel.read = e.layout(g).bytes() + 8 * count;
  if ((count <= kFewIndices && !bags) || greatest || e.machine().options.cpu_threads > 0) {
    out[0] = tape.make(contiguous_layout(weight.sizes, weight.dtype), e.category());
    kernel.launches = 2;
    e.launch(kernel, taken(g, in), out);
    return out;
  }
  const Bytes indices = 8 * count;
  const std::int64_t segments = std::min(count, weight.sizes[0]);
  const std::int64_t partial = count / kRowsPerThread + segments;
  const std::int64_t width = round_up(weight.sizes.n > 1 ? weight.sizes[1] : 1, kWarp);
  const auto temp = [&](Bytes bytes) { return tape.make_bytes(bytes, SlotCategory::Workspace); };
  Ref sorted = temp(indices), original = temp(indices);
  {
    Ref range = temp(indices), cub = temp(count <= kFewIndices ? 1 : 20 * count + 1535);
    Kernel sort = kernel;
    sort.read = 4 * indices;
    sort.written = 4 * indices;
    sort.launches = 6;
    tape.kernel(sort);
    cub.reset();
  }
  out[0] = tape.make(contiguous_layout(weight.sizes, weight.dtype), e.category());
  Ref offsets = temp(indices), number = temp(8);
  { Ref dummy = temp(indices), cub = temp(1279); }
  Ref per_segment = temp(8 * segments), per_segment_offset = temp(8 * segments);
  { Ref cub = temp(1279); }
  Ref partial_number = temp(8), partial_offset = temp(8 * partial);
  Ref sums = temp(4 * partial * width);
  kernel.launches = 8;
  tape.kernel(kernel);
  return out;
}

Grads unknown(Emitter& e, BackwardInput& in, const Ref& g) {
  Grads out(in.node.in.size());
  Kernel kernel = e.start(in.node.op->name + ".backward", KernelClass::Elementwise, e.layout(g).dtype);
  kernel.unknown = true;
  for (std::size_t i = 0; i < out.size(); ++i)
    if (in.wants(i)) out[i] = e.tape().make(contiguous_layout(in.node.in[i].sizes, in.node.in[i].dtype), e.category());
  for (const Layout& layout : in.node.in) kernel.read += 2 * layout.bytes();
  for (const Layout& layout : in.node.out) kernel.written += 2 * layout.bytes();
  e.launch(kernel, taken(g, in), out);
  return out;
}

}  // namespace

// One long function on purpose: where each formula stands, a line each.
std::vector<Ref> backward_of(Emitter& emit, BackwardInput& in) {
  using F = OpFormula;
  const F formula = in.node.rule->formula;
  Ref g;  // of the first result that has one
  for (const Ref& grad : in.grads)
    if (grad) {
      g = grad;
      break;
    }
  if (!g) return std::vector<Ref>(in.node.in.size());
  switch (formula) {
    case F::Mm:
    case F::Addmm:
    case F::Bmm:
    case F::Addbmm:
    case F::Baddbmm: return products(emit, in, g);
    case F::Linear: return linear(emit, in, g);
    case F::Mesh: return mesh_backward(emit, in, g);
    case F::View:
    case F::Alias:
    case F::Clone:
    case F::ToCopy:
    case F::Unsqueeze:
    case F::Squeeze:
    case F::Expand:
    case F::ExpandEach:
    case F::Transpose:
    case F::Slice:
    case F::Select:
    case F::Split:
    case F::Unbind:
    case F::Cat:
    case F::Pad: return shapes(emit, in, g);
    case F::Sum:
    case F::Cumsum:
    case F::Mean:
    case F::Softmax:
    case F::LogSoftmax:
    case F::NllLoss:
    case F::LayerNorm: return reductions(emit, in, g);
    case F::Embedding: return embedding(emit, in, g);
    case F::AsStrided: return backward_of_as_strided(emit, in, g);
    case F::FlashAttention:
    case F::EfficientAttention: return backward_of_attention(emit, in, g);
    case F::Gather:
    case F::ScatterAdd:
    case F::IndexSelect:
    case F::IndexAdd:
    case F::Index:
    case F::IndexPut:
    case F::Pick:
    case F::Extremum:
    case F::MseLoss:
    case F::Stack:
    case F::Clamp:
    case F::Roll:
    case F::Var:
    case F::VectorNorm:
    case F::LogSumExp:
    case F::Convolution:
    case F::QuantisedLinear:
    case F::OwnKernel:
    case F::Repeat:
    case F::RepeatInterleave:
    case F::ScatterValue:
    case F::ScatterReduce:
    case F::Zeros: return backward_of_more(emit, in, g);
    case F::GroupedMm: return grouped_product_backward(emit, in, g);
    case F::TriangularSolve: return triangular_solve_backward(emit, in, g);
    case F::IntegerLinear: return integer_linear_backward(emit, in, g);
    case F::FusedLoss: return fused_loss_backward(emit, in, g);
    case F::Float8Linear: return float8_linear_backward(emit, in, g);
    case F::EuclideanDist: return euclidean_distances_backward(emit, in, g);
    case F::BlockDiag: return block_diag_backward(emit, in, g);
    case F::AffineGrid: return affine_grid_backward(emit, in, g);
    case F::FlexAttention: return flex_attention_backward(emit, in, g);
    case F::Written: return backward_of_written(emit, in);
    case F::ConvolutionBackward: return convolution_double_backward(emit, in);
    case F::Unknown: return unknown(emit, in, g);
    case F::None: return std::vector<Ref>(in.node.in.size());
    default: return backward_of_pointwise(emit, in, g);
  }
}

}  // namespace foreshard::lowering
