// State dicts of parameters that lie on a mesh: FSDP shards what a dimension of the program (tensor, expert) has cut
// already. Every redistribution of such a DTensor (core/plan/actions/mesh_way.h) as a plan. Private to
// core/plan/actions.
#pragma once

#include "core/plan/actions/action_writer.h"

namespace foreshard::actions {

/// It is a DTensor on a dimension of the program, whether that cuts it or not.
inline bool is_on_mesh(const ParamInfo& param) { return param.part.dimension >= 0; }

/// Ranks that hold the same experts as this one, over which FSDP shards them; empty: the model has no such dimension.
std::vector<std::int32_t> ranks_of_experts(const StateSource& source);

/// fsdp2: the whole parameter into {StateCopy, unit, param}. REQUIRES a dimension that cuts it.
void gather_over_mesh(ActionWriter& out, UnitId unit, const ShardedParam& param, std::int32_t instance);

/// fsdp1, sharded: the gathered part of this rank, cut anew into {StateCopy, unit, param}.
void cut_over_mesh(ActionWriter& out, UnitId unit, ParamId param);
/// The way back: from a chunk on the host to this rank's part in {StateCopy, unit, param}.
void part_over_mesh(ActionWriter& out, UnitId unit, ParamId param);

}  // namespace foreshard::actions
