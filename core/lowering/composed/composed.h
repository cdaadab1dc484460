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

/// What Im2Col.cu and Col2Im.cu write to: an empty tensor like the input that is resized. Its storage stays where the
/// result fits in, else it goes when the result's is there.
Ref resized_like(Emitter& emit, const Layout& input, const Layout& result);

}  // namespace foreshard::lowering
