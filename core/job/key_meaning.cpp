#include "core/job/key_meaning.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

#include "core/job/job_file.h"
#include "core/job/job_keys.h"
#include "core/runtime_layouts.h"

namespace foreshard {
namespace {

bool shards_in_groups(const Job& job) {
  const auto hybrid = [](const UnitOverride& o) { return o.strategy && is_hybrid(*o.strategy); };
  return is_hybrid(job.fsdp.strategy) || std::any_of(job.fsdp.overrides.begin(), job.fsdp.overrides.end(), hybrid);
}

bool wraps_by(const Job& job, std::initializer_list<WrapPolicyKind> policies) {
  return job.fsdp.runtime != Runtime::None &&
         std::find(policies.begin(), policies.end(), job.fsdp.wrap.policy) != policies.end();
}

struct Condition {
  std::string_view key;  // with a dot at its end: all keys of the table
  bool (*holds)(const Job&);
};

// The first line that fits decides.
constexpr auto kConditions = std::to_array<Condition>({
    {"checkpointing.k", [](const Job& job) { return job.checkpointing.policy == CheckpointPolicy::EveryK; }},
    {"checkpointing.units", [](const Job& job) { return job.checkpointing.policy == CheckpointPolicy::Selective; }},
    {"checkpointing.save", [](const Job& job) { return job.checkpointing.policy == CheckpointPolicy::Ops; }},
    {"checkpointing.reentrant", [](const Job& job) { return job.checkpointing.policy != CheckpointPolicy::None; }},
    {"checkpointing.placement", [](const Job& job) { return job.checkpointing.policy != CheckpointPolicy::None; }},
    {"fsdp.wrap.root",
     [](const Job& job) { return job.fsdp.runtime != Runtime::None || job.cluster.world_size > 1; }},
    {"fsdp.wrap.classes", [](const Job& job) { return wraps_by(job, {WrapPolicyKind::ModuleClass}); }},
    {"fsdp.wrap.min_num_params",
     [](const Job& job) {
       return wraps_by(job, {WrapPolicyKind::Size, WrapPolicyKind::Auto});
     }},
    {"fsdp.wrap.units",
     [](const Job& job) {
       return wraps_by(job, {WrapPolicyKind::Units, WrapPolicyKind::Custom});
     }},
    {"fsdp.wrap.policy", [](const Job& job) { return job.fsdp.runtime != Runtime::None; }},
    {"fsdp.strategy", [](const Job& job) { return job.fsdp.runtime != Runtime::None; }},
    {"fsdp.cpu_offload", [](const Job& job) { return job.fsdp.runtime != Runtime::None; }},
    {"fsdp.offload_pin_memory", [](const Job& job) { return job.fsdp.cpu_offload; }},
    {"model.loss_chunks", [](const Job& job) { return job.model.loss.starts_with("chunked_"); }},
    {"model.autocast_cache", [](const Job& job) { return job.model.autocast.has_value(); }},
    {"model.float32_outputs", [](const Job& job) { return job.model.autocast.has_value(); }},
    {"adapters.kind", [](const Job&) { return true; }},
    {"adapters.", [](const Job& job) { return job.adapters.kind != "none"; }},
    {"mesh.sequence_parallel", [](const Job& job) { return job.mesh.tensor > 1; }},
    {"mesh.loss_parallel", [](const Job& job) { return job.mesh.tensor > 1; }},
    {"mesh.async_tensor", [](const Job& job) { return job.mesh.tensor > 1; }},
    {"mesh.flattened", [](const Job& job) { return job.mesh.tensor > 1; }},
    {"mesh.plan", [](const Job& job) { return job.mesh.tensor > 1 || job.mesh.expert > 1; }},
    {"mesh.context_rotate", [](const Job& job) { return job.mesh.context > 1; }},
    {"mesh.context_buffers", [](const Job& job) { return job.mesh.context > 1; }},
    {"mesh.expert_imbalance", [](const Job& job) { return job.mesh.expert > 1; }},
    {"mesh.expert_divide_factor", [](const Job& job) { return job.mesh.expert > 1; }},
    {"train.no_sync", [](const Job& job) { return job.train.micro_batches > 1; }},
    {"train.optimizer.betas",
     [](const Job& job) {
       const OptimizerKind name = job.train.optimizer.name;
       return name != OptimizerKind::Sgd && name != OptimizerKind::Adagrad && name != OptimizerKind::RMSprop;
     }},
    {"train.optimizer.eps", [](const Job& job) { return job.train.optimizer.name != OptimizerKind::Sgd; }},
    {"train.optimizer.watched", [](const Job& job) { return job.train.optimizer.name == OptimizerKind::Watched; }},
    {"train.optimizer.library", [](const Job& job) { return job.train.optimizer.name == OptimizerKind::Adafactor; }},
    {"train.optimizer.momentum",
     [](const Job& job) {
       const OptimizerKind name = job.train.optimizer.name;
       return name == OptimizerKind::Sgd || name == OptimizerKind::RMSprop;
     }},
    {"train.optimizer.alpha", [](const Job& job) { return job.train.optimizer.name == OptimizerKind::RMSprop; }},
    {"train.optimizer.amsgrad", [](const Job& job) { return job.train.optimizer.name == OptimizerKind::AdamW; }},
    {"train.optimizer.centered", [](const Job& job) { return job.train.optimizer.name == OptimizerKind::RMSprop; }},
    {"train.optimizer.decoupled_weight_decay",
     [](const Job& job) {
       const OptimizerKind name = job.train.optimizer.name;
       return name == OptimizerKind::NAdam || name == OptimizerKind::RAdam;
     }},
    {"train.schedule.min_ratio", [](const Job& job) { return job.train.schedule.name == "cosine"; }},
    {"train.grad_scaler.enabled", [](const Job&) { return true; }},
    {"train.grad_scaler.", [](const Job& job) { return job.train.grad_scaler.enabled; }},
    {"train.eval.every", [](const Job&) { return true; }},
    {"train.eval.", [](const Job& job) { return job.train.eval.every > 0; }},
    {"train.checkpoint.every", [](const Job& job) { return !job.train.checkpoint.dir.empty(); }},
    {"train.checkpoint.keep", [](const Job& job) { return !job.train.checkpoint.dir.empty(); }},
    {"cluster.shard_group", shards_in_groups},
    {"fsdp.float8_all_gather", [](const Job& job) { return job.model.float8 == "tensorwise"; }},
});

/// Of a key that was given.
void warn_if_without_meaning(const JobKey& key, const Job& job, std::vector<std::string>& warnings) {
  if (!key.means_in(job.fsdp.runtime))
    warnings.push_back(fmt::format("{} has a meaning with {} only; the runtime is {}", key.name,
                                   runtime_name(*key.only), runtime_name(job.fsdp.runtime)));
  if (key.name.starts_with("adapters.") && key.name != "adapters.kind" && job.adapters.kind == "none")
    warnings.push_back(fmt::format("{} has a meaning with adapters.kind = \"lora\" only", key.name));
  const MeshOptions& mesh = job.mesh;
  const auto beside = [&](const char* degree, bool is) {
    if (!is) warnings.push_back(fmt::format("{} has a meaning with {} above 1 only", key.name, degree));
  };
  if (key.name.starts_with("mesh.expert_")) return beside("mesh.expert", mesh.expert > 1);
  if (key.name.starts_with("mesh.context_")) return beside("mesh.context", mesh.context > 1);
  const bool degree = key.name == "mesh.context" || key.name == "mesh.expert" || key.name == "mesh.tensor";
  if (!key.name.starts_with("mesh.") || degree) return;
  beside("mesh.tensor", mesh.tensor > 1 || (key.name == "mesh.plan" && mesh.expert > 1));
}

}  // namespace

std::vector<std::string> job_warnings(const LoadedJob& loaded) {
  const Job& job = loaded.job;
  std::vector<std::string> warnings;
  for (std::size_t i = 0; i < loaded.values.size(); ++i)
    if (loaded.values[i].origin != "default") warn_if_without_meaning(job_keys()[i], job, warnings);
  if (job.cluster.shard_group != 0 && !shards_in_groups(job))
    warnings.emplace_back("cluster.shard_group has a meaning with hybrid strategies only");
  return warnings;
}

bool has_meaning(const std::string& key, const Job& job) {
  const auto index = find_job_key(key);
  if (index && !job_keys()[*index].means_in(job.fsdp.runtime)) return false;
  for (const Condition& condition : kConditions) {
    const bool fits = condition.key.back() == '.' ? key.starts_with(condition.key) : key == condition.key;
    if (fits) return condition.holds(job);
  }
  return true;
}

}  // namespace foreshard
