#include "core/plan/script_traps.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "core/job/optimizer_facts.h"
#include "core/model/module_kind.h"
#include "core/plan/runtime/muon_params.h"
#include "core/runtime_layouts.h"

namespace foreshard {
namespace {

bool steps_in_backward(const Job& job) { return steps_in_backward(job.train.optimizer.impl); }

Error refused(const Job& job, std::string message, std::string expected, std::string got, std::string hint) {
  return {ErrorCode::Refused,  std::move(message), job.model.source, "train.optimizer.name",
          std::move(expected), std::move(got),     std::move(hint)};
}

/// What PyTorch says of the first parameter of a block as FSDP1 leaves it.
std::string first_flat_shape(const Model& model, const UnitTable& table) {
  for (const PlanUnit& unit : table.units) {
    for (const ParamId param : unit.params) {
      if (!is_block_matrix(model, param)) continue;
      return fmt::format("torch.Size([{}])", std::min(unit.shard_numel, numel_of(model.params[param.index()].shape)));
    }
  }
  return "torch.Size([0])";
}

// ---------------------------------------------------------------- optimizers

Trap never_fires(const Plan& plan) {
  Trap trap{33, "an optimizer in backward never fires under FSDP1", "OPT", {}, {}, {}, true};
  Numel numel = 0;
  for (const PlanUnit& unit : plan.units) numel += unit.requires_grad ? unit.numel : 0;
  trap.text = fmt::format(
      "FSDP1 writes gradients itself, so hooks on the parameters are never called: {} elements are never updated, "
      "and no error says so",
      numel);
  trap.remedy = "train.optimizer.impl = \"foreach\" or \"fused\", or fsdp.runtime = \"fsdp2\"";
  return trap;
}

Trap steps_each_micro_batch(const Job& job) {
  Trap trap{34, "an optimizer in backward steps once a micro-batch", "OPT, F2-18", {}, {}, {}, false};
  trap.text = fmt::format(
      "every reduction is followed by the step of its parameters, so {} micro-batches are {} steps on a {}th of the "
      "batch each, on the reduce-scatter stream, whose pool keeps the optimizer's state",
      job.train.micro_batches, job.train.micro_batches, job.train.micro_batches);
  trap.remedy = "train.no_sync = true, or one micro-batch";
  return trap;
}

Trap unfactored(const Model& model, const Plan& plan) {
  Trap trap{35, "Adafactor is not factored under FSDP1", "OPT", {}, {}, {}, false};
  Bytes kept = 0, factored = 0;
  for (const PlanUnit& unit : plan.units) {
    kept += unit.requires_grad ? unit.shard_numel * itemsize(DType::Float32) : 0;
    for (const ParamId param : unit.params) {
      const Shape& shape = model.params[param.index()].shape;
      const Numel numel = numel_of(shape);
      const bool matrix = shape.size() > 1;
      const Numel rows = matrix ? numel / shape.back() : numel;
      factored += (matrix ? rows + numel / shape[shape.size() - 2] : rows) * itemsize(DType::Float32);
    }
  }
  trap.text = fmt::format(
      "it sees shards of one dimension: a rank keeps {} bytes of second moments, where rows and columns of the whole "
      "model take {}, and its updates differ from those of one process",
      kept, factored);
  trap.remedy = "adamw, or Adafactor without FSDP";
  return trap;
}

/// foreach_reduce records an event for the optimizer to wait on, but calls the hooks at once.
Trap steps_too_soon() {
  Trap trap{51,   "an optimizer in backward steps before its gradients have reached the host", "OPT, C6", {}, {}, {},
            false};
  trap.text =
      "with pinned memory a gradient's copy to the host is not waited for before the hooks run: a step takes what lay "
      "there before, and no error says so";
  trap.remedy = "fsdp.offload_pin_memory = false, whose copies block, or an optimizer that steps after backward";
  return trap;
}

/// Each operand of each product is scaled and cast, which in eager mode is a kernel and a tensor for every operation.
std::optional<Trap> float8_unfused(const Job& job) {
  if (job.model.float8 == "none" || job.model.compile) return std::nullopt;
  Trap trap{50, "float8 layers without torch.compile", "F8", {}, {}, {}, false};
  trap.text =
      "the casts of every operand run as a dozen kernels with float32 copies of it: they cost more than the products "
      "save";
  trap.remedy = "model.compile = true";
  return trap;
}

/// What a linear layer saves of its matrix is a view, which the hooks take for an activation.
std::optional<Trap> offloads_weights(const Model& model, const Job& job, const Plan& plan) {
  if (!job.checkpointing.offload_activations || job.checkpointing.policy != CheckpointPolicy::None) return std::nullopt;
  if (plan.runtime == Runtime::None) return std::nullopt;
  std::set<ParamId> matrices;
  Bytes bytes = 0;
  const ModuleId head = output_head(model);
  for (const Op& op : model.ops) {
    if (head.valid() && op.module == head) continue;                                     // hooks are off there
    const bool plain = op.name == "aten.mm.default" || op.name == "aten.addmm.default";  // of the parameter itself
    const bool turned = op.name == "aten.linear.default" || op.name == "aten.t.default";
    const bool product = turned || (plain && plan.runtime == Runtime::Fsdp1);
    for (const Arg& arg : op.args) {
      const auto* const ref = std::get_if<ParamRef>(&arg.value);
      if (!product || ref == nullptr) continue;
      const ParamInfo& info = model.params[model.storage_of(ref->id).index()];
      if (info.shape.size() == 2 && matrices.insert(model.storage_of(ref->id)).second)
        bytes += numel_of(info.shape) * itemsize(model.compute_dtype);
    }
  }
  if (matrices.empty()) return std::nullopt;
  Trap trap{52, "activation offload copies gathered weights", "AO", {}, {}, {}, false};
  trap.text = fmt::format(
      "without checkpointing every linear layer saves a view of its gathered matrix, which is copied to the host and "
      "back: up to {} bytes each way and micro-batch; the unit may be given back before the copy has read it",
      bytes);
  trap.remedy = "checkpointing.policy = \"block\", whose blocks save their inputs alone";
  return trap;
}

std::optional<Trap> muon_meets(const Plan& plan) {
  std::int64_t reductions = 0, gathers = 0, others = 0;
  Bytes bytes = 0;
  if (plan.iterations.empty()) return std::nullopt;
  for (const Instruction& i : plan.iterations.back().instructions) {
    if (i.phase != Phase::Optimizer || !is_collective(i.kind)) continue;
    bytes += i.bytes;
    const bool gather = i.kind == InstructionKind::AllGather && plan.name_of(i.name) == "aten.all_gather";
    ++(i.kind == InstructionKind::AllReduce ? reductions : gather ? gathers : others);
  }
  if (reductions + gathers + others == 0) return std::nullopt;
  Trap trap{36, "Muon multiplies sharded matrices", "OPT", {}, {}, {}, false};
  trap.text = fmt::format(
      "each step of its iteration redistributes every matrix: {} all-reduces, {} all-gathers and {} other collectives "
      "a step, {} bytes, one after the other with nothing beside them",
      reductions, gathers, others, bytes);
  trap.remedy = "adamw, or a Muon that gathers each matrix once";
  return trap;
}

// ---------------------------------------------------------------- units

/// Units that one micro-batch gathers more than twice.
std::optional<Trap> gathered_again(const Plan& plan) {
  if (plan.iterations.empty() || plan.runtime == Runtime::None) return std::nullopt;
  const PlanIteration& last = plan.iterations.back();
  struct Gathers {
    std::int64_t count = 0, on_default = 0;
    Bytes bytes = 0;
  };
  std::map<UnitId, Gathers> by_unit;
  for (const Instruction& i : last.instructions) {
    if (i.kind != InstructionKind::AllGather || !i.unit.valid()) continue;
    Gathers& unit = by_unit[i.unit];
    ++unit.count;
    unit.on_default += i.stream == Stream::D ? 1 : 0;
    unit.bytes += i.bytes;
  }
  Trap trap{37, "a unit is gathered for every piece of the sequence", "F2-7, F2-15", {}, {}, {}, false};
  Gathers all;
  for (const auto& [id, unit] : by_unit) {
    if (unit.count <= 2 * last.micro_batches) continue;
    trap.units.push_back(plan.units[id.index()].name);
    all.count += unit.count;
    all.on_default += unit.on_default;
    all.bytes += unit.bytes;
  }
  if (trap.units.empty()) return std::nullopt;
  trap.text = fmt::format(
      "its module is called several times, and each call gathers it: {} all-gathers a step, {} of them on the default "
      "stream, where nothing overlaps them, {} bytes",
      all.count, all.on_default, all.bytes);
  trap.remedy = "leave it to the root's unit, or keep it gathered (reshard_after_forward = false)";
  return trap;
}

std::optional<Trap> group_for_each_unit(const Plan& plan) {
  std::int64_t groups = 0;
  for (const PlanCommunicator& one : plan.communicators) groups += one.name.starts_with("post_forward:") ? 1 : 0;
  if (groups < 2) return std::nullopt;
  Trap trap{38, "every unit makes a communicator of its own", "F2-13", {}, {}, {}, false};
  trap.text = fmt::format(
      "reshard_after_forward = k: {} communicators beside the shard group's, each with buffers of its own on the "
      "device and a start of its own",
      groups);
  trap.remedy = "reshard_after_forward = true or false, or a mesh with a dimension of k ranks";
  return trap;
}

Trap clips_on_host() {
  Trap trap{39, "offloaded gradients cannot be clipped with NCCL alone", "F2-29, C6", {}, {}, {}, false};
  trap.text =
      "norms of gradients on the host are summed over the host's backend: with init_process_group(\"nccl\") "
      "clip_grad_norm_ ends in RuntimeError: No backend type associated with device type cpu";
  trap.remedy = "init_process_group(\"cpu:gloo,cuda:nccl\"), or train.clip_grad_norm = 0";
  return trap;
}

Trap clips_nothing() {
  Trap trap{40, "nothing is left to clip behind an optimizer in backward", "OPT", {}, {}, {}, false};
  trap.text =
      "gradients are gone when backward returns: clip_grad_norm_ finds none, and none was clipped before its step";
  trap.remedy = "train.clip_grad_norm = 0, or an optimizer that steps after backward";
  return trap;
}

// ---------------------------------------------------------------- masks

std::optional<Trap> mask_changes_kernel(const Model& model, bool packed) {
  std::int64_t layers = 0;
  Bytes bias = 0, heads = 0;
  for (const Op& op : model.ops) {
    if (!op.name.starts_with("aten._scaled_dot_product_efficient_attention") || op.args.size() < 4) continue;
    const auto* mask = std::get_if<ValueRef>(&op.args[3].value);
    const auto* keys = std::get_if<ValueRef>(&op.args[1].value);
    if (mask == nullptr || keys == nullptr) continue;
    ++layers;
    const ValueInfo& seen = model.values[mask->id.index()];
    bias += numel_of(seen.shape) / std::max<std::int64_t>(seen.shape[1], 1) * itemsize(seen.dtype);
    const ValueInfo& all = model.values[keys->id.index()];
    heads += 2 * numel_of(all.shape) * itemsize(all.dtype);
  }
  if (layers == 0) return std::nullopt;
  Trap trap{41, "a padding mask changes the attention kernel", "ATT", {}, {}, {}, false};
  if (packed) trap.name = "a mask that tells packed sequences apart changes the attention kernel";
  trap.text = fmt::format(
      "memory-efficient attention runs instead of flash attention in {} layers; for backward they keep {} bytes of "
      "biases (batch x 1 x seq x seq each) and {} bytes of keys and values repeated to all heads",
      layers, bias, heads);
  trap.remedy =
      packed ? "attention of variable lengths (flash_attention_2) makes no mask of the positions"
             : "pack sequences without padding and hand no mask, or give a mask that hides nothing only where it does";
  return trap;
}

/// torch.optim has a fused step of Adagrad alone, on hosts, and DTensor no rule for it.
Result<void> check_fused(const Job& job, const OptimizerOptions& optimizer) {
  const OptimizerKind name = optimizer.name;
  const bool has = name == OptimizerKind::Adagrad;
  const bool asked = is_other_elementwise(name) && optimizer.impl == OptimizerImpl::Fused;
  if (!asked || (has && !has_fsdp2_layouts(job.fsdp.runtime))) return {};
  const std::string own(class_name(name));
  Error error = refused(
      job,
      has ? "NotImplementedError: Operator aten._fused_adagrad_.default does not have a sharding strategy registered."
          : "TypeError: " + own + ".__init__() got an unexpected keyword argument 'fused'",
      "for_loop or foreach", has ? "fused on DTensors" : "fused, which torch.optim." + own + " does not have",
      "set train.optimizer.impl = \"foreach\"");
  error.place = "train.optimizer.impl";
  return fail(std::move(error));
}

}  // namespace

Result<void> check_optimizer(const Model& model, const Job& job, const UnitTable& table) {
  for (const OptimizerOptions& optimizer : optimizers_of(job.train))
    if (Result<void> checked = check_fused(job, optimizer); !checked) return checked;
  const OptimizerKind name = job.train.optimizer.name;
  const Runtime runtime = job.fsdp.runtime;
  if (name == OptimizerKind::Muon && runtime == Runtime::Fsdp1) {
    return fail(
        refused(job,
                "ValueError: Muon only supports 2D parameters whereas we found a parameter with size: " +
                    first_flat_shape(model, table),
                "matrices", "shards of one dimension, which is what FSDP1 leaves of them",
                "set fsdp.runtime = \"fsdp2\", where it works by gathering, or train.optimizer.name = \"adamw\""));
  }
  if (name == OptimizerKind::Muon && has_fsdp2_layouts(runtime) && job.fsdp.cpu_offload) {
    return fail(refused(
        job,
        "RuntimeError: No backend type associated with device type cpu (Muon's collectives meet over the parameters' "
        "own group, whose backend is NCCL alone)",
        "parameters on the device", "offloaded ones",
        "set fsdp.cpu_offload = false, or train.optimizer.name = \"adamw\""));
  }
  if (name == OptimizerKind::Adafactor && has_fsdp2_layouts(runtime)) {
    const bool torch = !is_transformers(job.train.optimizer);
    const bool lists = torch && job.train.optimizer.impl != OptimizerImpl::ForLoop;
    return fail(refused(
        job,
        lists   ? "NotImplementedError: Operator aten._foreach_lerp_.ScalarList does not have a sharding strategy "
                  "registered."
        : torch ? "RuntimeError: aten.pow_ would change the placement of a DTensor."
                : "RuntimeError: transformers' Adafactor mixes torch.Tensor and DTensor.",
        "an optimizer whose operators DTensor shards", "adafactor on DTensors",
        "set train.optimizer.name = \"adamw\", or fsdp.runtime = \"fsdp1\", where it runs unfactored"));
  }
  return {};
}

std::vector<Trap> script_traps(const Model& model, const Job& job, const Plan& plan) {
  std::vector<Trap> traps;
  const auto add = [&](std::optional<Trap> trap) {
    if (trap) traps.push_back(std::move(*trap));
  };
  const bool fsdp1 = plan.runtime == Runtime::Fsdp1, fsdp2 = has_fsdp2_layouts(plan.runtime);
  if (fsdp1 && steps_in_backward(job)) add(never_fires(plan));
  if (fsdp2 && steps_in_backward(job) && job.train.micro_batches > 1 && !job.train.no_sync)
    add(steps_each_micro_batch(job));
  if (fsdp2 && steps_in_backward(job) && job.fsdp.cpu_offload && job.fsdp.offload_pin_memory) add(steps_too_soon());
  add(float8_unfused(job));
  add(offloads_weights(model, job, plan));
  if (fsdp1 && job.fsdp.strategy != Strategy::NoShard && job.train.optimizer.name == OptimizerKind::Adafactor)
    add(unfactored(model, plan));
  if (job.train.optimizer.name == OptimizerKind::Muon) add(muon_meets(plan));
  add(gathered_again(plan));
  if (fsdp2) add(group_for_each_unit(plan));
  if (fsdp2 && job.fsdp.cpu_offload && job.train.clip_grad_norm > 0) add(clips_on_host());
  if (fsdp2 && steps_in_backward(job) && job.train.clip_grad_norm > 0) add(clips_nothing());
  if (job.model.attention_mask || job.model.packed) add(mask_changes_kernel(model, job.model.packed));
  return traps;
}

}  // namespace foreshard
