// Parameters that are whole on a rank's device, or on its host, before the script cuts them over a mesh
// (parallelize_module): what that takes from the allocator and leaves there.
#pragma once

#include <vector>

#include "core/job.h"
#include "core/model/model.h"
#include "sim/device/device.h"

namespace foreshard {

/// Whether every rank of a mesh makes all of a parameter on its device, before it has a part of it.
bool makes_whole(const Job& job);

/// Whether all that units shard is on the device before: of a mesh all of it, or this rank's parts.
bool is_made_before(const Job& job);

/// What this rank has of a parameter.
Bytes param_bytes(const Model& model, ParamId id);
/// The same as its tensor is made: whole where makes_whole().
Bytes made_bytes(const Model& model, ParamId id, const Job& job);

/// By ParamId: whose tensor it was before a plan over tensor ranks untied it; invalid: nobody else's.
std::vector<ParamId> untied_from(const Model& model);

/// fsdp.tied: a tensor of its own until the script ties it to the other one's part.
bool is_tied_later(const Model& model, ParamId id, const Job& job);

/// parallelize_module over a model that is whole on the device: blocks by ParamId become those of this rank's parts; a
/// module's tensors go when all of its parts are there. False: out of memory.
bool cut_whole(Device& device, const Model& model, const Job& job, const std::vector<ParamId>& untied,
               std::vector<BlockHandle>& full);

/// The same from the host, one by one: distribute_tensor takes them to the device. By ParamId; kNoBlock: stays there.
/// False: out of memory.
bool cut_on_the_way(Device& device, const Model& model, const Job& job, std::vector<BlockHandle>& parts);

}  // namespace foreshard
