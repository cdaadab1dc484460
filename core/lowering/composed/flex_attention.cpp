// flex_attention and its block mask without a compiler (torch/_higher_order_ops/flex_attention.py,
// torch/nn/attention/flex_attention.py of PyTorch 2.11): scores are made whole, in float32, in forward and again in
// backward; mask_mod runs under vmap over batch, heads, queries and keys. Functions return in Python's order: what a
// name means goes where it is bound anew, the rest where its function returns.
#include <algorithm>

#include "core/lowering/composed/composed.h"
#include "core/lowering/lowering_machine.h"
#include "core/units.h"

namespace foreshard::lowering {
namespace {

constexpr std::int64_t kBlock = 128;  // _DEFAULT_SPARSE_BLOCK_SIZE

Ref made(Emitter& e, std::string_view name, const Dims& sizes, DType dtype, std::initializer_list<const Ref*> inputs) {
  return e.fresh(name, KernelClass::Elementwise, contiguous_layout(sizes, dtype), inputs);
}

/// One element.
Ref point(Emitter& e, DType dtype) { return made(e, "aten.fill_.Scalar", {}, dtype, {}); }

void write_over(Emitter& e, std::string_view name, const Ref& a, const Ref& other = {}) {
  Kernel kernel = e.start(name, KernelClass::Elementwise, e.layout(a).dtype);
  e.finish(kernel, {&a, &other}, {&a});
}

Ref reduced(Emitter& e, std::string_view name, const Dims& sizes, DType dtype, const Ref& input) {
  return e.fresh(name, KernelClass::Reduction, contiguous_layout(sizes, dtype), {&input});
}

/// b, h, m and n.
struct Places {
  Ref batches, heads, queries, keys;
};

Places places(Emitter& e, std::int64_t batch, std::int64_t heads, std::int64_t queries, std::int64_t keys) {
  const auto count = [&](std::int64_t n) { return made(e, "aten.arange.start", {n}, DType::Int64, {}); };
  Places at;
  at.batches = count(batch);
  at.heads = count(heads);
  at.queries = count(queries);
  at.keys = count(keys);
  return at;
}

/// A causal mask_mod behind add_offsets_to_mask_function: of neither batches nor heads.
Ref seen(Emitter& e, const Places& at) {
  const Ref queries = e.elementwise("aten.add.Tensor", {&at.queries});
  const Ref keys = e.elementwise("aten.add.Tensor", {&at.keys});
  return made(e, "aten.le.Tensor", {e.layout(queries).sizes[0], e.layout(keys).sizes[0]}, DType::Bool,
              {&queries, &keys});
}

/// repeat_interleave over heads, which copies one of each too.
Ref repeated(Emitter& e, const Ref& x, std::int64_t heads) {
  Layout layout = e.layout(x);
  layout.sizes[1] = heads;
  return e.fresh("aten.clone.default", KernelClass::Copy, contiguous_layout(layout.sizes, layout.dtype), {&x});
}

/// matmul of four dimensions.
Ref batched(Emitter& e, const Ref& a, const Ref& b) {
  const Dims left = e.layout(a).sizes, right = e.layout(b).sizes;
  const Ref rows = e.reshape(a, {left[0] * left[1], left[2], left[3]});
  const Ref columns = e.reshape(b, {right[0] * right[1], right[2], right[3]});
  const Ref out = e.matmul("aten.bmm.default", rows, columns);
  return e.view(out, {left[0], left[1], left[2], right[3]});
}

DType working(DType dtype) { return dtype == DType::Float64 ? DType::Float64 : DType::Float32; }

/// _math_attention_inner, whose score_mod returns the score that it is given.
struct Scores {
  Ref scaled, masked;
};

Scores scores_of(Emitter& e, const Ref& q, const Ref& k) {
  const DType wide = working(e.layout(q).dtype);
  Ref raw;
  {
    const Ref wide_q = e.cast(q, wide), wide_k = e.cast(k, wide);
    raw = batched(e, wide_q, e.transpose(wide_k, 2, 3));
  }
  const Dims sizes = e.layout(raw).sizes;
  const Places at = places(e, sizes[0], sizes[1], sizes[2], sizes[3]);
  Scores scores;
  scores.scaled = e.elementwise("aten.mul.Tensor", {&raw});
  raw = Ref();
  const Ref mask = seen(e, at), least = point(e, wide);
  scores.masked = made(e, "aten.where.self", sizes, wide, {&mask, &scores.scaled});
  return scores;
}

Ref log_sum_exp(Emitter& e, const Ref& scores, const Dims& rows) {
  const Layout whole = e.layout(scores);
  const Ref most = reduced(e, "aten.amax.default", rows, whole.dtype, scores);
  {
    const Ref size = e.elementwise("aten.abs.default", {&most});
    const Ref endless = e.elementwise("aten.eq.Scalar", {&size}, DType::Bool);
    write_over(e, "aten.masked_fill_.Scalar", most, endless);
  }
  Ref moved = made(e, "aten.sub.Tensor", whole.sizes, whole.dtype, {&scores, &most});
  write_over(e, "aten.exp_.default", moved);
  Ref sums = reduced(e, "aten.sum.dim_IntList", rows, whole.dtype, moved);
  moved = Ref();
  write_over(e, "aten.log_.default", sums);
  write_over(e, "aten.add_.Tensor", sums, most);
  return sums;
}

/// Which rows see nothing.
Ref empty_rows(Emitter& e, std::string_view compare, const Ref& scores, const Dims& rows) {
  const Ref none = e.elementwise(compare, {&scores}, DType::Bool);
  return reduced(e, "aten.all.dim", rows, DType::Bool, none);
}

/// _safe_softmax, which writes zeros into its own result.
Ref safe_softmax(Emitter& e, const Ref& scores, const Dims& rows) {
  const Layout whole = e.layout(scores);
  Ref p = reduced(e, "aten._softmax.default", whole.sizes, whole.dtype, scores);
  const Ref empty = empty_rows(e, "aten.isneginf.default", scores, rows), zero = point(e, whole.dtype);
  write_over(e, "aten.where.self", p, empty);
  return p;
}

/// From the logarithms of its sums.
Ref softmax_again(Emitter& e, const Ref& scores, const Ref& natural, const Ref& empty) {
  const Layout whole = e.layout(scores);
  Ref moved = made(e, "aten.sub.Tensor", whole.sizes, whole.dtype, {&scores, &natural});
  const Ref raised = e.elementwise("aten.exp.default", {&moved});
  moved = Ref();
  const Ref zero = point(e, whole.dtype);
  return made(e, "aten.where.ScalarSelf", whole.sizes, whole.dtype, {&empty, &raised});
}

/// An empty tensor, copied into one that lies as `layout`.
Ref laid_as(Emitter& e, const Layout& layout) {
  const Ref empty = e.tape().make(contiguous_layout(layout.sizes, layout.dtype), SlotCategory::Temporary);
  return e.fresh("aten.copy_.default", KernelClass::Copy, layout, {&empty});
}

/// Sums over the heads that share keys.
Ref summed(Emitter& e, const Ref& x, std::int64_t heads) {
  const Layout all = e.layout(x);
  const Ref groups = e.view(x, {all.sizes[0], heads, all.sizes[1] / heads, all.sizes[2], all.sizes[3]});
  return reduced(e, "aten.sum.dim_IntList", {all.sizes[0], heads, all.sizes[2], all.sizes[3]}, all.dtype, groups);
}

/// _dense_to_ordered: how many blocks each row of blocks has, and which.
std::pair<Ref, Ref> ordered(Emitter& e, const Ref& dense) {
  const Dims sizes = e.layout(dense).sizes;
  const Dims rows{sizes[0], sizes[1], sizes[2]};
  const Ref wide = e.cast(dense, DType::Int32);
  const Ref counts = e.sum(wide, {3}, false, "aten.sum.dim_IntList", KernelClass::Reduction, DType::Int64);
  Ref indices;
  {
    const Ref values = made(e, "aten.sort.stable", sizes, DType::Int32, {&wide});
    indices = made(e, "aten.sort.stable", sizes, DType::Int64, {&values});
    const Ref line = made(e, "aten.arange.start", {sizes[3]}, DType::Int64, {});
    write_over(e, "aten.sort.stable", indices, line);
  }
  const Ref count = made(e, "aten._to_copy.default", rows, DType::Int32, {&counts});
  return {count, e.cast(indices, DType::Int32)};
}

/// _ordered_to_dense, turned: which rows of queries a block of keys has.
Ref turned(Emitter& e, const Ref& counts, const Ref& indices) {
  const Dims sizes = e.layout(indices).sizes;
  const Ref dense = made(e, "aten.new_zeros.default", {sizes[0], sizes[1], sizes[2], sizes[3] + 1}, DType::Int32, {});
  const Ref rows = made(e, "aten.arange.start", {sizes[2]}, DType::Int32, {});
  const Ref columns = made(e, "aten.arange.start", {sizes[3]}, DType::Int32, {});
  const Ref valid = made(e, "aten.lt.Tensor", sizes, DType::Bool, {&columns, &counts});
  Ref places;
  {
    const Ref beyond = point(e, DType::Int32);
    places = made(e, "aten.where.self", sizes, DType::Int32, {&valid, &indices, &beyond});
  }
  {
    const Ref one = made(e, "aten.new_ones.default", {1}, DType::Int64, {});
    const Ref heads = made(e, "aten.arange.start", {sizes[1]}, DType::Int64, {});
    const Ref batches = made(e, "aten.arange.start", {sizes[0]}, DType::Int64, {});
    const auto index = [&](const Ref& of) { return made(e, "aten._to_copy.default", sizes, DType::Int64, {&of}); };
    const Ref all[] = {index(batches), index(heads), index(rows), index(places)};
    write_over(e, "aten.index_put_.default", dense, all[3]);
  }
  Dims across = sizes;
  std::swap(across[2], across[3]);
  return made(e, "aten.clone.default", across, DType::Int32, {&dense});
}

/// _convert_mask_to_block_mask: blocks of which some pairs are seen, and blocks of which all are.
std::pair<Ref, Ref> seen_blocks(Emitter& e, const Ref& mask, std::int64_t batch) {
  const std::int64_t queries = ceil_div(e.layout(mask).sizes[0], kBlock),
                     keys = ceil_div(e.layout(mask).sizes[1], kBlock);
  const Dims blocks{batch, 1, queries, keys};
  const Ref padded =
      made(e, "aten.constant_pad_nd.default", {batch, 1, queries, keys, kBlock, kBlock}, DType::Bool, {&mask});
  const Ref sums = e.sum(padded, {4, 5}, false, "aten.sum.dim_IntList", KernelClass::Reduction, DType::Int64);
  const Ref full = made(e, "aten.eq.Scalar", blocks, DType::Bool, {&sums});
  Ref partial;
  {
    const Ref some = made(e, "aten.gt.Scalar", blocks, DType::Bool, {&sums});
    const Ref not_all = made(e, "aten.lt.Scalar", blocks, DType::Bool, {&sums});
    partial = made(e, "aten.bitwise_and.Tensor", blocks, DType::Bool, {&some, &not_all});
  }
  partial = e.cast(partial, DType::Int8);
  return {partial, e.cast(full, DType::Int8)};
}

}  // namespace

std::vector<Ref> flex_block_mask(Emitter& e, const Op& op, const std::vector<Layout>& results) {
  const std::vector<std::int64_t> sizes = list_arg(op, 0, "size");
  if (sizes.size() != 3) return {};
  Ref mask;
  {
    const Places at = places(e, sizes[0], 1, sizes[1], sizes[2]);
    mask = seen(e, at);
  }
  const auto [partial, full] = seen_blocks(e, mask, results[0].sizes[0]);
  std::vector<Ref> out;
  for (const Ref* blocks : {&partial, &full}) {
    auto [counts, indices] = ordered(e, *blocks);
    out.insert(out.end(), {counts, indices});
  }
  for (const std::size_t first : {0, 2}) {  // BlockMask.from_kv_blocks
    auto [counts, indices] = ordered(e, turned(e, out[first], out[first + 1]));
    out.insert(out.end(), {counts, indices});
  }
  return out;
}

std::vector<Ref> flex_attention(Emitter& e, const std::vector<Ref>& args, const std::vector<Layout>& results) {
  const Ref& q = args[0];
  const Layout of_q = e.layout(q);
  const std::int64_t heads = of_q.sizes[1];
  const DType wide = working(of_q.dtype);
  const Dims rows{of_q.sizes[0], heads, of_q.sizes[2]};
  // What score_mod and its gradient are traced with.
  std::vector<Ref> examples{point(e, of_q.dtype)};
  for (int k = 0; k < 4; ++k) examples.push_back(point(e, DType::Int32));
  { const Ref score = point(e, of_q.dtype), gradient = point(e, of_q.dtype); }
  Ref out, natural_sums, greatest;
  {
    const Ref v = repeated(e, args[2], heads), k = repeated(e, args[1], heads);
    Scores scores = scores_of(e, q, k);
    Ref sums = log_sum_exp(e, scores.masked, rows);
    const Ref empty = empty_rows(e, "aten.eq.Scalar", scores.masked, rows);
    {
      const Ref least = point(e, wide);
      sums = made(e, "aten.where.ScalarSelf", rows, wide, {&empty, &sums});
    }
    const Ref most = reduced(e, "aten.max.dim", rows, wide, scores.masked);
    { const Ref at = e.tape().make(contiguous_layout(rows, DType::Int64), SlotCategory::Temporary); }
    const Ref p = safe_softmax(e, scores.masked, rows);
    scores.masked = Ref();
    {
      const Ref narrow = e.cast(p, of_q.dtype);
      out = batched(e, narrow, v);
    }
    natural_sums = e.elementwise("aten.div.Tensor", {&sums});
    greatest = e.elementwise("aten.div.Tensor", {&most});
  }
  const Ref laid = e.fresh("aten.copy_.default", KernelClass::Copy, results[0], {&out});
  return {laid, natural_sums, greatest};
}

std::vector<Ref> flex_attention_backward(Emitter& e, BackwardInput& in, const Ref& g) {
  const Ref q = in.saved_arg(0), out = in.saved_result(0), sums = in.saved_result(1);
  std::vector<Ref> gradients;
  for (std::int32_t i = 0; i < 3; ++i) gradients.push_back(laid_as(e, e.layout(in.saved_arg(i))));
  const Layout of_q = e.layout(q), of_k = e.layout(in.saved_arg(1));
  const std::int64_t heads = of_q.sizes[1];
  const Dims rows = e.layout(sums).sizes;
  const DType wide = working(of_q.dtype);
  const Ref k = repeated(e, in.saved_arg(1), heads), v = repeated(e, in.saved_arg(2), heads);
  Ref of_sums = made(e, "aten.zeros_like.default", rows, wide, {});
  const Ref natural = e.elementwise("aten.mul.Tensor", {&sums});
  of_sums = e.elementwise("aten.div.Tensor", {&of_sums});
  const Scores scores = scores_of(e, q, k);
  const Dims whole = e.layout(scores.scaled).sizes;
  const Ref empty = e.elementwise("aten.eq.Scalar", {&natural}, DType::Bool);
  const Ref p = softmax_again(e, scores.masked, natural, empty);
  Ref of_v;
  {
    const Ref narrow = e.cast(p, of_q.dtype);
    of_v = batched(e, e.transpose(narrow, 2, 3), g);
  }
  Ref of_p;
  {
    const Ref wide_g = e.cast(g, wide), wide_v = e.cast(v, wide);
    of_p = batched(e, wide_g, e.transpose(wide_v, 2, 3));
  }
  Ref sum;
  {
    Ref both;
    {
      const Ref wide_out = e.cast(out, wide), wide_g = e.cast(g, wide);
      both = e.elementwise("aten.mul.Tensor", {&wide_out, &wide_g});
    }
    sum = reduced(e, "aten.sum.dim_IntList", {rows[0], rows[1], rows[2], 1}, wide, both);
  }
  Ref of_scores = made(e, "aten.sub.Tensor", whole, wide, {&of_p, &sum});
  of_scores = made(e, "aten.add.Tensor", whole, wide, {&of_scores, &of_sums});
  of_scores = made(e, "aten.mul.Tensor", whole, wide, {&p, &of_scores});
  const Places at = places(e, whole[0], whole[1], whole[2], whole[3]);
  Ref scaled = e.elementwise("aten.mul.Tensor", {&of_scores});
  scaled = e.cast(scaled, of_q.dtype);
  const Ref mask = seen(e, at);
  {
    const Ref zero = point(e, of_q.dtype);
    scaled = made(e, "aten.where.self", whole, of_q.dtype, {&mask, &scaled});
  }
  const Ref of_q_whole = batched(e, scaled, k);
  Ref of_k_whole = batched(e, e.transpose(scaled, 2, 3), q);
  of_k_whole = summed(e, of_k_whole, of_k.sizes[1]);
  of_v = summed(e, of_v, of_k.sizes[1]);
  write_over(e, "aten.copy_.default", gradients[0], of_q_whole);
  write_over(e, "aten.copy_.default", gradients[1], of_k_whole);
  write_over(e, "aten.copy_.default", gradients[2], of_v);
  std::vector<Ref> wanted(in.node.in.size());
  for (std::size_t i = 0; i < 3; ++i)
    if (in.wants(i)) wanted[i] = gradients[i];
  return wanted;
}

}  // namespace foreshard::lowering
