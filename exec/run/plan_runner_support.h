// What a plan asks of the runner beside its instructions one by one, worked out once: which of them it does not run,
// which segments belong together, how events go on from one iteration to the next.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/lowering/lowering.h"
#include "core/model/model.h"
#include "core/plan.h"
#include "core/result.h"
#include "exec/operators/operator_interpreter.h"
#include "exec/step/plan_groups.h"

namespace foreshard::exec {

/// The first thing in the plan that is not run.
std::optional<Error> unsupported_instruction(const Plan& plan);

/// Whether the plan calls a communication hook of the user's (G5).
bool calls_own_hook(const Plan& plan);

/// How the segments of one iteration run.
struct SegmentRoles {
  std::vector<bool> recomputed;        // by segment: its graph is made in backward
  std::vector<OpRange> region;         // by segment: the checkpointed call that it is recomputed with
  std::vector<bool> forward_grad;      // by forward of the iteration: false = without grad
  std::vector<bool> forward_training;  // by forward: false = in eval mode
};
SegmentRoles segment_roles(const Plan& plan, const PlanIteration& iteration);

/// By operator: whose results the plan's checkpointed calls keep when they run again, by `saved` (saved_ops) or, in a
/// region of the model's own, by the region. Products are counted anew in each call.
std::vector<bool> kept_operators(const Model& model, const Plan& plan, const SavedOps& saved);

/// How far events of the steady iteration are numbered behind those of the one before (0: there is nothing to shift).
std::int32_t event_shift(const Plan& plan);
std::int32_t last_event(const Plan& plan);

/// Whom the program of a model cut over a mesh meets.
MeshGroups mesh_groups(const Model& model, const Plan& plan, const Communicators& communicators);
/// A dimension of several ranks that nobody would meet over.
std::optional<Error> missing_dimension(const Model& model, const Plan& plan, const Communicators& communicators);
/// By segment: the communicator that operators of its forward or backward meet in; null: they meet nobody.
std::vector<std::shared_ptr<Communicator>> meetings(const Model& model, const Plan& plan, const MeshGroups& groups);

/// The mesh's groups that FSDP1 does not complete a norm over (trap 27).
std::vector<CommunicatorId> norms_beside(const Plan& plan, const Model& model);

/// Whether it is a part of Muon's step: a kernel of its iteration, its memory, or a collective between kernels.
bool is_of_matrices(const Instruction& instruction);

/// Copies of one buffer name that may be alive at once are told apart by `arg`.
std::int32_t instance_of(const Instruction& instruction);

}  // namespace foreshard::exec
