// Operators that ATen writes with others and autograd knows whole: every kernel of theirs in its order, with what each
// has of its own. Internal to lowering.
#pragma once

#include <vector>

#include "core/lowering/backward/backward.h"

namespace foreshard::lowering {

/// _euclidean_dist (Distance.cpp): points beside their squares, one product. args: [(batch,) n, d] and [(batch,) m, d].
std::vector<Ref> euclidean_distances(Emitter& emit, const std::vector<Ref>& args);
std::vector<Ref> euclidean_distances_backward(Emitter& emit, BackwardInput& in, const Ref& g);

/// affine_grid_generator (AffineGridGenerator.cpp) of pictures or volumes: a grid of places times theta [n, 2 or 3,
/// ..].
std::vector<Ref> affine_grid(Emitter& emit, const std::vector<Ref>& args, const Layout& result);
std::vector<Ref> affine_grid_backward(Emitter& emit, BackwardInput& in, const Ref& g);

/// flex_attention that nothing compiles: args and results of math_attention, whose mask is causal; and the eight
/// tensors of its block mask (create_block_mask) for `size`: batch, queries, keys.
std::vector<Ref> flex_attention(Emitter& emit, const std::vector<Ref>& args, const std::vector<Layout>& results);
std::vector<Ref> flex_attention_backward(Emitter& emit, BackwardInput& in, const Ref& g);
std::vector<Ref> flex_block_mask(Emitter& emit, const Op& op, const std::vector<Layout>& results);

/// What topk takes where several blocks look through a slice of its input (mbtopk of TensorTopK.cu); empty: one block
/// does.
std::vector<Bytes> topk_workspace(const Op& op, const Layout& input, std::int64_t multiprocessors);

/// What sort takes beside its results: places in order, and cub's buffers where a slice has more than 4,096 elements.
std::vector<Bytes> sort_workspace(const Op& op, const Layout& input);

/// masked_scatter's sums of its mask, and those of the scan that makes them.
std::vector<Bytes> masked_scatter_workspace(const Layout& result);

/// index_put_ with accumulation of so many places: linear indices, sorted ones, where they come from, the wrapped ones,
/// and cub's scratch for sorting them, which depends on the keys' bits a little.
std::vector<Bytes> accumulated_put_workspace(std::int64_t count);

/// Pieces of the gradient along its diagonal.
std::vector<Ref> block_diag_backward(Emitter& emit, BackwardInput& in, const Ref& g);

/// What Im2Col.cu and Col2Im.cu write to: an empty tensor like the input that is resized. Its storage stays where the
/// result fits in, else it goes when the result's is there.
Ref resized_like(Emitter& emit, const Layout& input, const Layout& result);

}  // namespace foreshard::lowering
