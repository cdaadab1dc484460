// Functions that nobody looks into (autograd functions of a script's own) on a rank's part: they see local tensors, so
// whatever they make, keep and send is in proportion to what they are given. Internal to core/mesh.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "core/mesh/cut.h"
#include "core/model/model.h"

namespace foreshard::mesh {

/// Where the results of such an operator are cut that reads what is; it becomes another one of `model`, with this
/// rank's sizes. Nothing: it is none, or its tensors are cut in several ways or unevenly.
std::optional<std::vector<Cut>> carry_opaque(Model& model, Op& op, const std::vector<CutTensor>& args,
                                             const std::vector<Shape>& results, const Group& group);

/// Collectives inside of an operator ("meets") by the dimensions that are `now` there, by what they were; others go.
void renumber_meetings(Op& op, const std::map<std::int64_t, std::int64_t>& now);

}  // namespace foreshard::mesh
