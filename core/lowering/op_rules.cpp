// The table of operator rules, one row an operator. One long file on purpose: a newcomer adds a line beside its like.
#include "core/lowering/op_rules.h"

#include "core/lowering/mesh_rules.h"

#include <algorithm>
#include <deque>
#include <string>
#include <utility>
#include <vector>

namespace foreshard {

namespace {

using F = OpForm;
using B = OpFormula;
using K = KernelClass;

constexpr SaveRule in(int index, int if_grad = 0) {
  return {false, static_cast<std::uint8_t>(index), static_cast<std::uint8_t>(if_grad)};
}
constexpr SaveRule out(int index, int if_grad = 0) {
  return {true, static_cast<std::uint8_t>(index), static_cast<std::uint8_t>(if_grad)};
}

constexpr OpRule row(std::string_view name, OpForm form, OpFormula formula, KernelClass kind,
                     std::initializer_list<SaveRule> saves = {}, int launches = 1) {
  OpRule rule{name, form, formula, kind, {}, 0, static_cast<std::uint8_t>(launches)};
  for (const SaveRule& save : saves) rule.saves[rule.save_count++] = save;
  return rule;
}

/// Only the first result has a gradient.
constexpr OpRule first_only(OpRule rule) {
  rule.first_only = true;
  return rule;
}

/// The one kernel of backward takes these, in order ("g x0 r1"), not the gradient, what is kept of the arguments and of
/// the results.
constexpr OpRule takes(std::string_view order, OpRule rule) {
  rule.written = order;
  return rule;
}

/// Backward is what `formula` says: see op_rules_written.cpp.
constexpr OpRule written(std::string_view name, std::string_view formula, std::initializer_list<SaveRule> saves = {},
                         OpForm form = F::Elementwise, KernelClass kind = K::Elementwise) {
  OpRule rule = row(name, form, B::Written, kind, saves);
  rule.written = formula;
  return rule;
}

// Bits of if_grad: 1 = first tensor argument, 2 = second, 4 = third. The order of saves is PyTorch's: early stop
// depends on it.
constexpr OpRule kRules[] = {
    // --- views ---
    row("aten.view.default", F::View, B::View, K::Copy),
    row("aten._unsafe_view.default", F::View, B::View, K::Copy),
    row("aten.reshape.default", F::Reshape, B::View, K::Copy),
    row("aten.flatten.using_ints", F::Reshape, B::View, K::Copy),
    row("aten.unflatten.int", F::View, B::View, K::Copy),
    row("aten.alias.default", F::Alias, B::Alias, K::Copy),
    row("aten.detach.default", F::Alias, B::None, K::Copy),
    row("aten.detach_.default", F::Alias, B::None, K::Copy),
    row("aten.lift_fresh.default", F::Alias, B::None, K::Copy),
    row("aten.t.default", F::Transpose, B::Transpose, K::Copy),
    row("aten.numpy_T.default", F::Transpose, B::Transpose, K::Copy),
    row("aten.transpose.int", F::Transpose, B::Transpose, K::Copy),
    row("aten.permute.default", F::Transpose, B::Transpose, K::Copy),
    row("aten.unsqueeze.default", F::Unsqueeze, B::Unsqueeze, K::Copy),
    row("aten.squeeze.dim", F::Squeeze, B::Squeeze, K::Copy),
    row("aten.squeeze.default", F::Squeeze, B::Squeeze, K::Copy),
    row("aten.squeeze.dims", F::Squeeze, B::Squeeze, K::Copy),
    row("aten.expand.default", F::Expand, B::Expand, K::Copy),
    row("aten.expand_as.default", F::Expand, B::Expand, K::Copy),
    row("aten.slice.Tensor", F::Slice, B::Slice, K::Copy),
    row("aten.narrow.default", F::Slice, B::Slice, K::Copy),
    row("aten.split.Tensor", F::Slice, B::Split, K::Copy),
    row("aten.split_with_sizes.default", F::Slice, B::Split, K::Copy),
    row("aten.chunk.default", F::Slice, B::Split, K::Copy),
    row("aten.unsafe_split.Tensor", F::Slice, B::Split, K::Copy),
    row("aten.unsafe_split_with_sizes.default", F::Slice, B::Split, K::Copy),
    row("aten.unsafe_chunk.default", F::Slice, B::Split, K::Copy),
    row("aten.select.int", F::Select, B::Select, K::Copy),
    row("aten.unbind.int", F::Select, B::Unbind, K::Copy),
    row("aten.broadcast_tensors.default", F::ExpandEach, B::ExpandEach, K::Copy),
    row("aten._conj.default", F::Alias, B::Unsqueeze, K::Copy),
    row("aten._reshape_alias.default", F::View, B::View, K::Copy),
    written("aten.view_as_complex.default", "0: as_real g", {}, F::AsComplex, K::Copy),
    written("aten.view_as_real.default", "0: as_complex g", {}, F::AsReal, K::Copy),
    // --- copies ---
    row("aten.contiguous.default", F::CopyIfNeeded, B::Clone, K::Copy),
    row("aten.clone.default", F::Elementwise, B::Clone, K::Copy),
    row("aten.lift_fresh_copy.default", F::Elementwise, B::Clone, K::Copy),
    row("aten._to_copy.default", F::Elementwise, B::ToCopy, K::Copy),
    row("aten.to.dtype", F::Elementwise, B::ToCopy, K::Copy),
    row("aten.cat.default", F::Contiguous, B::Cat, K::Copy),
    row("aten.constant_pad_nd.default", F::Contiguous, B::Pad, K::Copy, {}, 2),
    row("aten.tril.default", F::LikeFirst, B::Tril, K::Elementwise),
    row("aten.triu.default", F::LikeFirst, B::Tril, K::Elementwise),
    // --- made from nothing ---
    row("aten.arange.default", F::Contiguous, B::None, K::Elementwise),
    row("aten.arange.start", F::Contiguous, B::None, K::Elementwise),
    row("aten.arange.start_step", F::Contiguous, B::None, K::Elementwise),
    row("aten.ones.default", F::Contiguous, B::None, K::Elementwise),
    row("aten.zeros.default", F::Contiguous, B::None, K::Elementwise),
    row("aten.full.default", F::Contiguous, B::None, K::Elementwise),
    row("aten.scalar_tensor.default", F::Contiguous, B::None, K::Elementwise),
    row("aten.new_ones.default", F::Contiguous, B::None, K::Elementwise),
    row("aten.new_zeros.default", F::Contiguous, B::None, K::Elementwise),
    row("aten.new_full.default", F::Contiguous, B::None, K::Elementwise),
    row("aten.new_empty.default", F::Contiguous, B::None, K::Elementwise, {}, 0),
    row("aten.empty.memory_format", F::Contiguous, B::None, K::Elementwise, {}, 0),
    row("aten.empty_like.default", F::LikeFirst, B::None, K::Elementwise, {}, 0),
    row("aten.ones_like.default", F::LikeFirst, B::None, K::Elementwise),
    row("aten.zeros_like.default", F::LikeFirst, B::None, K::Elementwise),
    row("aten.full_like.default", F::LikeFirst, B::None, K::Elementwise),
    // --- in place ---
    row("aten.bernoulli_.float", F::InPlace, B::Zeros, K::Elementwise),
    row("aten.div_.Scalar", F::InPlace, B::Div, K::Elementwise),
    row("aten.fill_.Scalar", F::InPlace, B::Zeros, K::Elementwise),
    row("aten.add_.Tensor", F::InPlace, B::Add, K::Elementwise),
    row("aten.add_.Scalar", F::InPlace, B::Add, K::Elementwise),
    row("aten.mul_.Scalar", F::InPlace, B::Mul, K::Elementwise),
    row("aten.relu_.default", F::InPlace, B::Relu, K::Elementwise, {out(0)}),
    row("aten.masked_fill_.Scalar", F::InPlace, B::MaskedFill, K::Elementwise, {in(1)}),
    row("aten.zero_.default", F::InPlace, B::Zeros, K::Elementwise),
    written("aten.copy_.default", "0: zeros_like g | 1: = g", {}, F::InPlace, K::Copy),
    // --- elementwise ---
    row("aten.add.Tensor", F::Elementwise, B::Add, K::Elementwise),
    row("aten.add.Scalar", F::Elementwise, B::Add, K::Elementwise),
    row("aten.sub.Tensor", F::Elementwise, B::Sub, K::Elementwise),
    row("aten.sub.Scalar", F::Elementwise, B::Sub, K::Elementwise),
    row("aten.mul.Tensor", F::Elementwise, B::Mul, K::Elementwise, {in(1, 1), in(0, 2)}),
    row("aten.mul.Scalar", F::Elementwise, B::Mul, K::Elementwise, {in(1, 1), in(0, 2)}),
    row("aten.div.Tensor", F::Elementwise, B::Div, K::Elementwise, {in(1, 3), in(0, 2)}),
    row("aten.div.Scalar", F::Elementwise, B::Div, K::Elementwise),
    row("aten.neg.default", F::Elementwise, B::Neg, K::Elementwise),
    row("aten.pow.Tensor_Scalar", F::Elementwise, B::Pow, K::Elementwise, {in(0)}),
    row("aten.pow.Scalar", F::Elementwise, B::PowOfScalar, K::Elementwise, {in(0), out(0)}),
    row("aten.square.default", F::Elementwise, B::Pow, K::Elementwise, {in(0)}),
    row("aten.erf.default", F::Elementwise, B::Erf, K::Elementwise, {in(0)}),
    row("aten.expm1.default", F::Elementwise, B::Expm1, K::Elementwise, {out(0)}),
    row("aten.log1p.default", F::Elementwise, B::Log1p, K::Elementwise, {in(0)}),
    row("aten.log2.default", F::Elementwise, B::Log2, K::Elementwise, {in(0)}),
    row("aten.log10.default", F::Elementwise, B::Log2, K::Elementwise, {in(0)}),
    row("aten.floor.default", F::Elementwise, B::Zeros, K::Elementwise),
    row("aten.ceil.default", F::Elementwise, B::Zeros, K::Elementwise),
    row("aten.round.default", F::Elementwise, B::Zeros, K::Elementwise),
    row("aten.trunc.default", F::Elementwise, B::Zeros, K::Elementwise),
    row("aten.sign.default", F::Elementwise, B::Zeros, K::Elementwise),
    row("aten.rsqrt.default", F::Elementwise, B::Rsqrt, K::Elementwise, {out(0)}),
    row("aten.sqrt.default", F::Elementwise, B::Sqrt, K::Elementwise, {out(0)}),
    row("aten.exp.default", F::Elementwise, B::Exp, K::Elementwise, {out(0)}),
    row("aten.log.default", F::Elementwise, B::Log, K::Elementwise, {in(0)}),
    row("aten.abs.default", F::Elementwise, B::Abs, K::Elementwise, {in(0)}),
    row("aten.cos.default", F::Elementwise, B::Cos, K::Elementwise, {in(0)}),
    row("aten.sin.default", F::Elementwise, B::Sin, K::Elementwise, {in(0)}),
    row("aten.tanh.default", F::Elementwise, B::Tanh, K::Elementwise, {out(0)}),
    row("aten.sigmoid.default", F::Elementwise, B::Sigmoid, K::Elementwise, {out(0)}),
    row("aten.relu.default", F::Elementwise, B::Relu, K::Elementwise, {out(0)}),
    row("aten.silu.default", F::Elementwise, B::Silu, K::Elementwise, {in(0)}),
    row("aten.gelu.default", F::Elementwise, B::Gelu, K::Elementwise, {in(0)}),
    row("aten.where.self", F::Elementwise, B::Where, K::Elementwise, {in(0)}),
    row("aten.masked_fill.Scalar", F::Elementwise, B::MaskedFill, K::Elementwise, {in(1)}),
    row("aten.masked_fill.Tensor", F::Elementwise, B::MaskedFill, K::Elementwise, {in(1)}),
    row("aten.ne.Scalar", F::Elementwise, B::None, K::Elementwise),
    row("aten.eq.Scalar", F::Elementwise, B::None, K::Elementwise),
    row("aten.eq.Tensor", F::Elementwise, B::None, K::Elementwise),
    row("aten.le.Tensor", F::Elementwise, B::None, K::Elementwise),
    row("aten._local_scalar_dense.default", F::Host, B::None, K::Copy),  // the host waits for one value
    row("aten.item.default", F::Host, B::None, K::Copy),
    row("aten.rsub.Scalar", F::Elementwise, B::Neg, K::Elementwise),
    row("aten.ne.Tensor", F::Elementwise, B::None, K::Elementwise),
    row("aten.ge.Tensor", F::Elementwise, B::None, K::Elementwise),
    row("aten.gt.Scalar", F::Elementwise, B::None, K::Elementwise),
    row("aten.lt.Scalar", F::Elementwise, B::None, K::Elementwise),
    row("aten.le.Scalar", F::Elementwise, B::None, K::Elementwise),
    row("aten.logical_and.default", F::Elementwise, B::None, K::Elementwise),
    row("aten.logical_or.default", F::Elementwise, B::None, K::Elementwise),
    row("aten.bitwise_or.Tensor", F::Elementwise, B::None, K::Elementwise),
    row("aten.ge.Scalar", F::Elementwise, B::None, K::Elementwise),
    row("aten.gt.Tensor", F::Elementwise, B::None, K::Elementwise),
    row("aten.lt.Tensor", F::Elementwise, B::None, K::Elementwise),
    row("aten.logical_not.default", F::Elementwise, B::None, K::Elementwise),
    row("aten.bitwise_and.Tensor", F::Elementwise, B::None, K::Elementwise),
    row("aten.bitwise_not.default", F::Elementwise, B::None, K::Elementwise),
    row("aten.native_dropout.default", F::Elementwise, B::Dropout, K::Elementwise, {out(1)}),
    // --- reductions ---
    row("aten.sum.default", F::Contiguous, B::Sum, K::Reduction),
    row("aten.sum.dim_IntList", F::Contiguous, B::Sum, K::Reduction),
    row("aten.mean.default", F::Contiguous, B::Mean, K::Reduction),
    row("aten.mean.dim", F::Contiguous, B::Mean, K::Reduction),
    row("aten.all.default", F::Contiguous, B::None, K::Reduction),
    row("aten.any.dim", F::Contiguous, B::None, K::Reduction),
    row("aten.cumsum.default", F::Contiguous, B::Cumsum, K::Reduction),
    row("aten.argmax.default", F::Contiguous, B::None, K::Reduction),
    row("aten._softmax.default", F::Contiguous, B::Softmax, K::Reduction, {out(0)}),
    row("aten._safe_softmax.default", F::Contiguous, B::Softmax, K::Reduction, {out(0)}),
    first_only(takes("g x0 r1 r2 x1 x2", row("aten.native_layer_norm.default", F::LayerNorm, B::LayerNorm, K::Reduction,
                                             {in(2), in(0), in(1), out(1), out(2)}))),
    // --- loss ---
    row("aten._log_softmax.default", F::Contiguous, B::LogSoftmax, K::Loss, {out(0)}),
    first_only(row("aten.nll_loss_forward.default", F::Contiguous, B::NllLoss, K::Loss, {in(0), in(1), in(2), out(1)})),
    // --- gathers ---
    row("aten.embedding.default", F::Contiguous, B::Embedding, K::Gather, {in(1)}),
    // --- matrix products ---
    row("aten.mm.default", F::Contiguous, B::Mm, K::Gemm, {in(1, 1), in(0, 2)}),
    row("aten.addmm.default", F::Contiguous, B::Addmm, K::Gemm, {in(1, 4), in(2, 2)}),
    row("aten.bmm.default", F::Contiguous, B::Bmm, K::Gemm, {in(1, 1), in(0, 2)}),
    row("aten.baddbmm.default", F::Contiguous, B::Baddbmm, K::Gemm, {in(1, 4), in(2, 2)}),
    row("aten.linear.default", F::Contiguous, B::Linear, K::Gemm, {in(0, 2), in(1, 1)}),
    // --- attention ---
    first_only(row("aten._scaled_dot_product_flash_attention.default", F::Attention, B::FlashAttention, K::Attention,
                   {in(1), in(0), in(2), out(1), out(0), out(2), out(3)})),
    first_only(takes("g x0 x1 x2 r0 r1 x3",
                     row("aten._scaled_dot_product_flash_attention_for_cpu.default", F::Attention, B::FlashAttention,
                         K::Attention, {in(3), in(1), in(0), in(2), out(1), out(0)}))),
    first_only(row("aten._scaled_dot_product_efficient_attention.default", F::Attention, B::EfficientAttention,
                   K::Attention, {in(3), in(1), in(0), in(2), out(1), out(0), out(3), out(2)})),
    // --- gathers, selections ---
    row("aten.gather.default", F::Contiguous, B::Gather, K::Gather, {in(1), in(0)}),
    row("aten.index_select.default", F::Contiguous, B::IndexSelect, K::Gather, {in(1)}),
    row("aten.index.Tensor", F::Contiguous, B::Index, K::Gather, {in(1)}),
    row("aten.scatter_add.default", F::LikeFirst, B::ScatterAdd, K::Gather, {in(1, 4)}),
    row("aten.index_add.default", F::LikeFirst, B::IndexAdd, K::Gather, {in(1, 4), in(2, 4)}),
    row("aten.index_put.default", F::LikeFirst, B::IndexPut, K::Gather, {in(1)}),
    row("aten.index_put_.default", F::InPlace, B::IndexPut, K::Gather, {in(1)}),
    row("aten.topk.default", F::Contiguous, B::Pick, K::Reduction, {out(1)}),
    row("aten.sort.default", F::Contiguous, B::Pick, K::Reduction, {out(1)}),
    row("aten.max.dim", F::Contiguous, B::Pick, K::Reduction, {out(1)}),
    row("aten.histc.default", F::Contiguous, B::None, K::Reduction),
    row("aten.floor_divide.default", F::Elementwise, B::None, K::Elementwise),
    row("aten.minimum.default", F::Elementwise, B::Extremum, K::Elementwise, {in(1), in(0)}),
    row("aten.maximum.default", F::Elementwise, B::Extremum, K::Elementwise, {in(1), in(0)}),
    row("aten.clamp.default", F::Elementwise, B::Clamp, K::Elementwise, {in(0)}),
    row("aten.roll.default", F::Elementwise, B::Roll, K::Copy),
    row("aten.stack.default", F::Contiguous, B::Stack, K::Copy),
    row("aten.div_.Tensor", F::InPlace, B::Div, K::Elementwise, {in(1, 3), in(0, 2)}),
    written("aten.dot.default", "0: mul.Tensor g x1 | 1: mul.Tensor g x0", {in(0, 2), in(1, 1)}, F::Contiguous,
            K::Reduction),
    row("aten.var.correction", F::Contiguous, B::Var, K::Reduction, {in(0)}),
    row("aten.linalg_vector_norm.default", F::Contiguous, B::VectorNorm, K::Reduction, {in(0), out(0)}),
    row("aten.logsumexp.default", F::Contiguous, B::LogSumExp, K::Reduction, {in(0), out(0)}),
    row("aten.mse_loss.default", F::Contiguous, B::MseLoss, K::Loss, {in(0), in(1)}),
    // --- images ---
    row("aten.convolution.default", F::Contiguous, B::Convolution, K::Gemm, {in(0), in(1)}),
    first_only(row("aten.native_batch_norm.default", F::LayerNorm, B::OwnKernel, K::Reduction,
                   {in(0), in(3), in(4), in(1), out(1), out(2)})),
    first_only(
        takes("x0 g x1 x3 x4 r1 r2 r3", row("aten.cudnn_batch_norm.default", F::LayerNorm, B::OwnKernel, K::Reduction,
                                            {in(0), in(3), in(4), in(1), out(1), out(2), out(3)}))),
    row("aten.max_pool2d_with_indices.default", F::Contiguous, B::OwnKernel, K::Reduction, {in(0), out(1)}),
    row("aten.avg_pool2d.default", F::Contiguous, B::OwnKernel, K::Reduction, {in(0)}),
    row("aten.upsample_nearest2d.default", F::Contiguous, B::OwnKernel, K::Copy),
    first_only(
        row("aten.nll_loss2d_forward.default", F::Contiguous, B::OwnKernel, K::Loss, {in(0), in(1), in(2), out(1)})),
    // --- experts ---
    row("aten._grouped_mm.default", F::Contiguous, B::GroupedMm, K::Gemm, {in(1, 1), in(2), in(0, 2)}),
    // --- one kernel forward, one of its own name backward ---
    row("aten.leaky_relu.default", F::Elementwise, B::OwnKernel, K::Elementwise, {in(0)}),
    row("aten.elu.default", F::Elementwise, B::OwnKernel, K::Elementwise, {in(0)}),
    row("aten.hardswish.default", F::Elementwise, B::OwnKernel, K::Elementwise, {in(0)}),
    row("aten.hardsigmoid.default", F::Elementwise, B::OwnKernel, K::Elementwise, {in(0)}),
    row("aten.hardtanh.default", F::Elementwise, B::OwnKernel, K::Elementwise, {in(0)}),
    row("aten.mish.default", F::Elementwise, B::OwnKernel, K::Elementwise, {in(0)}),
    row("aten.softplus.default", F::Elementwise, B::OwnKernel, K::Elementwise, {in(0)}),
    row("aten.glu.default", F::Contiguous, B::OwnKernel, K::Elementwise, {in(0)}),
    row("aten._prelu_kernel.default", F::Elementwise, B::OwnKernel, K::Elementwise, {in(0), in(1)}),
    takes("g x0 r1 r2 x1", row("aten.native_group_norm.default", F::LayerNorm, B::OwnKernel, K::Reduction,
                               {in(0), in(1), out(1), out(2)})),
    first_only(takes("g x0 r1 x1", row("aten._fused_rms_norm.default", F::LayerNorm, B::OwnKernel, K::Reduction,
                                       {in(0), in(1), out(1)}))),
    first_only(takes("x0 g x1 x3 x4 r1 r2", row("aten.miopen_batch_norm.default", F::LayerNorm, B::OwnKernel,
                                                K::Reduction, {in(0), in(3), in(4), in(1), out(1), out(2)}))),
    first_only(row("aten._batch_norm_with_update.default", F::LayerNorm, B::OwnKernel, K::Reduction,
                   {in(0), in(3), in(4), in(1), out(1), out(2), out(3)})),
    first_only(row("aten._native_batch_norm_legit_functional.default", F::LayerNorm, B::OwnKernel, K::Reduction,
                   {in(0), in(3), in(4), in(1), out(1), out(2)})),
    first_only(row("aten._native_batch_norm_legit.default", F::LayerNorm, B::OwnKernel, K::Reduction,
                   {in(0), in(3), in(4), in(1), out(1), out(2)})),
    first_only(row("aten._native_batch_norm_legit.no_stats", F::LayerNorm, B::OwnKernel, K::Reduction,
                   {in(0), in(1), out(1), out(2)})),
    row("aten.batch_norm.default", F::LayerNorm, B::OwnKernel, K::Reduction, {in(0), in(3), in(4), in(1)}),
    row("aten.layer_norm.default", F::LayerNorm, B::OwnKernel, K::Reduction, {in(0), in(1)}),
    row("aten.rms_norm.default", F::LayerNorm, B::OwnKernel, K::Reduction, {in(0), in(1)}),
    row("aten._adaptive_avg_pool2d.default", F::Contiguous, B::OwnKernel, K::Reduction, {in(0)}),
    row("aten.adaptive_avg_pool2d.default", F::Contiguous, B::OwnKernel, K::Reduction, {in(0)}),
    row("aten.max_pool2d.default", F::Contiguous, B::OwnKernel, K::Reduction, {in(0)}),
    row("aten.reflection_pad2d.default", F::Contiguous, B::OwnKernel, K::Copy, {in(0)}),
    row("aten.replication_pad2d.default", F::Contiguous, B::OwnKernel, K::Copy, {in(0)}),
    row("aten.upsample_bilinear2d.default", F::Contiguous, B::OwnKernel, K::Copy),
    row("aten.upsample_bicubic2d.default", F::Contiguous, B::OwnKernel, K::Copy),
    row("aten.upsample_nearest2d.vec", F::Contiguous, B::OwnKernel, K::Copy),
    row("aten.upsample_bilinear2d.vec", F::Contiguous, B::OwnKernel, K::Copy),
    row("aten.upsample_bicubic2d.vec", F::Contiguous, B::OwnKernel, K::Copy),
    row("aten.grid_sampler_2d.default", F::Contiguous, B::OwnKernel, K::Gather, {in(1), in(0)}),
    row("aten.smooth_l1_loss.default", F::Contiguous, B::MseLoss, K::Loss, {in(0), in(1)}),
    row("aten.huber_loss.default", F::Contiguous, B::MseLoss, K::Loss, {in(0), in(1)}),
    row("aten.conv1d.default", F::Contiguous, B::Convolution, K::Gemm, {in(0), in(1)}),
    row("aten.conv2d.default", F::Contiguous, B::Convolution, K::Gemm, {in(0), in(1)}),
    row("aten.conv3d.default", F::Contiguous, B::Convolution, K::Gemm, {in(0), in(1)}),
    row("aten.conv1d.padding", F::Contiguous, B::Convolution, K::Gemm, {in(0), in(1)}),
    row("aten.conv2d.padding", F::Contiguous, B::Convolution, K::Gemm, {in(0), in(1)}),
    // --- as above, in the spelling or the place that an exported program has ---
    row("aten.to.device", F::Elementwise, B::ToCopy, K::Copy),
    row("aten.to.dtype_layout", F::Elementwise, B::ToCopy, K::Copy),
    row("aten.pad.default", F::Contiguous, B::Pad, K::Copy, {}, 2),
    row("aten.diff.default", F::Contiguous, B::OwnKernel, K::Elementwise),
    row("aten.where.ScalarOther", F::Elementwise, B::Where, K::Elementwise, {in(0)}),
    row("aten.where.ScalarSelf", F::Elementwise, B::Where, K::Elementwise, {in(0)}),
    row("aten.masked_fill_.Tensor", F::InPlace, B::MaskedFill, K::Elementwise, {in(1)}),
    row("aten.mul_.Tensor", F::InPlace, B::Mul, K::Elementwise, {in(1, 1), in(0, 2)}),
    row("aten.sub_.Tensor", F::InPlace, B::Sub, K::Elementwise),
    row("aten.sigmoid_.default", F::InPlace, B::Sigmoid, K::Elementwise, {out(0)}),
    row("aten.tanh_.default", F::InPlace, B::Tanh, K::Elementwise, {out(0)}),
    row("aten.exp_.default", F::InPlace, B::Exp, K::Elementwise, {out(0)}),
    row("aten.sqrt_.default", F::InPlace, B::Sqrt, K::Elementwise, {out(0)}),
    row("aten.scatter_add_.default", F::InPlace, B::ScatterAdd, K::Gather, {in(1, 4)}),
    row("aten.index_add_.default", F::InPlace, B::IndexAdd, K::Gather, {in(1, 4), in(2, 4)}),
    row("aten.scatter.value", F::LikeFirst, B::ScatterValue, K::Gather, {in(1, 1)}),
    row("aten.scatter_.value", F::InPlace, B::ScatterValue, K::Gather, {in(1, 1)}),
    row("aten.scatter.src", F::LikeFirst, B::ScatterValue, K::Gather, {in(1, 5)}),
    row("aten.repeat.default", F::Contiguous, B::Repeat, K::Copy),
    row("aten.tile.default", F::Contiguous, B::Repeat, K::Copy),
    row("aten.repeat_interleave.self_int", F::Contiguous, B::RepeatInterleave, K::Copy),
    row("aten.flip.default", F::Elementwise, B::Roll, K::Copy),
    row("aten.clamp_min.default", F::Elementwise, B::Clamp, K::Elementwise, {in(0)}),
    row("aten.clamp_max.default", F::Elementwise, B::Clamp, K::Elementwise, {in(0)}),
    row("aten.reciprocal.default", F::Elementwise, B::Reciprocal, K::Elementwise, {out(0)}),
    row("aten.remainder.Scalar", F::Elementwise, B::Alias, K::Elementwise),
    row("aten.min.dim", F::Contiguous, B::Pick, K::Reduction, {out(1)}),
    // --- no gradient: masks, positions, random numbers, counts ---
    row("aten.bitwise_xor.Tensor", F::Elementwise, B::None, K::Elementwise),
    row("aten.bitwise_and.Scalar", F::Elementwise, B::None, K::Elementwise),
    row("aten.bitwise_or.Scalar", F::Elementwise, B::None, K::Elementwise),
    row("aten.logical_xor.default", F::Elementwise, B::None, K::Elementwise),
    row("aten.isnan.default", F::Elementwise, B::None, K::Elementwise),
    row("aten.isinf.default", F::Elementwise, B::None, K::Elementwise),
    row("aten.bucketize.Tensor", F::Contiguous, B::None, K::Elementwise),
    row("aten.all.dim", F::Contiguous, B::None, K::Reduction),
    row("aten.any.default", F::Contiguous, B::None, K::Reduction),
    row("aten.argmin.default", F::Contiguous, B::None, K::Reduction),
    row("aten.argsort.default", F::Contiguous, B::None, K::Reduction),
    row("aten.argsort.stable", F::Contiguous, B::None, K::Reduction),
    row("aten.bincount.default", F::Contiguous, B::None, K::Reduction),
    row("aten.one_hot.default", F::Contiguous, B::None, K::Elementwise, {}, 2),
    row("aten.rand.default", F::Contiguous, B::None, K::Elementwise),
    row("aten.randn.default", F::Contiguous, B::None, K::Elementwise),
    row("aten.rand_like.default", F::LikeFirst, B::None, K::Elementwise),
    row("aten.randn_like.default", F::LikeFirst, B::None, K::Elementwise),
    row("aten.bernoulli.default", F::LikeFirst, B::Zeros, K::Elementwise),
    row("aten.bernoulli.p", F::LikeFirst, B::None, K::Elementwise),
    row("aten.linspace.default", F::Contiguous, B::None, K::Elementwise),
    // --- functions of one tensor ---
    written("aten.tan.default", "0: pow.Tensor_Scalar r; add.Scalar 0; mul.Tensor g 1", {out(0)}),
    written("aten.sinh.default", "0: cosh x0; mul.Tensor g 0", {in(0)}),
    written("aten.cosh.default", "0: sinh x0; mul.Tensor g 0", {in(0)}),
    written("aten.atan.default", "0: mul.Tensor x0 x0; add.Scalar 0; div.Tensor g 1", {in(0)}),
    written("aten.asin.default", "0: neg x0; mul.Tensor 0 x0; add.Scalar 1; rsqrt 2; mul.Tensor g 3", {in(0)}),
    written("aten.acos.default", "0: neg x0; mul.Tensor 0 x0; add.Scalar 1; rsqrt 2; neg 3; mul.Tensor g 4", {in(0)}),
    written("aten.asinh.default", "0: pow.Tensor_Scalar x0; add.Scalar 0; rsqrt 1; mul.Tensor g 2", {in(0)}),
    written("aten.acosh.default", "0: mul.Tensor x0 x0; sub.Scalar 0; rsqrt 1; mul.Tensor g 2", {in(0)}),
    written("aten.atanh.default",
            "0: pow.Tensor_Scalar x0; empty_like 0; fill_.Scalar 1; sub_.Tensor 2 0; mul.Scalar g; div.Tensor 4 3",
            {in(0)}),
    written("aten.erfc.default", "0: pow.Tensor_Scalar x0; neg 0; exp 1; mul.Scalar 2; mul.Tensor 3 g", {in(0)}),
    written("aten.erfinv.default", "0: erfinv x0; pow.Tensor_Scalar 0; exp 1; mul.Scalar 2; mul.Tensor 3 g", {in(0)}),
    written("aten.exp2.default", "0: mul.Tensor g r; mul.Scalar 0", {out(0)}),
    written("aten.sinc.default",
            "0: mul.Scalar x0; mul.Tensor x0 x0; mul.Scalar 1; sin 0; cos 0; mul.Tensor 0 4; sub.Tensor 5 3; "
            "div.Tensor 6 2; "
            "mul.Tensor g 7; scalar_tensor; eq.Scalar 2; where.self 10 9 8",
            {in(0)}),
    written("aten.digamma.default", "0: polygamma x0; mul.Tensor g 0", {in(0)}),
    written("aten.lgamma.default", "0: digamma x0; mul.Tensor g 0", {in(0)}),
    written("aten.nan_to_num.default", "0: abs x0; ne.Scalar 0; eq.Tensor x0 x0; mul.Tensor 2 1;; mul.Tensor g 3",
            {in(0)}),
    written("aten.sgn.default", "0: _efficientzerotensor g", {in(0), out(0)}),
    written("aten.deg2rad.default", "0: mul.Scalar g"),
    written("aten.rad2deg.default", "0: mul.Scalar g"),
    written("aten.frac.default", "0: = g"),
    written("aten.fmod.Scalar", "0: = g"),
    written("aten.celu.default", "0: elu_backward g x0", {in(0)}),
    written("aten.celu_.default", "0: elu_backward g r", {out(0)}, F::InPlace),
    written("aten.threshold.default", "0: threshold_backward g x0", {in(0)}),
    row("aten.hardshrink.default", F::Elementwise, B::OwnKernel, K::Elementwise, {in(0)}),
    row("aten.softshrink.default", F::Elementwise, B::OwnKernel, K::Elementwise, {in(0)}),
    row("aten.logit.default", F::Elementwise, B::OwnKernel, K::Elementwise, {in(0)}),
    first_only(row("aten.log_sigmoid_forward.default", F::Elementwise, B::OwnKernel, K::Elementwise, {in(0), out(1)})),
    row("aten.leaky_relu_.default", F::InPlace, B::OwnKernel, K::Elementwise, {out(0)}),
    row("aten.elu_.default", F::InPlace, B::OwnKernel, K::Elementwise, {out(0)}),
    row("aten.pow_.Scalar", F::InPlace, B::Pow, K::Elementwise, {in(0)}),
    written("aten.fill_.Tensor", "0: zeros_like g | 1: sum g", {}, F::InPlace),
    // --- functions of several ---
    written(
        "aten.pow.Tensor_Tensor",
        "1: ge.Scalar x1; eq.Scalar x0; logical_and 1 0; log x0; mul.Tensor r 3; scalar_tensor; where.self 2 5 4; "
        "mul.Tensor g 6"
        " | 0: sub.Scalar x1; pow.Tensor_Tensor x0 8; mul.Tensor x1 9; mul.Tensor g 10; scalar_tensor; eq.Scalar x1; "
        "where.self 13 12 11",
        {in(1), in(0), out(0)}),
    written("aten.atan2.default",
            "*: mul.Tensor x1 x1; mul.Tensor x0 x0; &add.Tensor 1 0; reciprocal 2; eq.Scalar 2; masked_fill_.Scalar 3 4"
            " | 0: &mul.Tensor g x1; mul.Tensor 6 5 | 1: neg x0; mul.Tensor g 8; mul.Tensor 9 5",
            {in(1), in(0)}),
    written("aten.hypot.default", "1: mul.Tensor g x1; div.Tensor 0 r | 0: mul.Tensor g x0; div.Tensor 2 r",
            {in(1, 2), in(0, 1), out(0)}),
    written("aten.fmod.Tensor", "1: div.Tensor_mode x0 x1; neg g; mul.Tensor 1 0 | 0: = g", {in(1, 2), in(0, 2)}),
    written("aten.remainder.Tensor", "1: div.Tensor_mode x0 x1; neg g; mul.Tensor 1 0 | 0: = g", {in(1, 2), in(0, 2)}),
    written("aten.div.Tensor_mode", "1: zeros_like g | 0: zeros_like g", {in(1, 3), in(0, 2)}),
    written("aten.fmax.default",
            "1: ge.Tensor x0 x1; isnan x1; logical_or_ 0 1; masked_fill.Scalar g 2"
            " | 0: ge.Tensor x0 x1; isnan x1; logical_or_ 4 5; logical_not_ 6; masked_fill.Scalar g 7",
            {in(1), in(0)}),
    written("aten.fmin.default",
            "1: le.Tensor x0 x1; isnan x1; logical_or_ 0 1; masked_fill.Scalar g 2"
            " | 0: le.Tensor x0 x1; isnan x1; logical_or_ 4 5; logical_not_ 6; masked_fill.Scalar g 7",
            {in(1), in(0)}),
    written("aten.logaddexp.default",
            "1: sub.Tensor x0 x1; exp 0; add.Scalar 1; div.Tensor g 2 | 0: sub.Tensor x1 x0; exp 4; add.Scalar 5; "
            "div.Tensor g 6",
            {in(1), in(0)}),
    written("aten.logaddexp2.default",
            "1: sub.Tensor x0 x1; pow.Scalar 0; add.Scalar 1; div.Tensor g 2"
            " | 0: sub.Tensor x1 x0; pow.Scalar 4; add.Scalar 5; div.Tensor g 6",
            {in(1), in(0)}),
    written("aten.linalg_cross.default", "1: linalg_cross>L1 g x0 | 0: linalg_cross>L0 x1 g", {in(1, 1), in(0, 2)}),
    written("aten.copysign.Tensor",
            "1: zeros L1 | 0: div.Tensor r x0; eq.Scalar x0; masked_fill_.Scalar 1 2; mul.Tensor g 3",
            {in(0, 1), out(0)}),
    written("aten.xlogy.Tensor",
            "1: mul.Tensor g x0; div.Tensor 0 x1"
            " | 0: xlogy.Tensor g x1; le.Scalar x1; eq.Scalar x0; bitwise_and.Tensor 4 3; masked_fill.Scalar 2 5",
            {in(1), in(0)}),
    written("aten.lerp.Scalar", "1: mul.Scalar g | 0: mul.Scalar g"),
    written("aten.lerp.Tensor",
            "1: mul.Tensor g x2 | 0: empty_like x2; fill_.Scalar 1; sub_.Tensor 2 x2; mul.Tensor g 3"
            " | 2: sub.Tensor x1 x0; mul.Tensor g 5",
            {in(1, 4), in(0, 4), in(2)}),
    written("aten.addcmul.default", "0: = g | 1: mul.Scalar x2; mul.Tensor g 1 | 2: mul.Scalar x1; mul.Tensor g 3",
            {in(1, 4), in(2, 2)}),
    written("aten.addcdiv.default",
            "0: = g | 1: empty_like x2; fill_.Scalar 1; div_.Tensor 2 x2; mul.Tensor g 3"
            " | 2: mul.Tensor x2 x2; mul.Scalar x1; div.Tensor 6 5; neg g; mul.Tensor 8 7",
            {in(1, 4), in(2)}),
    written("aten.clamp.Tensor",
            "*12: scalar_tensor | 1: lt.Tensor x0 x1; x2?lt.Tensor x1 x2; x2?logical_and_ 1 2; where.self 3 g 0"
            " | 2: gt.Tensor x0 x2; lt.Tensor x2 x1; logical_or_ 5 6; where.self 7 g 0"
            " | 0: scalar_tensor; ge.Tensor x0 x1; x2?le.Tensor x0 x2; x2?logical_and_ 10 11; where.self 12 g 9",
            {in(2), in(1), in(0)}),
    written("aten.clamp_min.Tensor",
            "1: scalar_tensor; lt.Tensor x0 x1; where.self 1 g 0 | 0: scalar_tensor; ge.Tensor x0 x1; where.self 4 g 3",
            {in(1), in(0)}),
    written("aten.clamp_max.Tensor",
            "1: scalar_tensor; gt.Tensor x0 x1; where.self 1 g 0 | 0: scalar_tensor; le.Tensor x0 x1; where.self 4 g 3",
            {in(1), in(0)}),
    row("aten.floor_divide.Scalar", F::Elementwise, B::None, K::Elementwise),
    written("aten.rsub.Tensor", "1: = g | 0: neg g"),
    // --- reductions ---
    written("aten.max.default",
            "0: isnan x0; isnan r; logical_and_ 0 1; eq.Tensor x0 r; logical_or_ 3 2; sum 4; div.Tensor g 5; "
            "mul.Tensor 4 6",
            {in(0), out(0)}, F::Contiguous, K::Reduction),
    written("aten.min.default",
            "0: isnan x0; isnan r; logical_and_ 0 1; eq.Tensor x0 r; logical_or_ 3 2; sum 4; div.Tensor g 5; "
            "mul.Tensor 4 6",
            {in(0), out(0)}, F::Contiguous, K::Reduction),
    written("aten.median.default",
            "0: isnan x0; isnan r; logical_and_ 0 1; eq.Tensor x0 r; logical_or_ 3 2; sum 4; div.Tensor g 5; "
            "mul.Tensor 4 6",
            {in(0), out(0)}, F::Contiguous, K::Reduction),
    written("aten.amax.default", "0: kept r; eq.Tensor 0 x0; kept g; count 1; div.Tensor 2 3; mul.Tensor 4 1",
            {in(0), out(0)}, F::Contiguous, K::Reduction),
    written("aten.amin.default", "0: kept r; eq.Tensor 0 x0; kept g; count 1; div.Tensor 2 3; mul.Tensor 4 1",
            {in(0), out(0)}, F::Contiguous, K::Reduction),
    written("aten.std.correction",
            "0: mul.Scalar r; div.Tensor g 0; eq.Scalar r; masked_fill_.Scalar 1 2;; kept 3; mean x0; sub.Tensor x0 5; "
            "mul.Scalar 4; mul.Tensor 7 6",
            {in(0), out(0)}, F::Contiguous, K::Reduction),
    written("aten.var_mean.correction",
            "0: kept g; mean x0; sub.Tensor x0 1; mul.Scalar 0; mul.Tensor 3 2;; g1?kept g1; g1?wide 5; "
            "g1?div.Scalar>L0 6; "
            "g1?add.Tensor 4 7",
            {in(0)}, F::Contiguous, K::Reduction),
    written("aten.std_mean.correction",
            "0: mul.Scalar r; div.Tensor g 0; eq.Scalar r; masked_fill_.Scalar 1 2;; kept 3; mean x0; sub.Tensor x0 5; "
            "mul.Scalar 4; mul.Tensor 7 6;; g1?kept g1; g1?wide 9; g1?div.Scalar>L0 10; g1?add.Tensor 8 11",
            {in(0), out(0)}, F::Contiguous, K::Reduction),
    // The way that holds where there are zeros too, and that tracing takes.
    written(
        "aten.prod.default",
        "0: ones; cat>L0 0 x0; cumprod>L0 1; flip x0; cat>L0 0 3; cumprod>L0 4; flip 5; mul.Tensor 2 6; mul.Tensor g 7",
        {in(0), out(0)}, F::Contiguous, K::Reduction),
    written("aten.prod.dim_int",
            "0: kept g; ones>K0; less x0; cat>L0 1 2; cumprod>L0 3; less x0; flip 5; cat>L0 1 6; cumprod>L0 7; flip 8; "
            "mul.Tensor 4 9; mul.Tensor 0 10",
            {in(0), out(0)}, F::Contiguous, K::Reduction),
    written("aten.logcumsumexp.default",
            "0: &scalar_tensor; abs g; &log 1; gt.Scalar g; &where.self 3 2 0; lt.Scalar g; &where.self 5 2 0;; "
            "sub.Tensor 4 r; "
            "flip 7; logcumsumexp 8; flip 9;; add.Tensor 10 x0; &exp 11;; sub.Tensor 6 r; flip 13; logcumsumexp 14; "
            "flip 15;; "
            "add.Tensor 16 x0; &exp 17;; sub.Tensor 12 18",
            {in(0), out(0)}, F::Contiguous, K::Reduction),
    written("aten.trace.default", "0: zeros L0; arange.start_step; index_fill_.int_Tensor 0 1 g", {}, F::Contiguous,
            K::Reduction),
    written("aten.nansum.default", "0: isnan x0; logical_not 0; kept g; mul.Tensor 2 1", {in(0)}, F::Contiguous,
            K::Reduction),
    row("aten.norm.ScalarOpt_dim", F::Contiguous, B::VectorNorm, K::Reduction, {in(0), out(0)}),
    row("aten.norm.Scalar", F::Contiguous, B::VectorNorm, K::Reduction, {in(0), out(0)}),
    written("aten.cummax.default", "0: zeros L0; scatter_add_ 0 r1 g", {in(0), out(1)}, F::Contiguous, K::Reduction),
    written("aten.cummin.default", "0: zeros L0; scatter_add_ 0 r1 g", {in(0), out(1)}, F::Contiguous, K::Reduction),
    row("aten.sort.stable", F::Contiguous, B::Pick, K::Reduction, {out(1)}),
    row("aten.kthvalue.default", F::Contiguous, B::Pick, K::Reduction, {out(1)}),
    row("aten.median.dim", F::Contiguous, B::Pick, K::Reduction, {out(1)}),
    row("aten.mode.default", F::Contiguous, B::Pick, K::Reduction, {out(1)}),
    // --- products ---
    written("aten.mv.default", "0: column g; mul.Tensor>L0 0 x1 | 1: turned x0; mv>L1 2 g", {in(0, 2), in(1, 1)},
            F::Contiguous, K::Reduction),
    written("aten.addmv.default", "1: column g; mul.Tensor>L1 0 x2 | 0: = g | 2: turned x1; mv>L2 3 g",
            {in(1, 4), in(2, 2)}, F::Contiguous, K::Reduction),
    row("aten.vdot.default", F::Contiguous, B::Mul, K::Reduction, {in(1, 1), in(0, 2)}),
    written("aten.addr.default", "0: = g | 1: mv>L1 g x2 | 2: mv>L2 g x1", {in(1, 4), in(2, 2)}, F::Contiguous,
            K::Reduction),
    row("aten.addbmm.default", F::Contiguous, B::Addbmm, K::Reduction, {in(1, 4), in(2, 2)}),
    written("aten._trilinear.default", "0: _trilinear>L0 g x1 x2 | 1: _trilinear>L1 x0 g x2 | 2: _trilinear>L2 x0 x1 g",
            {in(0, 6), in(1, 5), in(2, 3)}, F::Contiguous, K::Reduction),
    written("aten._cdist_forward.default",
            "0: _cdist_backward>L0 g x0 x1 r | 1: clone r; clone g; _cdist_backward>L1 2 x1 x0 1",
            {in(0), in(1), out(0)}, F::Contiguous, K::Reduction),
    // --- losses ---
    written("aten.binary_cross_entropy_with_logits.default",
            "0: sigmoid x0; sub_.Tensor 0 x1; mul_.Tensor 1 g; x2?mul_.Tensor 2 x2; mean?div_.Scalar 3"
            " | 1: neg x0; mul.Tensor 5 g; x2?mul.Tensor 6 x2; mean?div_.Scalar 7",
            {in(0), in(1), in(2)}, F::Contiguous, K::Loss),
    written("aten.binary_cross_entropy.default",
            "0: binary_cross_entropy_backward>L0 g x0 x1 | 1: logit x0; neg_ 1; mul_.Tensor 2 g; mean?div_.Scalar 3",
            {in(0), in(1)}, F::Contiguous, K::Loss),
    first_only(row("aten._ctc_loss.default", F::Contiguous, B::OwnKernel, K::Loss, {in(0), in(1), out(0), out(1)})),
    first_only(row("aten._ctc_loss.Tensor", F::Contiguous, B::OwnKernel, K::Loss,
                   {in(2), in(0), in(3), in(1), out(0), out(1)})),
    row("aten.soft_margin_loss.default", F::Contiguous, B::OwnKernel, K::Loss, {in(0), in(1)}),
    row("aten.multi_margin_loss.default", F::Contiguous, B::OwnKernel, K::Loss, {in(0), in(1)}),
    // --- parts of tensors ---
    written("aten.diagonal.default", "0: diagonal_backward>L0 g", {}, F::Part, K::Copy),
    written("aten.unfold.default", "0: unfold_backward>L0 g", {}, F::Part, K::Copy),
    written("aten.as_strided.default", "0: new_zeros>L0 g; copy_ 0 g", {}, F::Part, K::Copy),
    written("aten.diagonal_copy.default", "0: diagonal_backward>L0 g", {}, F::Contiguous, K::Copy),
    written("aten.diag_embed.default", "0: part g L0", {}, F::Contiguous, K::Copy),
    written("aten.select_scatter.default", "0: zeros L1; @>L0 g 0 | 1: part g L1", {}, F::LikeFirst, K::Copy),
    written("aten.slice_scatter.default", "0: zeros L1; @>L0 g 0 | 1: part g L1", {}, F::LikeFirst, K::Copy),
    written("aten.diagonal_scatter.default", "0: zeros L1; @>L0 g 0 | 1: part g L1", {}, F::LikeFirst, K::Copy),
    written("aten.masked_scatter.default", "0: masked_fill.Scalar g x1 | 2: masked_scatter_backward>L2 g x1", {in(1)},
            F::LikeFirst, K::Gather),
    written("aten.masked_select.default", "0: zeros_like x0; masked_scatter_ 0 x1 g", {in(1), in(0)}, F::Contiguous,
            K::Gather),
    written("aten.take.default", "0: zeros_like x0; put_ 0 x1 g", {in(1), in(0)}, F::Contiguous, K::Gather),
    written("aten.index_copy.default", "0: index_fill.int_Scalar g x1 | 2: index_select>L2 g x1", {in(1), in(2, 4)},
            F::LikeFirst, K::Gather),
    written("aten.index_fill.int_Scalar", "0: index_fill.int_Scalar g x1", {in(1)}, F::LikeFirst, K::Gather),
    row("aten.scatter_reduce.two", F::LikeFirst, B::ScatterReduce, K::Gather, {in(1), in(0), in(2), out(0)}),
    first_only(row("aten._embedding_bag.default", F::Contiguous, B::Embedding, K::Gather,
                   {in(1), in(2), out(1), out(2), out(3)})),
    row("aten._embedding_bag_forward_only.default", F::Contiguous, B::None, K::Gather),
    first_only(takes("g x0 x1 r1", row("aten._weight_norm_interface.default", F::Contiguous, B::OwnKernel, K::Reduction,
                                       {in(1), in(0), out(1)}))),
    // --- images ---
    written("aten.pixel_shuffle.default", "0: pixel_unshuffle>L0 g", {}, F::Contiguous, K::Copy),
    written("aten.pixel_unshuffle.default", "0: pixel_shuffle>L0 g", {}, F::Contiguous, K::Copy),
    written("aten.channel_shuffle.default", "0: channel_shuffle>L0 g", {}, F::Contiguous, K::Copy),
    written("aten.im2col.default", "0: col2im>L0 g", {}, F::Contiguous, K::Copy),
    written("aten.col2im.default", "0: im2col>L0 g", {}, F::Contiguous, K::Copy),
    row("aten.reflection_pad1d.default", F::Contiguous, B::OwnKernel, K::Copy, {in(0)}),
    row("aten.reflection_pad3d.default", F::Contiguous, B::OwnKernel, K::Copy, {in(0)}),
    row("aten.replication_pad1d.default", F::Contiguous, B::OwnKernel, K::Copy, {in(0)}),
    row("aten.replication_pad3d.default", F::Contiguous, B::OwnKernel, K::Copy, {in(0)}),
    row("aten.avg_pool3d.default", F::Contiguous, B::OwnKernel, K::Reduction, {in(0)}),
    row("aten.max_pool3d_with_indices.default", F::Contiguous, B::OwnKernel, K::Reduction, {in(0), out(1)}),
    row("aten._adaptive_avg_pool3d.default", F::Contiguous, B::OwnKernel, K::Reduction, {in(0)}),
    row("aten.adaptive_max_pool2d.default", F::Contiguous, B::OwnKernel, K::Reduction, {in(0), out(1)}),
    row("aten.adaptive_max_pool3d.default", F::Contiguous, B::OwnKernel, K::Reduction, {in(0), out(1)}),
    row("aten._upsample_nearest_exact1d.default", F::Contiguous, B::OwnKernel, K::Copy),
    row("aten._upsample_nearest_exact2d.default", F::Contiguous, B::OwnKernel, K::Copy),
    row("aten._upsample_nearest_exact3d.default", F::Contiguous, B::OwnKernel, K::Copy),
    row("aten._upsample_bilinear2d_aa.default", F::Contiguous, B::OwnKernel, K::Copy),
    row("aten._upsample_bicubic2d_aa.default", F::Contiguous, B::OwnKernel, K::Copy),
    row("aten.upsample_nearest1d.default", F::Contiguous, B::OwnKernel, K::Copy),
    row("aten.upsample_nearest3d.default", F::Contiguous, B::OwnKernel, K::Copy),
    row("aten.upsample_linear1d.default", F::Contiguous, B::OwnKernel, K::Copy),
    row("aten.upsample_trilinear3d.default", F::Contiguous, B::OwnKernel, K::Copy),
    written("aten.avg_pool1d.default", "0: avg_pool2d_backward>L0 g x0", {in(0)}, F::Contiguous, K::Reduction),
    // --- ATen's core operators that no recorded program had ---
    row("aten.var.dim", F::Contiguous, B::Var, K::Reduction, {in(0)}),
    row("aten.var.default", F::Contiguous, B::Var, K::Reduction, {in(0)}),
    written("aten.div.Scalar_mode", "0: zeros_like g"),
    written("aten.fill.Scalar", "0: zeros_like g", {}, F::LikeFirst),
    written("aten.fill.Tensor", "0: zeros_like g | 1: sum g", {}, F::LikeFirst),
    written("aten._pdist_forward.default", "0: _pdist_backward>L0 g x0 r", {in(0), out(0)}, F::Contiguous,
            K::Reduction),
    first_only(row("aten._native_batch_norm_legit_no_training.default", F::LayerNorm, B::OwnKernel, K::Reduction,
                   {in(0), in(3), in(4), in(1), out(1), out(2)})),
    row("aten.any.dims", F::Contiguous, B::None, K::Reduction),
    row("aten.all.dims", F::Contiguous, B::None, K::Reduction),
    row("aten.bitwise_xor.Scalar", F::Elementwise, B::None, K::Elementwise),
    row("aten.empty_strided.default", F::Contiguous, B::None, K::Elementwise, {}, 0),
    row("aten.copy.default", F::LikeFirst, B::None, K::Copy),
    row("aten.heaviside.default", F::Elementwise, B::None, K::Elementwise),
    row("aten.isfinite.default", F::Elementwise, B::None, K::Elementwise),
    row("aten.isin.Tensor_Tensor", F::Contiguous, B::None, K::Elementwise),
    // --- composites whose parts make no further storage ---
    written("aten.selu.default", "0: elu_backward g x0", {in(0)}),
    written("aten.relu6.default", "0: hardtanh_backward g x0", {in(0)}),
    written("aten.std.default",
            "0: mul.Scalar r; div.Tensor g 0; eq.Scalar r; masked_fill_.Scalar 1 2;; kept 3; mean x0; sub.Tensor x0 5; "
            "mul.Scalar 4; mul.Tensor 7 6",
            {in(0), out(0)}, F::Contiguous, K::Reduction),
    written("aten.std.dim",
            "0: mul.Scalar r; div.Tensor g 0; eq.Scalar r; masked_fill_.Scalar 1 2;; kept 3; mean x0; sub.Tensor x0 5; "
            "mul.Scalar 4; mul.Tensor 7 6",
            {in(0), out(0)}, F::Contiguous, K::Reduction),
    written("aten.var_mean.default",
            "0: kept g; mean x0; sub.Tensor x0 1; mul.Scalar 0; mul.Tensor 3 2;; g1?kept g1; g1?wide 5; "
            "g1?div.Scalar>L0 6; "
            "g1?add.Tensor 4 7",
            {in(0)}, F::Contiguous, K::Reduction),
    written("aten.var_mean.dim",
            "0: kept g; mean x0; sub.Tensor x0 1; mul.Scalar 0; mul.Tensor 3 2;; g1?kept g1; g1?wide 5; "
            "g1?div.Scalar>L0 6; "
            "g1?add.Tensor 4 7",
            {in(0)}, F::Contiguous, K::Reduction),
    written("aten.std_mean.default",
            "0: mul.Scalar r; div.Tensor g 0; eq.Scalar r; masked_fill_.Scalar 1 2;; kept 3; mean x0; sub.Tensor x0 5; "
            "mul.Scalar 4; mul.Tensor 7 6;; g1?kept g1; g1?wide 9; g1?div.Scalar>L0 10; g1?add.Tensor 8 11",
            {in(0), out(0)}, F::Contiguous, K::Reduction),
    written("aten.std_mean.dim",
            "0: mul.Scalar r; div.Tensor g 0; eq.Scalar r; masked_fill_.Scalar 1 2;; kept 3; mean x0; sub.Tensor x0 5; "
            "mul.Scalar 4; mul.Tensor 7 6;; g1?kept g1; g1?wide 9; g1?div.Scalar>L0 10; g1?add.Tensor 8 11",
            {in(0), out(0)}, F::Contiguous, K::Reduction),
    // --- functionalised views: the same with memory of their own ---
    row("aten.alias_copy.default", F::Contiguous, B::Clone, K::Copy),
    row("aten.as_strided_copy.default", F::Contiguous, B::View, K::Copy),
    row("aten.expand_copy.default", F::Contiguous, B::Expand, K::Copy),
    row("aten.narrow_copy.default", F::Contiguous, B::None, K::Copy),
    row("aten.slice_copy.Tensor", F::Contiguous, B::Slice, K::Copy),
    row("aten.select_copy.int", F::Contiguous, B::Select, K::Copy),
    row("aten.permute_copy.default", F::Contiguous, B::Transpose, K::Copy),
    row("aten.squeeze_copy.default", F::Contiguous, B::Squeeze, K::Copy),
    row("aten.squeeze_copy.dim", F::Contiguous, B::Squeeze, K::Copy),
    row("aten.squeeze_copy.dims", F::Contiguous, B::Squeeze, K::Copy),
    row("aten.t_copy.default", F::Contiguous, B::Transpose, K::Copy),
    row("aten.transpose_copy.int", F::Contiguous, B::Transpose, K::Copy),
    row("aten.unsqueeze_copy.default", F::Contiguous, B::Unsqueeze, K::Copy),
    row("aten.view_copy.default", F::Contiguous, B::View, K::Copy),
    row("aten.split_copy.Tensor", F::Contiguous, B::Split, K::Copy),
    row("aten.split_with_sizes_copy.default", F::Contiguous, B::Split, K::Copy),
    row("aten.unbind_copy.int", F::Contiguous, B::Unbind, K::Copy),
    written("aten.unfold_copy.default", "0: unfold_backward>L0 g", {}, F::Contiguous, K::Copy),
    // --- complex numbers ---
    written("aten.complex.default", "0: half0 g | 1: half1 g", {in(0, 1), in(1, 2)}),
    written("aten.conj_physical.default", "0: _conj_physical g"),
    written("aten.polar.default",
            "*: &conj_physical g; sgn r; &mul.Tensor 0 1;; &mul.Scalar r; &mul.Tensor 0 3 | 0: half0 2 | 1: half0 4",
            {out(0)}),
    written("aten._fft_c2c.default", "0: _fft_c2c g", {}, F::Contiguous, K::Reduction),
    written("aten._fft_r2c.default", "0: zeros L0; constant_pad_nd g; _fft_c2c 1; half0 2", {}, F::Contiguous,
            K::Reduction),
    written("aten._fft_c2r.default", "0: _fft_r2c>L0 g", {}, F::Contiguous, K::Reduction),
    // --- more functions ---
    // Without zeros, of which a GPU asks the host: reversed_cumsum is a function of its own.
    written("aten.cumprod.default", "0: &mul.Tensor r g; &eq.Scalar x0; flip 0; cumsum 2; flip 3;; div.Tensor 4 x0",
            {in(0), out(0)}, F::Contiguous, K::Reduction),
    written("aten.copysign.Scalar", "0: div.Tensor r x0; eq.Scalar x0; masked_fill_.Scalar 0 1; mul.Tensor g 0",
            {in(0), out(0)}),
    written("aten.special_entr.default", "0: log x0; add.Scalar 0; neg 1; mul.Tensor g 2", {in(0)}),
    written("aten.i0.default", "0: special_i1 x0; mul.Tensor g 0", {in(0)}),
    written("aten.special_i0e.default", "0: sgn x0; mul.Tensor 0 r; special_i1e x0; sub.Tensor 2 1; mul.Tensor g 3",
            {in(0), out(0)}),
    written("aten.rrelu_with_noise.default", "0: rrelu_with_noise_backward g x0 x1", {in(0), in(1)}),
    written("aten.dist.default",
            "1: sub.Tensor x0 x1; div.Tensor 0 r; eq.Scalar r; masked_fill_.Scalar 1 2; mul.Tensor g 3; neg 4"
            " | 0: sub.Tensor x0 x1; div.Tensor 6 r; eq.Scalar r; masked_fill_.Scalar 7 8; mul.Tensor g 9",
            {in(1), in(0), out(0)}, F::Contiguous, K::Reduction),
    row("aten.grid_sampler_3d.default", F::Contiguous, B::OwnKernel, K::Gather, {in(1), in(0)}),
    first_only(row("aten.multilabel_margin_loss_forward.default", F::Contiguous, B::OwnKernel, K::Loss,
                   {in(0), in(1), out(1)})),
    row("aten.fractional_max_pool2d.default", F::Contiguous, B::OwnKernel, K::Reduction, {in(0), out(1)}),
    row("aten.fractional_max_pool3d.default", F::Contiguous, B::OwnKernel, K::Reduction, {in(0), out(1)}),
    written("aten.max_unpool2d.default", "0: gather>L0 g x1", {in(1)}, F::Contiguous, K::Gather),
    written("aten.max_unpool3d.default", "0: gather>L0 g x1", {in(1)}, F::Contiguous, K::Gather),
    // --- more without a gradient ---
    row("aten.bitwise_left_shift.Tensor", F::Elementwise, B::None, K::Elementwise),
    row("aten.bitwise_left_shift.Tensor_Scalar", F::Elementwise, B::None, K::Elementwise),
    row("aten.bitwise_right_shift.Tensor", F::Elementwise, B::None, K::Elementwise),
    row("aten.bitwise_right_shift.Tensor_Scalar", F::Elementwise, B::None, K::Elementwise),
    row("aten.__lshift__.Scalar", F::Elementwise, B::None, K::Elementwise),
    row("aten.__rshift__.Scalar", F::Elementwise, B::None, K::Elementwise),
    row("aten.gcd.default", F::Elementwise, B::None, K::Elementwise),
    row("aten.lcm.default", F::Elementwise, B::None, K::Elementwise),
    row("aten.signbit.default", F::Elementwise, B::None, K::Elementwise),
    row("aten.isposinf.default", F::Elementwise, B::None, K::Elementwise),
    row("aten.isneginf.default", F::Elementwise, B::None, K::Elementwise),
    row("aten.nextafter.default", F::Elementwise, B::None, K::Elementwise),
    row("aten.tril_indices.default", F::Contiguous, B::None, K::Elementwise),
    row("aten.triu_indices.default", F::Contiguous, B::None, K::Elementwise),
    row("aten.logspace.default", F::Contiguous, B::None, K::Elementwise),
    row("aten.logspace.Tensor_Tensor", F::Contiguous, B::None, K::Elementwise),
    row("aten.linspace.Tensor_Tensor", F::Contiguous, B::None, K::Elementwise),
    row("aten.linspace.Tensor_Scalar", F::Contiguous, B::None, K::Elementwise),
    row("aten.linspace.Scalar_Tensor", F::Contiguous, B::None, K::Elementwise),
    row("aten.count_nonzero.dim_IntList", F::Contiguous, B::None, K::Reduction),
    row("aten.searchsorted.Scalar", F::Contiguous, B::None, K::Elementwise),
    row("aten.bucketize.Scalar", F::Contiguous, B::None, K::Elementwise),
    row("aten.isin.Tensor_Scalar", F::Elementwise, B::None, K::Elementwise),
    row("aten.new_empty_strided.default", F::Contiguous, B::None, K::Elementwise, {}, 0),
    row("aten.empty_permuted.default", F::Contiguous, B::None, K::Elementwise, {}, 0),
    row("aten.randint_like.default", F::LikeFirst, B::None, K::Elementwise),
    row("aten.randint_like.low_dtype", F::LikeFirst, B::None, K::Elementwise),
    row("aten.randn.generator", F::Contiguous, B::None, K::Elementwise),
    row("aten.normal.float_float", F::Contiguous, B::None, K::Elementwise),
    written("aten.normal.Tensor_float", "0: zeros L0", {}, F::LikeFirst),
    row("aten.cauchy_.default", F::InPlace, B::Zeros, K::Elementwise),
    row("aten.geometric_.default", F::InPlace, B::Zeros, K::Elementwise),
    row("aten.log_normal_.default", F::InPlace, B::Zeros, K::Elementwise),
    row("aten.random_.default", F::InPlace, B::Zeros, K::Elementwise),
    row("aten.bernoulli_.Tensor", F::InPlace, B::Zeros, K::Elementwise),
    row("aten.round.decimals", F::Elementwise, B::Zeros, K::Elementwise),
    row("aten.zero.default", F::LikeFirst, B::Zeros, K::Elementwise),
    // --- cuDNN's recurrent networks: the weights come last; what the reserve holds is cuDNN's own ---
    first_only(row("aten._cudnn_rnn.lstm", F::Contiguous, B::OwnKernel, K::Gemm,
                   {in(0), in(1), in(2), out(0), out(3), out(4)})),
    first_only(
        row("aten._cudnn_rnn.default", F::Contiguous, B::OwnKernel, K::Gemm, {in(0), in(1), out(0), out(3), out(4)})),
    // --- recurrent cells ---
    // Saved for a backward of backward too: the gates.
    written("aten._thnn_fused_lstm_cell.default",
            "*: _thnn_fused_lstm_cell_backward_impl>L0 r1 r2; empty>L2; x3?rows 0 | 0: = 0 | 1: = 0 | 2: = 1 | 3: = 2"
            " | 4: = 2",
            {in(0), in(1), in(2), in(3), in(4), out(1), out(2)}, F::Contiguous, K::Elementwise),
    written("aten._thnn_fused_gru_cell.default",
            "*: _thnn_fused_gru_cell_backward>L0 r1; empty>L1; empty>L2; x3?rows 0; x4?rows 1"
            " | 0: = 0 | 1: = 1 | 2: = 2 | 3: = 3 | 4: = 4",
            {in(0), in(1), in(2), in(3), in(4), out(1)}, F::Contiguous, K::Elementwise),
    // --- attention of cuDNN ---
    first_only(row("aten._scaled_dot_product_cudnn_attention.default", F::Attention, B::EfficientAttention,
                   K::Attention, {in(3), in(1), in(0), in(2), out(1), out(0), out(3), out(2)})),
    // --- no gradient ---
    row("aten.eye.default", F::Contiguous, B::None, K::Elementwise),
    row("aten.eye.m", F::Contiguous, B::None, K::Elementwise),
    row("aten.nonzero.default", F::Contiguous, B::None, K::Reduction),
    row("aten.searchsorted.Tensor", F::Contiguous, B::None, K::Elementwise),
    row("aten.count_nonzero.default", F::Contiguous, B::None, K::Reduction),
    row("aten.embedding_renorm_.default", F::InPlace, B::None, K::Gather),
    row("aten.exponential_.default", F::InPlace, B::Zeros, K::Elementwise),
    row("aten.normal_.default", F::InPlace, B::Zeros, K::Elementwise),
    row("aten.uniform_.default", F::InPlace, B::Zeros, K::Elementwise),
    row("aten.randint.low", F::Contiguous, B::None, K::Elementwise),
    row("aten.randint.default", F::Contiguous, B::None, K::Elementwise),
    row("aten.randperm.default", F::Contiguous, B::None, K::Elementwise),
    row("aten.multinomial.default", F::Contiguous, B::None, K::Reduction),
    row("aten._unique2.default", F::Contiguous, B::None, K::Reduction),
};

/// Operators in place that have no row of their own: as their siblings that make a new tensor, with the same saves (of
/// what they write over autograd keeps a copy).
std::deque<std::pair<std::string, OpRule>> in_place_rules() {
  std::deque<std::pair<std::string, OpRule>> made;  // names stay where they are
  for (const OpRule& rule : kRules) {
    const bool grown = rule.formula == B::Addmm || rule.formula == B::Baddbmm || rule.formula == B::Addbmm ||
                       rule.formula == B::Cumsum;  // results as large as what they are added to
    if ((rule.form != F::Elementwise && rule.form != F::LikeFirst && !grown) || rule.formula == B::None) continue;
    const std::size_t dot = rule.name.rfind('.');
    if (rule.name[dot - 1] == '_') continue;
    std::string name(rule.name.substr(0, dot));
    name += '_';
    name += rule.name.substr(dot);
    made.emplace_back(std::move(name), rule);
    made.back().second.name = made.back().first;
    made.back().second.form = F::InPlace;
  }
  return made;
}

/// The rows in order of names; of equal names that of the table first.
const std::vector<const OpRule*>& by_name() {
  static const auto derived = in_place_rules();
  static const std::vector<const OpRule*> order = [] {
    std::vector<const OpRule*> rows;
    for (const OpRule& rule : kRules) rows.push_back(&rule);
    for (const auto& [name, rule] : derived) rows.push_back(&rule);
    std::stable_sort(rows.begin(), rows.end(), [](auto a, auto b) { return a->name < b->name; });
    return rows;
  }();
  return order;
}

/// Further names of operators, without their overloads: composites that only call the other.
constexpr std::pair<std::string_view, std::string_view> kSynonyms[] = {
    {"aten.__and__", "aten.bitwise_and"},
    {"aten.__or__", "aten.bitwise_or"},
    {"aten.__xor__", "aten.bitwise_xor"},
    {"aten.absolute", "aten.abs"},
    {"aten.arccos", "aten.acos"},
    {"aten.arccosh", "aten.acosh"},
    {"aten.arcsin", "aten.asin"},
    {"aten.arcsinh", "aten.asinh"},
    {"aten.arctan", "aten.atan"},
    {"aten.arctan2", "aten.atan2"},
    {"aten.arctanh", "aten.atanh"},
    {"aten.clip", "aten.clamp"},
    {"aten.concat", "aten.cat"},
    {"aten.concatenate", "aten.cat"},
    {"aten.divide", "aten.div"},
    {"aten.fix", "aten.trunc"},
    {"aten.greater", "aten.gt"},
    {"aten.greater_equal", "aten.ge"},
    {"aten.less", "aten.lt"},
    {"aten.less_equal", "aten.le"},
    {"aten.multiply", "aten.mul"},
    {"aten.negative", "aten.neg"},
    {"aten.not_equal", "aten.ne"},
    {"aten.special_digamma", "aten.digamma"},
    {"aten.special_erf", "aten.erf"},
    {"aten.special_erfc", "aten.erfc"},
    {"aten.special_erfinv", "aten.erfinv"},
    {"aten.special_exp2", "aten.exp2"},
    {"aten.special_expit", "aten.sigmoid"},
    {"aten.special_expm1", "aten.expm1"},
    {"aten.special_gammaln", "aten.lgamma"},
    {"aten.special_log1p", "aten.log1p"},
    {"aten.special_logsumexp", "aten.logsumexp"},
    {"aten.special_psi", "aten.digamma"},
    {"aten.special_round", "aten.round"},
    {"aten.special_sinc", "aten.sinc"},
    {"aten.subtract", "aten.sub"},
    {"aten.swapaxes", "aten.transpose"},
    {"aten.swapdims", "aten.transpose"},
    {"aten.true_divide", "aten.div"},
};

const OpRule* find_row(std::string_view name) {
  const auto& order = by_name();
  const auto at = std::lower_bound(order.begin(), order.end(), name,
                                   [](const OpRule* rule, std::string_view n) { return rule->name < n; });
  return at != order.end() && (*at)->name == name ? *at : nullptr;
}

}  // namespace

const OpRule* find_op_rule(std::string_view name) {
  if (name.starts_with("mesh.")) return find_mesh_rule(name);
  if (const OpRule* rule = find_row(name)) return rule;
  const std::string_view base = name.substr(0, name.rfind('.'));
  for (const auto& [synonym, other] : kSynonyms) {
    if (base != synonym) continue;
    const std::string_view overload = name.substr(base.size());
    const bool transpose = other == "aten.transpose";
    return find_row(std::string(other) + std::string(transpose ? ".int" : overload));
  }
  return nullptr;
}

const OpRule& default_op_rule() {
  static constexpr OpRule rule =
      row("", F::Contiguous, B::Unknown, K::Elementwise, {in(0), in(1), in(2), in(3), out(0), out(1)});
  return rule;
}

std::span<const OpRule> op_rules() { return kRules; }

}  // namespace foreshard
