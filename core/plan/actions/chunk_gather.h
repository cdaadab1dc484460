// One parameter's shards gathered into a whole tensor, as state dicts do it: fsdp1's chunks of rows (K1, K3) and
// fsdp2's DTensors. Private to core/plan/actions.
#pragma once

#include "core/plan/actions/action_writer.h"

namespace foreshard::actions {

/// K3: the chunk of this rank goes to the device, is padded to ceil(d0 / W) rows, gathered, and narrowed in place. What
/// is gathered stays: {StateCopy, unit, param}, `instance`. Returns its elements.
Numel gather_chunks(ActionWriter& out, UnitId unit, ParamId param, std::int32_t instance);

/// fsdp2: full_tensor() of one DTensor, into {StateCopy, unit, param}. The shard is on the host under CPU offload.
Numel gather_dtensor(ActionWriter& out, UnitId unit, const ShardedParam& param, std::int32_t instance);

/// A tensor on the device becomes one on the host, which the state dict holds.
void offload(ActionWriter& out, BufferName from, BufferName to, Numel numel, DType dtype, std::int32_t instance = 0);

/// Rank 0's tensor on every device (K6): {StateCopy, unit, param}.
void broadcast_state(ActionWriter& out, UnitId unit, ParamId param, Numel numel, DType dtype, std::int32_t instance);

/// Elements of a parameter in this rank's part of the unit (H6, F2-1).
Numel numel_on_rank(const StateSource& source, const PlanUnit& unit, ParamId param);

inline Numel numel_of_param(const StateSource& source, ParamId param) {
  return numel_of(source.model.params[param.index()].shape);
}

}  // namespace foreshard::actions
