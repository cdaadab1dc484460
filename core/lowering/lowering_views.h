// Tensors written through a view: autograd's CopySlices. Internal to lowering.
//
// The view has no history of its own; the tensor that it is a view of gets the operator's (Machine::rebase), and
// backward replaces the view's part in a copy of that tensor's gradient.
#pragma once

#include <vector>

#include "core/lowering/lowering_autograd.h"

namespace foreshard::lowering {

/// While such an operator's backward runs: the gradient that came for the base, the copy that will go on, the view's
/// part of it. Empty where the operator is none.
struct BaseGradient {
  Ref arrived, whole, part;
};

/// Leaves the view's own gradient in grads[0] for the operator's formula.
BaseGradient take_base_gradient(Emitter& emit, const Node& node, std::vector<Ref>& grads);

/// `made`: what the formula gave for the view. REQUIRES base.whole.
Ref put_back(Emitter& emit, BaseGradient& base, const Ref& made);

}  // namespace foreshard::lowering
