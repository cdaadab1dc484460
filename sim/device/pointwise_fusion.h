// What torch.compile does to a lowered program, as far as time and memory see it: runs of pointwise and reduction
// kernels between two matrix products become one kernel each, storages that live only inside such a run are never made,
// and what pointwise kernels made is not saved for backward but made again there.
//
// An approximation of Inductor: it fuses along the recorded order, does not move work across a product, and makes again
// whatever a product did not make (its partitioner cuts where least is saved, which mostly comes to the same). A pure
// function; templates and slots keep their numbers.
#pragma once

#include "core/lowering/lowering.h"

namespace foreshard {

LoweredProgram fuse_pointwise(const LoweredProgram& program);

/// The same of the repeated blocks alone: what torch.compile of each block makes of a program that was lowered from
/// `segments`. A template that something else runs too stays as it is.
LoweredProgram compile_blocks(const LoweredProgram& program, const Model& model,
                              const std::vector<SegmentRange>& segments);

}  // namespace foreshard
