#include "core/model/op_rules.h"

#include <algorithm>
#include <vector>

namespace foreshard {

namespace {

using F = OpForm;
using B = OpFormula;
using K = KernelClass;

constexpr SaveRule in(int index, int if_grad = 0) {
  return {false, static_cast<std::uint8_t>(index), static_cast<std::uint8_t>(if_grad)};
}
constexpr SaveRule out(int index) { return {true, static_cast<std::uint8_t>(index), 0}; }

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
    row("aten.select.int", F::Select, B::Select, K::Copy),
    row("aten.unbind.int", F::Select, B::Unbind, K::Copy),
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
    row("aten.bernoulli_.float", F::InPlace, B::None, K::Elementwise),
    row("aten.div_.Scalar", F::InPlace, B::Div, K::Elementwise),
    row("aten.fill_.Scalar", F::InPlace, B::Zeros, K::Elementwise),
    row("aten.add_.Tensor", F::InPlace, B::Add, K::Elementwise),
    row("aten.add_.Scalar", F::InPlace, B::Add, K::Elementwise),
    row("aten.mul_.Scalar", F::InPlace, B::Mul, K::Elementwise),
    row("aten.relu_.default", F::InPlace, B::Relu, K::Elementwise, {out(0)}),
    row("aten.masked_fill_.Scalar", F::InPlace, B::MaskedFill, K::Elementwise, {in(1)}),
    row("aten.zero_.default", F::InPlace, B::Zeros, K::Elementwise),
    row("aten.copy_.default", F::InPlace, B::None, K::Copy),
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
    first_only(row("aten.native_layer_norm.default", F::LayerNorm, B::LayerNorm, K::Reduction,
                   {in(0), in(1), in(2), out(1), out(2)})),
    // --- loss ---
    row("aten._log_softmax.default", F::Contiguous, B::LogSoftmax, K::Loss, {out(0)}),
    first_only(row("aten.nll_loss_forward.default", F::Contiguous, B::NllLoss, K::Loss, {in(0), in(1), out(1)})),
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
                   {in(0), in(1), in(2), out(0), out(1), out(2), out(3)})),
    first_only(row("aten._scaled_dot_product_flash_attention_for_cpu.default", F::Attention, B::FlashAttention,
                   K::Attention, {in(0), in(1), in(2), in(3), out(0), out(1)})),
    first_only(row("aten._scaled_dot_product_efficient_attention.default", F::Attention, B::EfficientAttention,
                   K::Attention, {in(0), in(1), in(2), in(3), out(0), out(1), out(2), out(3)})),
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
    row("aten.min.default", F::Contiguous, B::None, K::Reduction),
    row("aten.floor_divide.default", F::Elementwise, B::None, K::Elementwise),
    row("aten.minimum.default", F::Elementwise, B::Extremum, K::Elementwise, {in(1), in(0)}),
    row("aten.maximum.default", F::Elementwise, B::Extremum, K::Elementwise, {in(1), in(0)}),
    row("aten.clamp.default", F::Elementwise, B::Clamp, K::Elementwise, {in(0)}),
    row("aten.roll.default", F::Elementwise, B::Roll, K::Copy),
    row("aten.stack.default", F::Contiguous, B::Stack, K::Copy),
    row("aten.div_.Tensor", F::InPlace, B::Div, K::Elementwise, {in(1, 3), in(0, 2)}),
    row("aten.dot.default", F::Contiguous, B::Mul, K::Reduction, {in(1, 1), in(0, 2)}),
    row("aten.var.correction", F::Contiguous, B::Var, K::Reduction, {in(0)}),
    row("aten.linalg_vector_norm.default", F::Contiguous, B::VectorNorm, K::Reduction, {in(0), out(0)}),
    row("aten.logsumexp.default", F::Contiguous, B::LogSumExp, K::Reduction, {in(0), out(0)}),
    row("aten.mse_loss.default", F::Contiguous, B::MseLoss, K::Loss, {in(0), in(1)}),
    // --- images ---
    row("aten.convolution.default", F::Contiguous, B::Convolution, K::Gemm, {in(0), in(1)}),
    first_only(row("aten.native_batch_norm.default", F::LayerNorm, B::OwnKernel, K::Reduction,
                   {in(0), in(3), in(4), in(1), out(1), out(2)})),
    first_only(row("aten.cudnn_batch_norm.default", F::LayerNorm, B::OwnKernel, K::Reduction,
                   {in(0), in(3), in(4), in(1), out(1), out(2), out(3)})),
    row("aten.max_pool2d_with_indices.default", F::Contiguous, B::OwnKernel, K::Reduction, {in(0), out(1)}),
    row("aten.avg_pool2d.default", F::Contiguous, B::OwnKernel, K::Reduction, {in(0)}),
    row("aten.upsample_nearest2d.default", F::Contiguous, B::OwnKernel, K::Copy),
    first_only(row("aten.nll_loss2d_forward.default", F::Contiguous, B::OwnKernel, K::Loss, {in(0), in(1), out(1)})),
    // --- experts ---
    row("aten._grouped_mm.default", F::Contiguous, B::GroupedMm, K::Gemm, {in(1, 1), in(0, 2), in(2)}),
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
    row("aten.native_group_norm.default", F::LayerNorm, B::OwnKernel, K::Reduction, {in(0), in(1), out(1), out(2)}),
    first_only(row("aten._fused_rms_norm.default", F::LayerNorm, B::OwnKernel, K::Reduction, {in(0), in(1), out(1)})),
    first_only(row("aten._native_batch_norm_legit_functional.default", F::LayerNorm, B::OwnKernel, K::Reduction,
                   {in(0), in(3), in(4), in(1), out(1), out(2)})),
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
    row("aten.grid_sampler_2d.default", F::Contiguous, B::OwnKernel, K::Gather, {in(0), in(1)}),
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
    row("aten.max.default", F::Contiguous, B::None, K::Reduction),
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
    row("aten.bernoulli.default", F::LikeFirst, B::None, K::Elementwise),
    row("aten.bernoulli.p", F::LikeFirst, B::None, K::Elementwise),
    row("aten.linspace.default", F::Contiguous, B::None, K::Elementwise),
};

/// Positions of the rows in order of names.
const std::vector<std::uint16_t>& by_name() {
  static const std::vector<std::uint16_t> order = [] {
    std::vector<std::uint16_t> positions(std::size(kRules));
    for (std::size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<std::uint16_t>(i);
    std::sort(positions.begin(), positions.end(), [](auto a, auto b) { return kRules[a].name < kRules[b].name; });
    return positions;
  }();
  return order;
}

}  // namespace

const OpRule* find_op_rule(std::string_view name) {
  const auto& order = by_name();
  const auto at = std::lower_bound(order.begin(), order.end(), name,
                                   [](std::uint16_t i, std::string_view n) { return kRules[i].name < n; });
  return at != order.end() && kRules[*at].name == name ? &kRules[*at] : nullptr;
}

const OpRule& default_op_rule() {
  static constexpr OpRule rule =
      row("", F::Contiguous, B::Unknown, K::Elementwise, {in(0), in(1), in(2), in(3), out(0), out(1)});
  return rule;
}

std::span<const OpRule> op_rules() { return kRules; }

}  // namespace foreshard
