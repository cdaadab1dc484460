// Products with a matrix that is stored in 4 bits (bitsandbytes' MatMul4Bit): what autograd keeps is the stored form,
// and the matrix exists for as long as a product runs, in forward and again in backward.
#include <algorithm>

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

}  // namespace

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
