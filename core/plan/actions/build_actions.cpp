#include "core/plan/actions/build_actions.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "core/job/optimizer_facts.h"
#include "core/model/mesh_dimension.h"
#include "core/plan/actions/action_writer.h"
#include "core/plan/actions/mesh_state.h"
#include "core/plan/runtime/plan_frame.h"
#include "core/plan_warnings.h"
#include "core/runtime_layouts.h"

namespace foreshard {
namespace {

using actions::refused;

bool any_sharded(const UnitTable& table) {
  return std::any_of(table.units.begin(), table.units.end(),
                     [](const PlanUnit& unit) { return !unit.params.empty() && unit.strategy != Strategy::NoShard; });
}

/// K1: the kind that is meant, and the combinations that do not exist.
Result<void> check_state(ActionRequest& request, const Job& job, const UnitTable& table,
                         std::vector<std::string>& warnings) {
  const Runtime runtime = job.fsdp.runtime;
  if (!request.kind_given) request.kind = has_fsdp2_layouts(runtime) ? StateKind::Sharded : StateKind::Full;
  const bool full = request.kind == StateKind::Full;
  if (has_fsdp2_layouts(runtime) && request.kind == StateKind::Local) {
    return fail(
        refused(request, "fsdp2 has no local state dict", "full or sharded", "its DTensors are the sharded kind"));
  }
  if (runtime == Runtime::None && !full) {
    return fail(refused(request, "nothing is sharded", "the full kind", "leave the kind away"));
  }
  if (request.kind == StateKind::Local && request.optimizer) {
    return fail(refused(request, "the optimizer's state has no local kind (K5)", "full or sharded", "use sharded"));
  }
  if (request.rank0_only && !full) {
    return fail(
        refused(request, "rank0_only belongs to the full kind (K1)", "full:rank0_only", "leave rank0_only away"));
  }
  if (runtime == Runtime::Fsdp1 && !full && !any_sharded(table)) {
    warnings.push_back("NO_SHARD has no " + std::string(state_kind_name(request.kind)) +
                       " state dict: the full one is returned (K1)");
  }
  return {};
}

/// What PyTorch refuses, or does otherwise than its name says, where parameters are DTensors of a mesh.
Result<void> check_mesh_state(const ActionRequest& request, const StateSource& source,
                              std::vector<std::string>& warnings) {
  const auto& params = source.model.params;
  if (std::none_of(params.begin(), params.end(), actions::is_on_mesh)) return {};
  if (source.job.fsdp.runtime == Runtime::None) {
    return fail(refused(request, "state dicts of tensor ranks that nothing shards are not planned",
                        "fsdp2 over the tensor ranks", "plan the training step alone"));
  }
  if (std::any_of(source.model.mesh.begin(), source.model.mesh.end(), cuts_experts)) {
    return fail(refused(request, "state dicts of experts that are cut over two dimensions are not planned",
                        "experts on ranks of their own", "plan the training step alone"));
  }
  if (source.job.fsdp.runtime != Runtime::Fsdp1) {
    // distribute_tensor: _StridedShard asserts that all chunks are equal.
    for (const PlanUnit& unit : source.table.units) {
      for (const ShardedParam& sharded : unit.sharded) {
        const ParamInfo& info = params[sharded.param.index()];
        const bool strided = info.part.dim >= 0 && info.part.dim == sharded.shard_dim;
        const auto ranks = static_cast<std::int64_t>(
            strided ? source.model.mesh[static_cast<std::size_t>(info.part.dimension)].ranks.size() : 1);
        if (!strided || request.action != PlanAction::Load || request.kind != StateKind::Full ||
            info.part.whole % (ranks * unit.shard_size) == 0)
          continue;
        return fail(refused(request,
                            "AssertionError: PyTorch cuts a whole \"" + info.fqn + "\" of " +
                                std::to_string(info.part.whole) + " rows into equal chunks only, over " +
                                std::to_string(ranks) + " x " + std::to_string(unit.shard_size) + " ranks",
                            "load:sharded, which reads each rank's own", "use the sharded kind"));
      }
    }
    return {};
  }
  if (request.kind == StateKind::Local) {
    return fail(refused(request, "RuntimeError: DeviceMesh is not compatible with LOCAL_STATE_DICT", "sharded",
                        "its DTensors are what a mesh can load"));
  }
  if (request.optimizer) {
    return fail(refused(request, "the optimizer's state under fsdp1 over a mesh is not planned", "the model's alone",
                        "set fsdp.runtime = \"fsdp2\", or leave optimizer away"));
  }
  if (request.kind == StateKind::Full && request.action == PlanAction::Save) {
    warnings.push_back(own_note(
        "the full state dict of fsdp1 over tensor parallelism is not full: it holds DTensors of the tensor dimension, "
        "this rank's part of each; rank 0's file lacks the others' (call full_tensor(), or save sharded)"));
    if (request.offload_to_cpu)
      warnings.push_back(
          own_note("offload does not reach these DTensors: they stay on the device until the caller drops them"));
  }
  return {};
}

}  // namespace

Result<Plan> build_action_plan(const Model& model, const Job& job, const UnitTable& table,
                               const std::vector<ActionRequest>& requests) {
  Plan plan = frame_of(model, job, table);
  actions::ActionWriter out(plan, StateSource{model, job, table});
  const OptimizerKind optimizer = job.train.optimizer.name;
  for (ActionRequest request : requests) {
    const bool beside = request.action != PlanAction::Init;  // the state lies there meanwhile, or is what is written
    if (beside && !is_elementwise(optimizer)) {
      return fail(refused(request, "the state of this optimizer is planned in training steps only",
                          "adamw, sgd, adagrad, rmsprop, nadam, radam or adamax",
                          "set train.optimizer.name = \"adamw\""));
    }
    const bool state = request.action == PlanAction::Save || request.action == PlanAction::Load;
    if (state) {
      const Result<void> checked = check_state(request, job, table, plan.warnings);
      if (!checked) return tl::unexpected(checked.error());
      const Result<void> meshed = check_mesh_state(request, {model, job, table}, plan.warnings);
      if (!meshed) return tl::unexpected(meshed.error());
    }
    constexpr Phase kPhases[] = {Phase::Init, Phase::Summon, Phase::Save, Phase::Load};
    constexpr decltype(&actions::write_init) kWriters[] = {actions::write_init, actions::write_summon,
                                                           actions::write_save, actions::write_load};
    out.start(request, kPhases[static_cast<std::size_t>(request.action)]);
    const Result<void> written = kWriters[static_cast<std::size_t>(request.action)](out, request);
    if (!written) return tl::unexpected(written.error());
  }
  return plan;
}

ActionMemory action_memory(const PlanIteration& iteration) {
  std::map<std::tuple<bool, BufferWhat, UnitId, ParamId, std::int32_t>, Bytes> held;
  ActionMemory memory;
  for (const Instruction& i : iteration.instructions) {
    const bool on_host = i.stream == Stream::Host;  // a tensor and its copy on the host have one name
    const auto key = std::make_tuple(on_host, i.buffer.what, i.buffer.unit, i.buffer.param, i.arg);
    Bytes& now = on_host ? memory.host_end : memory.device_end;
    Bytes& peak = on_host ? memory.host_peak : memory.device_peak;
    if (i.kind == InstructionKind::Alloc) {
      now += i.bytes - held[key];
      held[key] = i.bytes;
      peak = std::max(peak, now);
    } else if (i.kind == InstructionKind::Free) {
      const auto it = held.find(key);
      if (it == held.end()) continue;
      now -= it->second;
      held.erase(it);
    }
  }
  return memory;
}

}  // namespace foreshard
