// Products with a matrix that is stored in 4 or 8 bits (bitsandbytes' MatMul4Bit and MatMul8bitLt): of the matrix
// autograd keeps the stored form. In 4 bits the matrix exists for as long as a product runs, in forward and again in
// backward; in 8 bits forward multiplies integers, backward makes the matrix, and what came in is kept for nothing.
#include <algorithm>
#include <utility>

#include "core/lowering/backward/backward.h"
#include "core/lowering/lowering_machine.h"
#include "core/units.h"

namespace foreshard::lowering {
namespace {

constexpr std::int64_t kBlock = 64;  // elements with a scale of their own

/// dequantize_4bit with nested statistics: the scales first, in float32.
Ref dequantised(Emitter& e, const Ref& stored, const Dims& sizes, DType dtype) {
  const Layout whole = contiguous_layout(sizes, dtype);
  const Layout scales = contiguous_layout({ceil_div(whole.numel(), kBlock)}, DType::Float32);
  const Ref made = e.fresh("bitsandbytes.dequantize_blockwise.default", KernelClass::Elementwise, scales, {}, 2);
  return e.fresh("bitsandbytes.dequantize_4bit.default", KernelClass::Elementwise, whole, {&stored, &made});
}

/// x as rows.
Ref rows_of(Emitter& e, const Ref& x) {
  const Layout& layout = e.layout(x);
  const std::int64_t width = layout.sizes[layout.sizes.n - 1];
  return e.reshape(x, {layout.numel() / std::max<std::int64_t>(width, 1), width});
}

/// Integers, and a scale for each row.
struct QuantisedRows {
  Ref integers, scales;
};

/// int8_vectorwise_quant with a threshold, as LLM.int8() has it: it looks for outliers and finds none.
QuantisedRows quantised_rows(Emitter& e, const Ref& x) {
  const Layout given = e.layout(x);
  const Ref half = e.cast(x, DType::Float16);
  Ref scales = e.fresh("aten.empty.memory_format", KernelClass::Elementwise,
                       contiguous_layout({given.sizes[0]}, DType::Float32), {}, 0);
  Ref made = e.tape().make(contiguous_layout(given.sizes, DType::Int8), e.category());
  {
    const Ref positive = e.elementwise("aten.abs.default", {&half});
    const Ref outliers = e.elementwise("aten.ge.Scalar", {&positive}, DType::Bool);
    e.fresh("aten.any.default", KernelClass::Reduction, contiguous_layout({}, DType::Bool), {&outliers});
  }
  Kernel kernel = e.start("bitsandbytes.int8_vectorwise_quant.default", KernelClass::Reduction, DType::Int8);
  e.finish(kernel, {&half}, {&made, &scales});
  return {std::move(made), std::move(scales)};
}

/// The product of integers, in 32 bits, then as what came in. The rate is that of 16 bits: no profile has another.
Ref integer_product(Emitter& e, const Ref& rows, const Ref& stored, DType dtype, const Ref* bias) {
  const Ref across = e.transpose(stored, 0, 1);
  Kernel kernel =
      e.start_product("bitsandbytes.int8_linear_matmul.default", DType::Float16, e.layout(rows), e.layout(across));
  const Dims sizes{kernel.m, kernel.n};
  const Ref sums = e.tape().make(contiguous_layout(sizes, DType::Int32), e.category());
  e.finish(kernel, {&rows, &stored}, {&sums});
  static const Ref kNone;
  const Ref half = e.fresh("bitsandbytes.int8_mm_dequant.default", KernelClass::Elementwise,
                           contiguous_layout(sizes, DType::Float16), {&sums, bias != nullptr ? bias : &kNone});
  return e.cast(half, dtype);
}

/// CB.to(dtype, copy=True).mul_(SCB / 127)
Ref widened(Emitter& e, const Ref& stored, DType dtype) {
  const Layout whole = contiguous_layout(e.layout(stored).sizes, dtype);
  Ref made = e.fresh("aten._to_copy.default", KernelClass::Elementwise, whole, {&stored});
  const Ref scales =
      e.fresh("aten.mul.Tensor", KernelClass::Elementwise, contiguous_layout({whole.sizes[0], 1}, DType::Float32), {});
  Kernel kernel = e.start("aten.mul_.Tensor", KernelClass::Elementwise, dtype);
  e.finish(kernel, {&made, &scales}, {&made});
  return made;
}

}  // namespace

std::vector<Ref> integer_linear(Emitter& e, const std::vector<Ref>& args, const Layout& result) {
  const Ref rows = rows_of(e, args[0]);
  const QuantisedRows x = quantised_rows(e, rows);
  const Ref y = integer_product(e, x.integers, args[1], result.dtype, args.size() > 2 ? &args[2] : nullptr);
  std::vector<Ref> out;
  out.push_back(e.tape().alias(y, contiguous_layout(result.sizes, result.dtype), false));
  return out;
}

std::vector<Ref> integer_linear_backward(Emitter& e, BackwardInput& in, const Ref& g) {
  std::vector<Ref> out(in.node.in.size());
  if (!in.wants(0)) return out;
  const Layout x = in.node.in[0];
  const Ref rows = rows_of(e, g);
  const Ref back = e.matmul("aten.mm.default", rows, widened(e, in.saved_arg(1), x.dtype));
  out[0] = e.view(back, x.sizes);
  return out;
}

std::vector<Ref> quantised_linear(Emitter& e, const std::vector<Ref>& args, const Layout& result) {
  const Layout x = e.layout(args[0]);
  const Dims sizes{result.sizes[result.sizes.n - 1], x.sizes[x.sizes.n - 1]};
  const Ref matrix = dequantised(e, args[1], sizes, x.dtype);
  const Ref transposed = e.transpose(matrix, 0, 1);
  const Ref rows = rows_of(e, args[0]);
  const bool biased = args.size() > 2;
  const Ref y =
      e.matmul(biased ? "aten.addmm.default" : "aten.mm.default", rows, transposed, biased ? &args[2] : nullptr);
  std::vector<Ref> out;
  out.push_back(e.tape().alias(y, contiguous_layout(result.sizes, result.dtype), false));
  return out;
}

std::vector<Ref> quantised_linear_backward(Emitter& e, BackwardInput& in, const Ref& g) {
  std::vector<Ref> out(in.node.in.size());
  if (!in.wants(0)) return out;
  const Layout x = in.node.in[0];
  const Layout& made = e.layout(g);
  const Dims sizes{made.sizes[made.sizes.n - 1], x.sizes[x.sizes.n - 1]};
  const Ref matrix = dequantised(e, in.saved_arg(1), sizes, made.dtype);
  const Ref rows = rows_of(e, g);
  const Ref back = e.matmul("aten.mm.default", rows, matrix);
  out[0] = e.view(back, x.sizes);
  return out;
}

// ----------------------------------------------------------------------------------------------------------------
// float8: torchao's matmul_with_hp_or_float8_args under Float8Linear. What autograd keeps is what came in; both
// operands of each of the three products are scaled and cast anew. Eager kernels are written down, torch.compile fuses
// them.

namespace {

constexpr int kScaleKernels = 5;    // to float64, clamp, reciprocal, times the largest value, to float32
constexpr int kInverseKernels = 2;  // reciprocals of both scales

/// Forward's operands have finer steps, gradients a wider range; a scale for each row needs no wider range.
DType cast_dtype(bool rowwise, bool gradient) { return gradient && !rowwise ? DType::Float8E5M2 : DType::Float8E4M3; }

/// hp_tensor_to_float8_dynamic: a scale of the whole tensor, or one for each row along `dim` (below 0: of the whole).
Ref cast_down(Emitter& e, const Ref& x, DType dtype, std::int32_t dim) {
  const Layout given = e.layout(x);
  Ref scale;
  {
    const Ref positive = e.elementwise("aten.abs.default", {&x});
    const std::vector<std::int32_t> dims = dim < 0 ? std::vector<std::int32_t>{} : std::vector<std::int32_t>{dim};
    const Ref largest = e.sum(positive, dims, dim >= 0, dim < 0 ? "aten.max.default" : "aten.amax.default",
                              KernelClass::Reduction, given.dtype);
    Layout each = e.layout(largest);
    each.dtype = DType::Float32;
    scale = e.fresh("torchao.amax_to_scale", KernelClass::Elementwise, each, {&largest}, kScaleKernels);
  }
  Ref scaled;
  {
    const Ref wide = e.cast(x, DType::Float32);
    scaled = e.elementwise("aten.mul.Tensor", {&wide, &scale}, DType::Float32);
  }
  const Ref bounded = e.elementwise("aten.clamp.default", {&scaled}, DType::Float32);
  return e.elementwise("aten._to_copy.default", {&bounded}, dtype);
}

/// cuBLAS takes 8 bits in one order alone: rows of the left side and columns of the right one lie together.
Ref ordered(Emitter& e, const Ref& x, bool left) {
  const Layout given = e.layout(x);
  const bool rows_lie_together = given.strides[1] == 1;
  if (rows_lie_together == left) return x;
  Layout whole = contiguous_layout(given.sizes, given.dtype);
  if (!left) whole.strides = Dims{1, given.sizes[0]};
  return e.fresh("aten.clone.default", KernelClass::Copy, whole, {&x});
}

/// torch._scaled_mm of [m, k] and [k, n].
Ref scaled_product(Emitter& e, const Ref& a, const Ref& b, DType result) {
  const Ref left = ordered(e, a, true), right = ordered(e, b, false);
  Kernel kernel = e.start_product("aten._scaled_mm.default", e.layout(left).dtype, e.layout(left), e.layout(right));
  kernel.launches = 1 + kInverseKernels;
  Ref out = e.tape().make(contiguous_layout({kernel.m, kernel.n}, result), e.category());
  e.finish(kernel, {&left, &right}, {&out});
  return out;
}

bool by_rows(const Op* op) { return op->name == "torchao.matmul_float8_rowwise.default"; }

}  // namespace

std::vector<Ref> float8_linear(Emitter& e, const std::vector<Ref>& args, const Layout& result) {
  const bool rowwise = by_rows(e.op());
  const DType dtype = cast_dtype(rowwise, false);
  const std::int32_t last = e.layout(args[0]).sizes.n - 1;
  const Ref x = cast_down(e, args[0], dtype, rowwise ? last : -1);
  const Ref matrix = cast_down(e, e.transpose(args[1], 0, 1), dtype, rowwise ? 0 : -1);
  const Ref y = scaled_product(e, rows_of(e, x), matrix, result.dtype);
  std::vector<Ref> out;
  out.push_back(e.tape().alias(y, contiguous_layout(result.sizes, result.dtype), false));
  return out;
}

std::vector<Ref> float8_linear_backward(Emitter& e, BackwardInput& in, const Ref& g) {
  std::vector<Ref> out(in.node.in.size());
  const bool rowwise = by_rows(in.node.op);
  const DType forward = cast_dtype(rowwise, false), backward = cast_dtype(rowwise, true);
  const DType result = in.node.in[0].dtype;
  const Ref rows = rows_of(e, g);
  // Both gradients are computed whether anybody wants them or not: the function does not ask. Its names live on.
  const Ref by_row = cast_down(e, rows, backward, rowwise ? 1 : -1);
  const Ref matrix = cast_down(e, e.transpose(in.saved_arg(1), 0, 1), forward, rowwise ? 1 : -1);
  const Ref back = scaled_product(e, by_row, e.transpose(matrix, 0, 1), result);
  const Ref by_column = cast_down(e, rows, backward, rowwise ? 0 : -1);
  const Ref x = cast_down(e, rows_of(e, in.saved_arg(0)), forward, rowwise ? 0 : -1);
  const Ref grown = scaled_product(e, e.transpose(by_column, 0, 1), x, result);
  if (in.wants(0)) out[0] = e.view(back, in.node.in[0].sizes);
  if (in.wants(1)) out[1] = grown;
  return out;
}

}  // namespace foreshard::lowering
