#include "core/lowering/composed/composed.h"

#include <algorithm>
#include <iterator>
#include <string_view>

#include "core/lowering/lowering_machine.h"
#include "core/units.h"

namespace foreshard::lowering {
namespace {

Ref product(Emitter& e, const Ref& a, const Ref& b) {
  return e.matmul(e.layout(a).sizes.n >= 3 ? "aten.bmm.default" : "aten.mm.default", a, b);
}

Ref swapped(Emitter& e, const Ref& a) {
  const std::int32_t n = e.layout(a).sizes.n;
  return e.transpose(a, n - 2, n - 1);
}

Ref sum_over(Emitter& e, const Ref& a, std::int32_t from_behind, bool keepdim) {
  const std::int32_t dim = e.layout(a).sizes.n - from_behind;
  return e.sum(a, {dim}, keepdim, "aten.sum.dim_IntList", KernelClass::Reduction, e.layout(a).dtype);
}

Ref beside(Emitter& e, const Ref& points, const Ref& a, const Ref& b) {
  Layout layout = e.layout(points);
  layout.sizes[layout.sizes.n - 1] += 2;
  layout = contiguous_layout(layout.sizes, layout.dtype);
  return e.fresh("aten.cat.default", KernelClass::Copy, layout, {&points, &a, &b});
}

/// Squares of the points' lengths.
Ref lengths(Emitter& e, const Ref& points) {
  const Ref squares = e.elementwise("aten.pow.Tensor_Scalar", {&points});
  return sum_over(e, squares, 1, true);
}

Ref ones_like(Emitter& e, const Ref& a) {
  return e.fresh("aten.ones_like.default", KernelClass::Elementwise, e.layout(a), {});
}

void in_place(Emitter& e, std::string_view name, const Ref& a, const Ref* other = nullptr) {
  static const Ref kNone;
  Kernel kernel = e.start(name, KernelClass::Elementwise, e.layout(a).dtype);
  e.finish(kernel, {&a, other != nullptr ? other : &kNone}, {&a});
}

/// linspace_from_neg_one: from -1 to 1, drawn in by half a step where corners are not aligned. Where the numbers are
/// used they are copied, and go.
void fill_places(Emitter& e, const Ref& grid, std::int64_t steps, bool aligned) {
  Dims sizes;
  sizes.push(steps);
  const Layout line = contiguous_layout(sizes, e.layout(grid).dtype);
  Ref places = e.fresh("aten.linspace.default", KernelClass::Elementwise, line, {});
  if (aligned || steps <= 1) return in_place(e, "aten.copy_", grid, &places);
  const Ref scaled = e.elementwise("aten.mul.Tensor", {&places});
  const Ref drawn_in = e.elementwise("aten.div.Tensor", {&scaled});
  places = Ref();
  in_place(e, "aten.copy_", grid, &drawn_in);
}

/// [n, places, 2 or 3 and 1]: make_base_grid_4D, make_base_grid_5D. `sizes`: of what is sampled.
Ref base_grid(Emitter& e, const std::vector<std::int64_t>& sizes, bool aligned, DType dtype) {
  Dims whole;
  whole.push(sizes[0]);
  std::int64_t places = 1;
  for (std::size_t d = 2; d < sizes.size(); ++d) places *= sizes[d];
  whole.push(places);
  whole.push(static_cast<std::int64_t>(sizes.size()) - 1);
  Ref grid = e.tape().make(contiguous_layout(whole, dtype), SlotCategory::Temporary);
  for (std::size_t d = sizes.size(); d-- > 2;) fill_places(e, grid, sizes[d], aligned);
  in_place(e, "aten.fill_.Scalar", grid);
  return grid;
}

struct Sampling {
  std::vector<std::int64_t> sizes;
  bool aligned = false;
};

Sampling sampling_of(const Op& op, std::int64_t batch) {
  Sampling asked{list_arg(op, 1, "size"), bool_arg(op, 2, "align_corners", false)};
  if (asked.sizes.size() < 4) asked.sizes = {batch, 1, 1, 1};  // not said
  return asked;
}

}  // namespace

std::vector<Ref> euclidean_distances(Emitter& e, const std::vector<Ref>& args) {
  const Ref& x = args[0];
  const Ref& y = args[1];
  Ref x_length = lengths(e, x), x_ones = ones_like(e, x_length);
  Ref y_length = lengths(e, y), y_ones = ones_like(e, y_length);
  Ref left, right;
  {
    const Ref twice = e.elementwise("aten.mul.Tensor", {&x});
    left = beside(e, twice, x_length, x_ones);
    x_length = x_ones = Ref();
  }
  right = beside(e, y, y_ones, y_length);
  y_length = y_ones = Ref();
  Ref far = e.matmul(e.op()->name, left, swapped(e, right));
  in_place(e, "aten.clamp_min_.default", far);
  in_place(e, "aten.sqrt_.default", far);
  return {far};
}

/// The ratio of gradient and distance, zero where that is; both gradients are made, as one expression.
std::vector<Ref> euclidean_distances_backward(Emitter& e, BackwardInput& in, const Ref& g) {
  const Ref x = in.saved_arg(0), y = in.saved_arg(1), far = in.saved_result(0);
  std::vector<Ref> out(in.node.in.size());
  if (!x || !y || !far) return out;
  const Ref ratio = e.elementwise("aten.div.Tensor", {&g, &far});
  {
    const Ref none = e.elementwise("aten.eq.Scalar", {&far}, DType::Bool);
    in_place(e, "aten.masked_fill_.Scalar", ratio, &none);
  }
  const Ref met = product(e, ratio, y), rows = sum_over(e, ratio, 1, true);
  const Ref own = e.elementwise("aten.mul.Tensor", {&x, &rows});
  Ref of_x = e.elementwise("aten.sub.Tensor", {&own, &met});
  const Ref back = product(e, swapped(e, ratio), x), columns = sum_over(e, ratio, 2, false);
  Dims column = e.layout(columns).sizes;
  column.push(1);
  const Ref upright = e.view(columns, column);
  const Ref other = e.elementwise("aten.mul.Tensor", {&y, &upright});
  Ref of_y = e.elementwise("aten.sub.Tensor", {&other, &back});
  if (in.wants(0)) out[0] = of_x;
  if (in.wants(1)) out[1] = of_y;
  return out;
}

std::vector<Ref> affine_grid(Emitter& e, const std::vector<Ref>& args, const Layout& result) {
  const Layout theta = e.layout(args[0]);
  const Sampling asked = sampling_of(*e.op(), theta.sizes[0]);
  const Ref grid = base_grid(e, asked.sizes, asked.aligned, theta.dtype);
  const Ref placed = e.matmul(e.op()->name, grid, swapped(e, args[0]));
  return {e.tape().alias(placed, result, false)};
}

std::vector<Ref> affine_grid_backward(Emitter& e, BackwardInput& in, const Ref& g) {
  std::vector<Ref> out(in.node.in.size());
  if (!in.wants(0)) return out;
  const Layout theta = in.node.in[0];
  const Sampling asked = sampling_of(*e.op(), theta.sizes[0]);
  const Ref grid = base_grid(e, asked.sizes, asked.aligned, theta.dtype);
  Dims rows = e.layout(grid).sizes;
  rows[2] = theta.sizes[1];
  const Ref placed = e.reshape(g, rows);
  out[0] = swapped(e, e.matmul("aten.bmm.default", swapped(e, grid), placed));
  return out;
}

std::vector<Bytes> topk_workspace(const Op& op, const Layout& input, std::int64_t multiprocessors) {
  constexpr std::int64_t kThreads = 256, kDigits = 256, kBlocksByRegisters = 65536 / (40 * kThreads);
  struct Least {
    std::int64_t slices, size;
  };
  constexpr Least kLeast[] = {{20, 20000}, {40, 10000}, {80, 8000}, {200, 5000}, {800, 3000}, {4000, 800}};
  if (input.sizes.n == 0 || input.numel() == 0 || multiprocessors <= 0) return {};
  const std::int64_t size = input.sizes[wrap_dim(int_arg(op, 2, "dim", -1), input.sizes.n)];
  const std::int64_t slices = input.numel() / size, itemsize = foreshard::itemsize(input.dtype);
  const auto* least =
      std::find_if(std::begin(kLeast), std::end(kLeast), [&](const Least& l) { return slices <= l.slices; });
  if (size < (least == std::end(kLeast) ? 400 : least->size)) return {};
  const std::int64_t each = ceil_div(input.numel(), multiprocessors * kBlocksByRegisters * kThreads);
  const std::int64_t items = std::clamp<std::int64_t>(each, 4, 64) * kThreads;
  const std::int64_t blocks = slices * ceil_div(size, items);
  const Bytes radix = std::max<Bytes>(itemsize, 4);
  // The k-th values, what is left to find, the digits so far, counts by digit and block and their sums, and those of
  // each block; a scan's own comes and goes.
  return {slices * itemsize,    8 * slices, 2 * radix * slices, 2 * kDigits * blocks,
          4 * kDigits * slices, 4 * blocks, 4 * blocks,         1279};
}

namespace {

Bytes aligned(Bytes bytes) { return round_up(bytes, Bytes{256}); }

/// cub's DeviceRadixSort of `count` pairs with places of eight bytes: the other buffers, states of each tile, and
/// histograms of every digit.
Bytes radix_sort_bytes(std::int64_t count, Bytes key) {
  const std::int64_t tile = key >= 8 ? 4608 : key >= 4 ? 5376 : 5632;
  return aligned(key * count) + aligned(8 * count) + 1024 * ceil_div(count, tile) + 2048 * key + 511;
}

}  // namespace

std::vector<Bytes> sort_workspace(const Op& op, const Layout& input) {
  constexpr std::int64_t kInPlace = 4096, kLarge = 1'000'000, kSegments = 128;
  if (input.sizes.n == 0 || input.numel() <= 1) return {};
  const std::int32_t dim = wrap_dim(int_arg(op, 1, "dim", -1), input.sizes.n);
  const std::int64_t size = input.sizes[dim], numel = input.numel(), segments = numel / size;
  const Bytes key = itemsize(input.dtype);
  std::vector<Bytes> bytes;
  if (op.name.starts_with("aten.argsort.")) bytes.push_back(key * numel);  // the sorted values, which nobody wants
  if (size <= kInPlace) {
    bytes.push_back(8 * size);
    return bytes;
  }
  if (input.strides[dim] != 1) bytes.insert(bytes.end(), {key * numel, key * numel, 8 * numel});  // it is made the last
  if (segments == 1 || size >= kLarge) {
    bytes.insert(bytes.end(), {8 * size, radix_sort_bytes(size, key)});
  } else if (segments < kSegments) {  // all at once, then by their slices
    bytes.insert(bytes.end(), {8 * numel, 8 * numel, key * numel, radix_sort_bytes(numel, key)});
  } else {
    bytes.insert(bytes.end(), {8 * numel, aligned(key * numel) + aligned(8 * numel) + 255});
  }
  return bytes;
}

std::vector<Bytes> accumulated_put_workspace(std::int64_t count) {
  constexpr std::int64_t kOneTile = 3072;
  if (count == 0) return {};
  const Bytes indices = 8 * count, scratch = count <= kOneTile ? 1 : 16 * count + count / 5 + 6144;
  return {indices, indices, indices, indices, scratch};
}

std::vector<Bytes> masked_scatter_workspace(const Layout& result) {
  constexpr std::int64_t kTile = 896, kWarp = 32, kState = 16;
  const std::int64_t numel = result.numel();
  return {8 * numel, aligned((ceil_div(numel, kTile) + kWarp) * kState) + 511};
}

std::vector<Ref> block_diag_backward(Emitter& e, BackwardInput& in, const Ref& g) {
  std::vector<Ref> out(in.node.in.size());
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (!in.wants(i)) continue;
    Layout piece = plain(in.node.in[i]);
    for (std::int32_t d = piece.sizes.n, of = e.layout(g).sizes.n; d-- > 0 && of-- > 0;)
      piece.strides[d] = e.layout(g).strides[of];
    out[i] = e.tape().alias(g, piece);
  }
  return out;
}

Ref resized_like(Emitter& e, const Layout& input, const Layout& result) {
  if (result.bytes() <= input.bytes()) {
    const Ref room = e.tape().make_bytes(input.bytes(), e.category());
    return e.tape().alias(room, result, false);
  }
  const Ref too_small = e.tape().make_bytes(input.bytes(), SlotCategory::Temporary);
  return e.tape().make(result, e.category());
}

}  // namespace foreshard::lowering
