#include "core/lowering/float8/float8_products.h"

#include <algorithm>

#include "core/lowering/lowering_machine.h"
#include "core/lowering/mesh_rules.h"

namespace foreshard::lowering {
namespace {

constexpr std::int32_t kWhole = -1;

/// A Float8TrainingTensor.
struct Scaled {
  Ref data, scale;  // scale: none of a matrix that came scaled
  bool by_row = false;
};

struct Recipe {
  bool rowwise = false;         // a scale for each row
  bool gathered = false;        // the matrix comes in 8 bits
  bool wide_gradient = false;   // the matrix's gradient is a product in 16 bits, x's one of a matrix with one scale
  std::int32_t dimension = -1;  // of the model's mesh, whose ranks have parts of the matrix; -1: whole
  bool inner = false;           // parts of its columns, which the product sums over; else of its rows
};

Recipe recipe_of(const Op* op) {
  const bool wide = op->name == "torchao.matmul_float8_rowwise_with_gw_hp.default";
  return {wide || op->name == "torchao.matmul_float8_rowwise.default",
          op->name == "torchao.matmul_float8_gathered.default", wide,
          static_cast<std::int32_t>(int_arg(*op, op->args.size(), "mesh", -1)),
          int_arg(*op, op->args.size(), "inner", 0) != 0};
}

/// Forward's operands have finer steps, gradients a wider range; a scale for each row needs no wider range.
DType cast_dtype(Recipe recipe, bool gradient) {
  return gradient && !recipe.rowwise ? DType::Float8E5M2 : DType::Float8E4M3;
}

Ref wide(Emitter& e, std::string_view name, const Ref& x) { return e.elementwise(name, {&x}, DType::Float64); }

/// amax_to_scale: the format's largest number by the tensor's, in float64 on the way. Of rows a power of two. What
/// ranks have parts of (`met`: the dimension of the mesh) is the largest of theirs: a cast leaves it Partial, a clamp
/// does not.
Ref scale_of(Emitter& e, const Ref& largest, bool rounded, std::int32_t met) {
  Ref amax = wide(e, "aten._to_copy.default", largest);
  if (met >= 0) amax = largest_of_ranks(e, amax, met);
  Ref scale;
  {
    const Ref bounded = wide(e, "aten.clamp.default", amax);
    const Ref inverse = wide(e, "aten.reciprocal.default", bounded);
    scale = wide(e, "aten.mul.Tensor", inverse);
  }
  scale = e.cast(scale, DType::Float32);
  if (!rounded) return scale;
  Ref power = e.elementwise("aten.log2.default", {&scale});
  power = e.elementwise("aten.floor.default", {&power});
  return e.elementwise("aten.exp2.default", {&power});
}

/// hp_tensor_to_float8_dynamic: a scale for each row along `dim`, or (kWhole) one of the whole tensor. `cut`: the
/// dimension that ranks have parts of; -1: none.
Scaled cast_down(Emitter& e, const Ref& x, Recipe recipe, bool gradient, std::int32_t dim, std::int32_t cut) {
  Scaled made;
  made.by_row = recipe.rowwise && dim != kWhole;
  {
    Ref largest;
    {
      const Ref positive = e.elementwise("aten.abs.default", {&x});
      const std::vector<std::int32_t> dims = made.by_row ? std::vector{dim} : std::vector<std::int32_t>{};
      const std::string_view name = made.by_row ? "aten.amax.default" : "aten.max.default";
      largest = e.machine().inside.of(
          name, [&] { return e.sum(positive, dims, made.by_row, name, KernelClass::Reduction, e.layout(x).dtype); });
    }
    const bool meets = cut >= 0 && (!made.by_row || dim == cut);
    made.scale = scale_of(e, largest, recipe.rowwise, meets ? recipe.dimension : -1);
  }
  Ref scaled;
  {
    const Ref unscaled = e.cast(x, DType::Float32);
    scaled = e.elementwise("aten.mul.Tensor", {&unscaled, &made.scale}, DType::Float32);
  }
  const Ref bounded = e.elementwise("aten.clamp.default", {&scaled}, DType::Float32);
  made.data = e.elementwise("aten._to_copy.default", {&bounded}, cast_dtype(recipe, gradient));
  return made;
}

/// The matrix of a layer, turned: as it was gathered, or cast now, where scales are those of its `dim`.
Scaled turned_matrix(Emitter& e, const Ref& matrix, Recipe recipe, std::int32_t dim) {
  const Ref turned = e.transpose(matrix, 0, 1);
  const std::int32_t cut = recipe.dimension < 0 ? -1 : recipe.inner ? 0 : 1;
  if (!recipe.gathered) return cast_down(e, turned, recipe, false, dim, cut);
  Layout narrow = e.layout(turned);
  narrow.dtype = DType::Float8E4M3;
  return {e.tape().alias(turned, narrow, false), {}, false};
}

Scaled across(Emitter& e, const Scaled& x) {
  const bool turns = x.by_row && x.scale;
  return {e.transpose(x.data, 0, 1), turns ? e.transpose(x.scale, 0, 1) : x.scale, x.by_row};
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

Ref inverse_of(Emitter& e, const Scaled& x) {
  if (x.scale) return e.elementwise("aten.reciprocal.default", {&x.scale});
  return e.fresh("aten.reciprocal.default", KernelClass::Elementwise, contiguous_layout({}, DType::Float32), {});
}

Ref one(Emitter& e) {
  return e.fresh("aten.new_ones.default", KernelClass::Elementwise, contiguous_layout({}, DType::Float32), {});
}

/// addmm_float8_unwrapped of [m, k] and [k, n]. Only forward's product is summed fast. Without that rows' scales are
/// multiplied in behind it, by a matrix of them in float32; the product by rows knows no float32 result either.
Ref scaled_product(Emitter& e, const Scaled& a, const Scaled& b, DType result, bool fast) {
  const Ref left = ordered(e, a.data, true), right = ordered(e, b.data, false);
  Scaled columns{b.data, b.scale, b.by_row};
  if (a.by_row && !b.by_row)  // its one scale is repeated
    columns.scale = e.fresh("aten.repeat.default", KernelClass::Copy,
                            contiguous_layout({1, e.layout(b.data).sizes[1]}, DType::Float32), {&b.scale});
  Ref left_inverse = inverse_of(e, a), right_inverse = inverse_of(e, columns);
  Ref behind;
  if (a.by_row && !fast) {
    behind = e.elementwise("aten.mul.Tensor", {&left_inverse, &right_inverse}, DType::Float32);
    left_inverse = one(e);
    right_inverse = one(e);
  }
  const DType made = a.by_row && result == DType::Float32 ? DType::BFloat16 : result;
  Kernel kernel = e.start_product("aten._scaled_mm.default", e.layout(left).dtype, e.layout(left), e.layout(right));
  Ref out = e.tape().make(contiguous_layout({kernel.m, kernel.n}, made), e.category());
  e.finish(kernel, {&left, &right}, {&out});
  if (behind) {
    Kernel scale = e.start("aten.mul_.Tensor", KernelClass::Elementwise, made);
    e.finish(scale, {&out, &behind}, {&out});
  }
  return e.cast(out, result);
}

}  // namespace

std::vector<Ref> float8_linear(Emitter& e, const std::vector<Ref>& args, const Layout& result) {
  const Recipe recipe = recipe_of(e.op());
  const std::int32_t last = e.layout(args[0]).sizes.n - 1;
  const Scaled x = cast_down(e, args[0], recipe, false, last, recipe.inner ? last : -1);
  const Scaled matrix = turned_matrix(e, args[1], recipe, 0);
  const Scaled rows{rows_of(e, x.data), x.scale, x.by_row};
  // A mode sees the product of two Float8TrainingTensors, not what that is made of.
  const Ref y =
      e.machine().inside.of("aten.mm.default", [&] { return scaled_product(e, rows, matrix, result.dtype, true); });
  std::vector<Ref> out;
  out.push_back(e.tape().alias(y, contiguous_layout(result.sizes, result.dtype), false));
  return out;
}

std::vector<Ref> float8_linear_backward(Emitter& e, BackwardInput& in, const Ref& g) {
  std::vector<Ref> out(in.node.in.size());
  const Recipe recipe = recipe_of(in.node.op);
  const DType result = in.node.in[0].dtype;
  const Ref rows = rows_of(e, g);
  const std::int32_t cut = recipe.dimension >= 0 && !recipe.inner ? 1 : -1;  // of what comes back
  // Both gradients are computed whether anybody wants them or not: the function does not ask. Its names live on.
  const Scaled by_row = cast_down(e, rows, recipe, true, 1, cut);
  const Scaled matrix = turned_matrix(e, in.saved_arg(1), recipe, recipe.wide_gradient ? kWhole : 1);
  const Ref back = scaled_product(e, by_row, across(e, matrix), result, false);
  Scaled by_column, x;
  Ref grown;
  if (recipe.wide_gradient) {
    grown = e.matmul("aten.mm.default", e.transpose(rows, 0, 1), rows_of(e, in.saved_arg(0)));
  } else {
    by_column = cast_down(e, rows, recipe, true, 0, cut);
    x = cast_down(e, rows_of(e, in.saved_arg(0)), recipe, false, 0, recipe.inner ? 1 : -1);
    grown = scaled_product(e, across(e, by_column), x, result, false);
  }
  if (in.wants(0)) out[0] = e.view(back, in.node.in[0].sizes);
  if (in.wants(1)) out[1] = grown;
  return out;
}

}  // namespace foreshard::lowering
