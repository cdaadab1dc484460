// Opaque operators at work: what Model::opaques says of them instead of a rule. Internal to lowering.
#pragma once

#include <vector>

#include "core/lowering/backward/backward.h"
#include "core/model/model.h"

namespace foreshard::lowering {

/// Sizes, strides and type of a value as the model states them; contiguous where it states no strides.
Layout layout_of(const ValueInfo& value);

/// The results of an opaque operator, and its workspace while it runs: one kernel.
std::vector<Ref> opaque_forward(Emitter& emit, const OpaqueOp& opaque, const std::vector<Ref>& args,
                                const std::vector<Layout>& results);

/// A tensor that is saved and is neither argument nor result; made when it is saved.
Ref opaque_saved(Emitter& emit, const OpaqueOp::Saved& saved);

/// What it saves of its own where nobody keeps it: there until the function returns.
void opaque_unsaved(Emitter& emit, const OpaqueOp& opaque);

/// Gradients per tensor argument: one kernel that takes the backward's FLOPs, twice the forward's where they are not
/// said.
std::vector<Ref> opaque_backward(Emitter& emit, const OpaqueOp& opaque, const BackwardInput& in);

}  // namespace foreshard::lowering
