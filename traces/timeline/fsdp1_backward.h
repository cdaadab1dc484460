// The units of FSDP1's backward: its ranges say neither module nor number there, but autograd's arrows lead from each
// operator of a forward, whose unit is known, to its backward. Private to the readers.
#pragma once

#include "traces/timeline/timeline_builder.h"

namespace foreshard {

/// Gives host slices of the backward their unit. REQUIRES that the forward's host slices have theirs, and arrows.
///
///   forward of unit 1   |mm .........................|
///                         \ fwdbwd
///   backward            |evaluate_function: MmBackward0    |evaluate_function: AccumulateGrad   |
///                        |_pre_backward_hook|MmBackward0|    |_post_backward_hook|
///                                     unit 1                     unit 1: what was worked on just before
///
/// A gather in a prefetch of the backward is for the unit that left its forward before the one that prefetches.
void join_fsdp1_backward(TimelineBuilder& builder);

}  // namespace foreshard
