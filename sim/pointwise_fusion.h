// What torch.compile does to a lowered program, as far as time and memory see it: runs of pointwise and reduction
// kernels between two matrix products become one kernel each, and storages that live only inside such a run are never
// made.
//
// An approximation of Inductor's scheduler: it fuses along the recorded order, does not move work across a product, and
// keeps what autograd saved. A pure function; templates and slots keep their numbers.
#pragma once

#include "core/model/lowering.h"

namespace foreshard {

LoweredProgram fuse_pointwise(const LoweredProgram& program);

}  // namespace foreshard
