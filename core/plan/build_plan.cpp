#include "core/plan/build_plan.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "core/lowering/mesh_rules.h"
#include "core/model/untied.h"
#include "core/plan/checks/checks.h"
#include "core/plan/expert_traps.h"
#include "core/plan/graph/gradient_paths.h"
#include "core/plan/graph/inner_gradients.h"
#include "core/plan/graph/training_begins.h"
#include "core/plan/planned/planned_runtime.h"
#include "core/plan/process_groups.h"
#include "core/plan/script_traps.h"
#include "core/plan/tensor_traps.h"
#include "core/plan/training_traps.h"
#include "core/plan/units/differentiated.h"
#include "core/plan/units/name_patterns.h"
#include "core/plan_warnings.h"
#include "core/runtime_layouts.h"
#include "core/traps.h"

namespace foreshard {
namespace {

bool is_a(const ModuleInfo& module, const std::string& name) {
  return module.class_name == name || std::find(module.bases.begin(), module.bases.end(), name) != module.bases.end();
}

bool is_block(const Model& model, const Job& job, const ModuleInfo& module) {
  if (module.alias_of.valid()) return false;
  const std::vector<std::string>& classes = job.fsdp.wrap.classes;
  if (job.fsdp.wrap.policy == WrapPolicyKind::ModuleClass && !classes.empty()) {
    return std::find(classes.begin(), classes.end(), module.class_name) != classes.end();
  }
  return is_a(module, model.block_class);
}

/// model.compile: what Inductor sees is a block, so each must be lowered by itself.
Result<void> check_compiled(const Model& model, const Job& job, const std::vector<bool>& boundary,
                            const std::vector<CheckpointKind>& checkpointed) {
  if (!job.model.compile) return {};
  bool any = false;
  for (std::size_t m = 0; m < model.modules.size(); ++m) {
    if (model.block_class.empty() || !is_a(model.modules[m], model.block_class)) continue;
    if (model.modules[m].alias_of.valid()) continue;
    any = true;
    if (boundary[m] || checkpointed[m] != CheckpointKind::None) continue;
    return fail({ErrorCode::Unsupported,
                 "blocks are compiled where each is a unit or a checkpointed region",
                 {},
                 "model.compile",
                 "a wrap policy that makes each block a unit",
                 model.modules[m].fqn + ", which is none",
                 "set fsdp.wrap.policy = \"module_class\", or model.compile = false"});
  }
  if (any) return {};
  return fail({ErrorCode::Unsupported,
               "the model names no class of blocks that could be compiled",
               {},
               "model.compile",
               "a model with block_class",
               "none",
               "set model.compile = false"});
}

Error nothing_to_checkpoint(const Job& job) {
  return {.code = ErrorCode::Inconsistent,
          .message = "checkpointing finds no module to wrap",
          .file = job.model.source,
          .place = "checkpointing",
          .expected = job.checkpointing.policy == CheckpointPolicy::Selective
                          ? "patterns in checkpointing.units that match modules"
                          : "an architecture with a repeated block, or its classes in fsdp.wrap.classes",
          .got = "no match",
          .hint = "`foreshard inspect` lists the modules and their classes"};
}

/// A refused trap stops the plan unless fsdp.allow_traps lists its number (section 24).
Result<void> refuse_traps(const Plan& plan, const Job& job) {
  for (const Trap& trap : plan.traps) {
    const std::vector<std::int64_t>& allowed = job.fsdp.allow_traps;
    if (!trap.refused || std::find(allowed.begin(), allowed.end(), trap.number) != allowed.end()) continue;
    std::string units;
    for (const std::string& unit : trap.units)
      units += (units.empty() ? "" : ", ") + (unit.empty() ? std::string("the root") : unit);
    return fail({.code = ErrorCode::Refused,
                 .message = "trap " + std::to_string(trap.number) + ", " + trap.name + ": " + trap.text,
                 .file = job.model.source,
                 .place = units.empty() ? "fsdp" : "fsdp, units " + units,
                 .expected = trap.remedy,
                 .got = "a plan that PyTorch would accept without an error (rules " + trap.rules + ")",
                 .hint = "set fsdp.allow_traps = [" + std::to_string(trap.number) + "] to plan it all the same"});
  }
  return {};
}

/// What a gradient scaler refuses.
Result<void> check_scaler(const Job& job, const UnitTable& table) {
  if (!job.train.grad_scaler.enabled || job.fsdp.runtime == Runtime::Fsdp1) return {};  // ShardedGradScaler takes all
  for (const PlanUnit& unit : table.units) {
    if (unit.orig_dtype != DType::Float16 || !unit.requires_grad) continue;
    return fail({.code = ErrorCode::Refused,
                 .message = "torch.amp.GradScaler: Attempting to unscale FP16 gradients.",
                 .file = job.model.source,
                 .place = "train.grad_scaler",
                 .expected = "parameters in float32, and float16 in fsdp.mixed_precision.param",
                 .got = "parameters in float16",
                 .hint = "train.grad_scaler.enabled = false does without"});
  }
  return {};
}

/// What autograd's engine unpacks in the midst of a forward, activation offload keeps on the device, by its own count.
Result<void> check_inner_offload(const Model& model, const Job& job) {
  if (!job.checkpointing.offload_activations || !runs_inner_gradients(model)) return {};
  return fail({.code = ErrorCode::Unsupported,
               .message = "activations are not planned on the host where gradients are taken in the midst of forward",
               .file = job.model.source,
               .place = "checkpointing.offload_activations",
               .expected = "a model without torch.autograd.grad in its forward",
               .got = "true",
               .hint = "leave activations on the device"});
}

Result<Plan> build_for_runtime(const PlanRequest& request) {
  switch (request.job.fsdp.runtime) {
    case Runtime::Fsdp1: return build_fsdp1_plan(request);
    case Runtime::Fsdp2: return build_fsdp2_plan(request);
    case Runtime::Planned: return build_planned_plan(request);
    case Runtime::None: break;
  }
  return build_unsharded_plan(request);
}

/// The groups that the program itself meets in; all are numbered as the first iteration uses them.
void enter_mesh(const Model& model, Plan& plan) {
  std::vector<CommunicatorId> along;
  for (const MeshDimension& dimension : model.mesh)
    along.push_back(enter_dimension(plan, dimension.name, dimension.ranks));
  order_by_first_use(plan, [&](SegmentId id) {
    const Segment& segment = plan.segments[id.index()];
    std::vector<CommunicatorId> met;
    for (std::int32_t op = segment.op_begin; op < segment.op_end; ++op) {
      for (const std::int32_t d : dimensions_met(model.ops[static_cast<std::size_t>(op)]))
        met.push_back(along[static_cast<std::size_t>(d)]);
    }
    return met;
  });
}

/// Without FSDP the gradients of whole weights on a cut sequence stay terms. List operators make a sum of what they
/// change, change that, and let go of it.
void note_terms(const Model& model, const Job& job, Plan& plan) {
  const auto is_term = [](const ParamInfo& param) {
    return param.requires_grad && param.part.dimension >= 0 && param.part.gradient == MeshPart::Gradient::Term;
  };
  if (job.fsdp.runtime != Runtime::None || std::none_of(model.params.begin(), model.params.end(), is_term)) return;
  const OptimizerOptions& optimizer = job.train.optimizer;
  const bool clips = job.train.clip_grad_norm > 0;
  const bool momentum =
      optimizer.name == OptimizerKind::Sgd && optimizer.momentum > 0 && optimizer.impl == OptimizerImpl::Foreach;
  if (!clips && !momentum) return;
  plan.traps.push_back(
      {58,
       "what list operators change in place is lost where gradients are terms of the ranks' sum",
       "mesh",
       {},
       std::string("gradients of whole weights on a cut sequence (norms) stay Partial DTensors without FSDP; ") +
           (clips ? "clip_grad_norm_ scales a sum of them that is thrown away, so that they are stepped unclipped"
                  : "their momentum is one too, and what _foreach_mul_ and _foreach_add_ make of it is thrown away"),
       clips ? "fully_shard the model over a mesh of one rank, or train.clip_grad_norm = 0"
             : "fully_shard the model over a mesh of one rank, or train.optimizer.impl = \"for_loop\"",
       true});
}

/// Of what has a gradient: a parameter that the step never reads has none, and is not clipped.
bool clips_several_meshes(const Model& model) {
  const std::vector<bool> used = params_with_gradient(model);
  std::set<std::int32_t> meshes;
  for (std::size_t p = 0; p < used.size(); ++p)
    if (model.params[p].requires_grad && used[model.storage_of(ParamId(p)).index()])
      meshes.insert(model.params[p].part.dimension);
  return meshes.size() > 1;
}

/// Norms that are wrong, or fail, over a mesh.
void note_clipping(const Model& model, const Job& job, Plan& plan) {
  if (job.train.clip_grad_norm <= 0) return;
  std::set<std::int32_t> meshes;
  for (const ParamInfo& param : model.params)
    if (param.requires_grad) meshes.insert(param.part.dimension);
  const bool cut = !meshes.empty() && *meshes.rbegin() >= 0;  // ranks that share a sequence are FSDP's own
  if (job.fsdp.runtime == Runtime::Fsdp1 && cut) {
    plan.traps.push_back({27,
                          "FSDP1 clips by a norm that lacks the other tensor ranks' shards",
                          "mesh",
                          {},
                          "clip_grad_norm_ sums over the data ranks alone, so the norm is too small and the ranks of "
                          "one tensor group scale their gradients by different factors",
                          "set fsdp.runtime = \"fsdp2\", or train.clip_grad_norm = 0",
                          true});
  }
  if (has_fsdp2_layouts(job.fsdp.runtime) && meshes.size() > 1 && clips_several_meshes(model)) {
    plan.traps.push_back(
        {kMixedMeshes,
         "clip_grad_norm_ fails over parameters of several meshes",
         "mesh",
         {},
         "PyTorch ends with 'All operands in aten.stack.default must have the same mesh'; planned is a "
         "norm for each mesh, and one factor from their sum",
         "set mesh.sequence_parallel = true, or train.clip_grad_norm = 0",
         true});
  }
}

/// Shared experts: torchtitan cuts them beside those that choose, this plan does not.
void note_whole(const Model& model, Plan& plan) {
  Bytes bytes = 0;
  std::string first;
  for (const ParallelStyle& row : model.parallel) {
    if (row.style != "whole") continue;
    if (first.empty()) first = row.modules;
    for (const ModuleInfo& module : model.modules) {
      for (const ParamId id : module.params) {
        const ParamInfo& param = model.params[id.index()];
        if (module.fqn == row.modules) bytes += numel_of(param.shape) * itemsize(param.dtype);
      }
    }
  }
  if (first.empty()) return;
  plan.warnings.push_back(
      own_note("mesh.expert: layers beside the experts stay whole on every tensor rank (" + first +
               ", ...: " + std::to_string(bytes) +
               " bytes before FSDP shards them); torchtitan cuts shared experts over the tensor ranks and needs "
               "less memory for them"));
}

/// Where parameters are before they are cut, of a job that cuts none; and gradients that nobody sums.
void note_settings(const Job& job, Plan& plan) {
  if (leaves_gradients_unsummed(job))
    plan.warnings.push_back(own_note(
        "fsdp.wrap.root = false: nobody sums the gradients of the ranks that share a sequence, each has those of its "
        "own part; a script that does so itself needs no more memory"));
  const std::string& init = job.cluster.init;
  if ((init != "parts" && init != "device_blocks_first") || job.mesh.tensor > 1 || job.mesh.expert > 1) return;
  plan.warnings.push_back(
      own_note("cluster.init = \"" + init +
               "\" is \"device\" here: nothing is cut over ranks before it is sharded (mesh.tensor and "
               "mesh.expert are 1)"));
}

void note_rest(const PlanRequest& request, Plan& plan) {
  const bool asked = std::ranges::any_of(request.script.iterations, [](const IterationScript& actions) {
    return std::ranges::any_of(actions, [](const Action& action) { return action.rest; });
  });
  if (!asked || first_step(request.graph, request.job.fsdp, true) > 0) return;
  plan.warnings.push_back(
      own_note("train.script: fwd_rest is a whole fwd here, nothing stands before the first call with gradients"));
}

/// What a plan over tensor ranks does to parameters without an error.
void note_parameters(const Model& model, Runtime runtime, Plan& plan) {
  std::vector<std::string> untied, fused, partial, thawed, elsewhere;
  for (const ParallelStyle& row : model.parallel) {
    if (row.style.starts_with(kUntied)) untied.push_back(row.modules);
    if (row.style == "fused") fused.push_back(row.modules);
    if (row.style == "partial") partial.push_back(row.modules);
    if (row.style == "thawed") thawed.push_back(row.modules);
    if (row.style == "elsewhere") elsewhere.push_back(row.modules);
  }
  const auto note = [&](std::int32_t number, const char* name, const std::vector<std::string>& units, const char* text,
                        const char* remedy) {
    if (!units.empty()) plan.traps.push_back({number, name, "mesh", units, text, remedy, true});
  };
  note(26, "tied parameters are untied by a tensor-parallel plan", untied,
       "each becomes a tensor of its own: stored, reduced and stepped apart, where the model has one",
       "cut models whose embedding and head are not tied, or leave both out of mesh.plan");
  note(
      53, "a fused projection is cut across its parts", fused,
      "each rank takes an equal share of its own rows for every part (queries, keys, values; gate and value), which "
      "are not the rows that the whole model takes: weights that were trained without this cut, or with another "
      "degree, mean something else, and so do checkpoints of them",
      "one projection for each part, or the parts of a head side by side ([heads, parts x size]); right as it is where "
      "weights start here and the degree never changes");
  note(54, "gradients of whole parameters lack the other tensor ranks' parts", partial,
       "these are whole on every rank and read what is cut, or weigh terms of the ranks' sum or rows that ranks split "
       "(a "
       "router's scores), so each rank steps them by the gradient of its own heads, columns, positions, terms or rows "
       "alone, and the ranks' copies drift apart",
       "mesh.sequence_parallel = true with style sequence for a norm of heads or of positions; scores that weigh what "
       "experts take, not what they make; else keep them away from what is cut");
  note(57, "tokens that tensor ranks split are not those of their parts of the sequence", elsewhere,
       "each rank picks its rows of all tokens, but the gradient of what it picks from is cut along the sequence as if "
       "it "
       "were whole: what other ranks' rows gave to its part is lost, without an error",
       "model.batch = 1 (rows of one sequence are its parts); or expert_tensor in place of experts and split");
  if (thawed.empty()) return;
  const bool flat = runtime == Runtime::Fsdp1;
  plan.traps.push_back(
      {56, "frozen parameters are trained over a mesh", "mesh", thawed,
       std::string(flat ? "FSDP1 asks every local tensor of a DTensor that it flattens to require a gradient"
                        : "SequenceParallel replicates them as new parameters, which require gradients") +
           ": they are reduced and stepped, have optimizer states and keep their inputs for backward; checkpoints of "
           "adapters do not have them",
       flat ? "fsdp.runtime = \"fsdp2\""
            : "freeze them again behind parallelize_module, or mesh.sequence_parallel = false",
       flat});
}

/// What tensor parallelism does silently, and what it costs where it leaves the node.
void note_mesh(const Model& model, const Job& job, Plan& plan) {
  note_parameters(model, job.fsdp.runtime, plan);
  note_whole(model, plan);
  note_clipping(model, job, plan);
  note_terms(model, job, plan);
  for (Trap& trap : expert_traps(model, job, plan)) plan.traps.push_back(std::move(trap));
  for (Trap& trap : tensor_traps(model)) plan.traps.push_back(std::move(trap));
  for (const MeshDimension& dimension : model.mesh) {
    const std::int64_t per_node = std::max<std::int64_t>(job.cluster.ranks_per_node, 1);
    if (dimension.ranks.front() / per_node == dimension.ranks.back() / per_node) continue;
    Bytes bytes = 0;
    std::int64_t count = 0;
    for (const Op& op : model.ops) {
      const bool moves = mesh_dimension_of(op) >= 0 &&
                         model.mesh[static_cast<std::size_t>(mesh_dimension_of(op))].name == dimension.name;
      if (!moves || op.out.empty() || !op.out.front().valid()) continue;
      const ValueInfo& value = model.values[op.out.front().index()];
      bytes += numel_of(value.shape) * itemsize(value.dtype);
      ++count;
    }
    plan.warnings.push_back(own_note(
        "mesh." + dimension.name + ": its " + std::to_string(dimension.ranks.size()) + " ranks lie on several nodes: " +
        std::to_string(count) + " collectives with results of " + std::to_string(bytes) +
        " bytes in every forward cross the network while nothing else runs, and those of backward; "
        "keep the degree at or below cluster.ranks_per_node"));
  }
}

}  // namespace

std::vector<bool> block_modules(const Model& model, const Job& job) {
  std::vector<bool> blocks;
  for (const ModuleInfo& module : model.modules) blocks.push_back(is_block(model, job, module));
  return blocks;
}

Result<std::vector<CheckpointKind>> checkpointed_modules(const Model& model, const Job& job, const UnitTable&) {
  std::vector<CheckpointKind> kinds(model.modules.size(), CheckpointKind::None);
  const CheckpointingOptions& options = job.checkpointing;
  if (options.policy == CheckpointPolicy::None) return kinds;
  const CheckpointKind kind = options.reentrant ? CheckpointKind::Reentrant : CheckpointKind::NonReentrant;
  std::int64_t blocks = 0, wrapped = 0;
  std::set<std::string_view> names;  // most patterns of a schedule are names
  std::vector<std::string_view> patterns;
  for (const std::string& pattern : options.units) {
    if (is_plain_name(pattern))
      names.insert(pattern);
    else
      patterns.push_back(pattern);
  }
  for (std::size_t m = 0; m < model.modules.size(); ++m) {
    const ModuleInfo& module = model.modules[m];
    bool wrap = false;
    if (options.policy == CheckpointPolicy::Selective) {
      wrap = names.contains(module.fqn) || std::any_of(patterns.begin(), patterns.end(), [&](std::string_view pattern) {
               return matches_pattern(pattern, module.fqn);
             });
    } else if (is_block(model, job, module)) {
      const std::int64_t every = options.policy == CheckpointPolicy::EveryK ? options.k : 1;
      wrap = blocks++ % every == 0;
    }
    if (!wrap) continue;
    kinds[m] = kind;
    ++wrapped;
  }
  if (wrapped == 0) return fail(nothing_to_checkpoint(job));
  return kinds;
}

Job units_key(const Job& job) {
  Job key = job;
  const Job none;
  key.fsdp.backward_prefetch = none.fsdp.backward_prefetch;
  key.fsdp.forward_prefetch = none.fsdp.forward_prefetch;
  key.fsdp.limit_all_gathers = none.fsdp.limit_all_gathers;
  key.fsdp.prefetch = none.fsdp.prefetch;
  key.checkpointing = none.checkpointing;
  key.schedule = none.schedule;
  key.train = none.train;
  key.allocator = none.allocator;
  key.cluster.memory = none.cluster.memory;
  key.cluster.init = none.cluster.init;
  key.cluster.profile = none.cluster.profile;
  return key;
}

Result<Plan> build_plan(const Model& model, const Job& job) {
  PlanParts parts;
  return build_plan(model, job, parts);
}

Result<Plan> build_plan(const Model& model, const Job& job, PlanParts& parts) {
  if (!parts.units) {
    Result<UnitTable> table = build_units(model, job);
    if (!table) return tl::unexpected(table.error());
    parts.units = std::make_shared<const UnitTable>(std::move(*table));
  }
  if (const Result<void> scaler = check_scaler(job, *parts.units); !scaler) return tl::unexpected(scaler.error());
  if (const Result<void> inner = check_inner_offload(model, job); !inner) return tl::unexpected(inner.error());
  if (const Result<void> steps = check_optimizer(model, job, *parts.units); !steps)
    return tl::unexpected(steps.error());
  if (const Result<void> flat = check_original_dtensors(model, job, *parts.units); !flat)
    return tl::unexpected(flat.error());
  if (const Result<void> saved = check_saved(job); !saved) return tl::unexpected(saved.error());
  Result<std::vector<CheckpointKind>> checkpoint = checkpointed_modules(model, job, *parts.units);
  if (!checkpoint) return tl::unexpected(checkpoint.error());
  parts.checkpointed = std::move(*checkpoint);
  std::vector<bool> boundary(model.modules.size(), false);
  for (const PlanUnit& unit : parts.units->units) {
    for (ModuleId module : unit.modules) boundary[module.index()] = true;
  }
  if (job.fsdp.runtime == Runtime::None) {  // a block's gradients are there, and reduced, before the next block's
    for (std::size_t m = 0; m < model.modules.size(); ++m) {
      if (is_block(model, job, model.modules[m])) boundary[m] = true;
    }
  }
  if (auto blocks = check_compiled(model, job, boundary, parts.checkpointed); !blocks)
    return tl::unexpected(blocks.error());
  const bool inside = !job.checkpointing.outside;
  const std::vector<bool> differentiated = differentiated_params(*parts.units, job.fsdp.runtime);
  std::shared_ptr<const ModuleGraph> graph;
  if (parts.graph) {
    auto made = parts.graph(boundary, parts.checkpointed, inside, differentiated);
    if (!made) return tl::unexpected(made.error());
    graph = std::move(*made);
  } else {
    Result<ModuleGraph> made = build_module_graph(model, boundary, parts.checkpointed, inside, differentiated);
    if (!made) return tl::unexpected(made.error());
    graph = std::make_shared<const ModuleGraph>(std::move(*made));
  }
  Result<Script> script = script_of(job);
  if (!script) return tl::unexpected(script.error());

  PlanRequest request{model, job, *parts.units, *graph, *script};
  request.autograd = parts.autograd;
  Result<Plan> plan = build_for_runtime(request);
  if (!plan) return plan;
  if (!model.mesh.empty()) {
    enter_mesh(model, *plan);
    note_mesh(model, job, *plan);
  }
  note_settings(job, *plan);
  note_rest(request, *plan);
  for (Trap& trap : script_traps(model, job, *plan)) plan->traps.push_back(std::move(trap));
  for (Trap& trap : training_traps(model, job, *parts.units, parts.checkpointed))
    plan->traps.push_back(std::move(trap));
  const Result<void> refused = refuse_traps(*plan, job);
  if (!refused) return tl::unexpected(refused.error());
  if (parts.checks) plan->checks = run_checks(*plan);
  return plan;
}

}  // namespace foreshard
