// What a script's own code does between cut layers. Functions that nobody looks into (autograd functions) see local
// tensors, so whatever they make, keep and send is in proportion to what they are given. Fused projections are taken
// apart behind a reshape. Internal to core/mesh.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
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

/// Which dimension of its argument, of `rank` dimensions, each of the result's is: of "t", "transpose" and "permute".
std::vector<std::size_t> order_of(const Op& op, std::size_t rank);

/// Dimensions of what a reshape (`op`, number `index` of the whole program's `ops`) makes along which one of the next
/// operators takes it apart: parts of a projection, not heads. Of other operators none.
std::set<std::int32_t> parts_of_result(const Model& model, const Op& op, const std::vector<Op>& ops, std::size_t index);

}  // namespace foreshard::mesh
