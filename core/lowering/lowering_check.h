// Whether a program can be lowered at all: references in range, few enough dimensions, segments that cover it in order.
#pragma once

#include "core/lowering/lowering.h"

namespace foreshard::lowering {

Result<void> check_program(const Model& model, const std::vector<SegmentRange>& segments);

}  // namespace foreshard::lowering
