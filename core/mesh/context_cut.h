// A sequence that ranks share (context parallelism), as torch.distributed.tensor.experimental.context_parallel has it.
//
// The model is built with this rank's part of the sequence already; what remains is attention, which meets the other
// ranks, and the buffers that the script's context keeps whole beside their parts. Internal to core/mesh.
#pragma once

#include "core/job.h"
#include "core/model/model.h"
#include "core/result.h"

namespace foreshard::mesh {

/// Turns attention into mesh.flash_attention over `dimension` of model.mesh, and adds what the context holds to the
/// inputs. Errors: the model was built for another length; attention that PyTorch has no ring for.
Result<void> share_sequence(Model& model, const Job& job, std::int32_t dimension);

}  // namespace foreshard::mesh
