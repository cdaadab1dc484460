// Operator-level selective checkpointing as a job says it: which results of a checkpointed region are kept although all
// else runs again (torch/utils/checkpoint.py, create_selective_checkpoint_contexts, with the policy of torchtitan).
#pragma once

#include "core/job.h"
#include "core/lowering/lowering.h"
#include "core/result.h"

namespace foreshard {

/// What checkpointing.save asks for, if the policy is `ops`; else nothing. Words: sdpa (torchtitan's attention
/// kernels), collectives, mm, addmm, bmm, max, mm:K, and names "aten.NAME" with or without the overload. Errors: a word
/// that is none of these and no operator, K below 2, mm given twice with different K.
Result<SavedOps> saved_ops(const CheckpointingOptions& options);

/// checkpointing.offload_activations: what its hooks see under the job's runtime.
OffloadedActivations offloaded_activations(const Job& job);

}  // namespace foreshard
