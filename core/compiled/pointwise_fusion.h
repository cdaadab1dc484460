// What torch.compile does to a lowered program, as far as time and memory see it: runs of pointwise and reduction
// kernels between two matrix products become one kernel each, storages that live only inside such a run are never made,
// and what backward can make again is not saved (core/compiled/made_again.h).
//
// An approximation of Inductor: it fuses along the recorded order and does not move work across a product. A pure
// function; templates and slots keep their numbers.
#pragma once

#include "core/lowering/lowering.h"

namespace foreshard {

/// Of a program that was lowered from `segments` of the model with these parameters trained.
LoweredProgram fuse_pointwise(const LoweredProgram& program, const Model& model,
                              const std::vector<SegmentRange>& segments, const std::vector<bool>& trainable);

/// The same of the repeated blocks alone: what torch.compile of each block makes of it. A template that something else
/// runs too stays as it is.
LoweredProgram compile_blocks(const LoweredProgram& program, const Model& model,
                              const std::vector<SegmentRange>& segments, const std::vector<bool>& trainable);

}  // namespace foreshard
