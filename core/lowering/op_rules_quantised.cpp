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

Ref rows_of(Emitter& e, const Ref& x) {
  const Layout& layout = e.layout(x);
  const std::int64_t width = layout.sizes[layout.sizes.n - 1];
  return e.reshape(x, {layout.numel() / std::max<std::int64_t>(width, 1), width});
}

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

}  // namespace foreshard::lowering
