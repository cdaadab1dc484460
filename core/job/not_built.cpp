#include "core/job/not_built.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "core/job/job_keys.h"
#include "core/job/optimizer_facts.h"
#include "core/runtime_layouts.h"

namespace foreshard {
namespace {

/// Whether the job's own optimizer or one of a part is such.
template <class Is>
bool any_optimizer(const Job& job, Is is) {
  const std::vector<OptimizerOptions> all = optimizers_of(job.train);
  return std::any_of(all.begin(), all.end(), is);
}

struct Missing {
  const char* key;
  bool (*asked)(const Job&);
  const char* instead;  // what works
};

// One line a key: it goes when the key works.
constexpr Missing kMissing[] = {
    {"model.autocast",
     [](const Job& job) {
       const bool kind = job.model.autocast == DType::BFloat16 || job.model.autocast == DType::Float16;
       return job.model.autocast.has_value() && !kind;
     },
     "none, bfloat16 or float16"},
    {"model.autocast",
     [](const Job& job) {
       const bool cut = job.mesh.tensor > 1 || job.mesh.context > 1 || job.mesh.expert > 1;
       return job.model.autocast.has_value() && (cut || job.model.compile);
     },
     "none with [mesh] or model.compile: parameters cast by fsdp.mixed_precision"},
    {"mesh.context",
     [](const Job& job) {
       const Strategy strategy = job.fsdp.strategy;
       const bool shards = strategy == Strategy::FullShard || strategy == Strategy::HybridShard;
       const bool flat = job.fsdp.runtime == Runtime::Fsdp1 && strategy != Strategy::NoShard;
       const bool whole = job.fsdp.runtime == Runtime::None;  // DDP, or nothing
       return job.mesh.context > 1 && !flat && !whole && (!has_fsdp2_layouts(job.fsdp.runtime) || !shards);
     },
     "fsdp2 with FULL_SHARD or HYBRID_SHARD, fsdp1 with a strategy that shards, or none"},
    {"mesh.expert",
     [](const Job& job) {
       const MeshOptions& mesh = job.mesh;
       const Strategy strategy = job.fsdp.strategy;
       const bool shards = strategy == Strategy::FullShard || strategy == Strategy::HybridShard;
       return mesh.expert > 1 && (!shards || !has_fsdp2_layouts(job.fsdp.runtime));
     },
     "experts over fsdp2 with FULL_SHARD or HYBRID_SHARD"},
    {"mesh.sequence_parallel",
     [](const Job& job) { return job.mesh.expert > 1 && job.mesh.tensor > 1 && !job.mesh.sequence_parallel; },
     "true beside mesh.expert and mesh.tensor: each tensor rank sends its own part of the sequence to the experts"},
    {"checkpointing.offload_activations",
     [](const Job& job) {
       const bool cut = job.mesh.tensor > 1 || job.mesh.context > 1 || job.mesh.expert > 1;
       return job.checkpointing.offload_activations && (cut || job.model.compile || job.checkpointing.reentrant);
     },
     "false with [mesh], model.compile or checkpointing.reentrant"},
    {"train.optimizer.impl",
     [](const Job& job) {
       return any_optimizer(job, [](const OptimizerOptions& optimizer) {
         return optimizer.name == OptimizerKind::Adafactor && optimizer.library == OptimizerLibrary::Transformers &&
                optimizer.impl != OptimizerImpl::ForLoop;
       });
     },
     "for_loop, which Transformers' Adafactor is"},
    {"train.optimizer.name",
     [](const Job& job) {
       const OptimizerOptions& optimizer = job.train.optimizer;
       const bool other = optimizer.name != OptimizerKind::AdamW && optimizer.name != OptimizerKind::Sgd;
       return other && steps_in_backward(optimizer.impl);
     },
     "adamw or sgd in backward"},
    // Adagrad does not tell a scaler that its fused step takes what was found: the host would ask, as by no other.
    {"train.optimizer.impl",
     [](const Job& job) {
       return job.train.grad_scaler.enabled && any_optimizer(job, [](const OptimizerOptions& optimizer) {
                return optimizer.name == OptimizerKind::Adagrad && optimizer.impl == OptimizerImpl::Fused;
              });
     },
     "for_loop or foreach with train.grad_scaler"},
    {"train.optimizer.name",
     [](const Job& job) {
       return job.fsdp.cpu_offload &&
              any_optimizer(job, [](const auto& optimizer) { return optimizer.name == OptimizerKind::AdamW8bit; });
     },
     "adamw with offload"},
    {"train.optimizer.parts",
     [](const Job& job) {
       return !job.train.optimizer_parts.empty() &&
              any_optimizer(job, [](const auto& optimizer) { return steps_in_backward(optimizer.impl); });
     },
     "[] with in_backward, which makes an optimizer for each parameter; or for_loop, foreach or fused in all parts"},
    {"train.optimizer.parts",
     [](const Job& job) {
       return !job.train.optimizer_parts.empty() &&
              any_optimizer(job, [](const auto& optimizer) { return optimizer.name == OptimizerKind::Muon; });
     },
     "[] with muon, which has adamw beside it for all that are no matrices of blocks; or no part with muon"},
    {"train.optimizer.name",
     [](const Job& job) {
       // Refused with PyTorch's own reason; whole parameters keep their dimensions.
       const bool flat = job.fsdp.runtime == Runtime::Fsdp1 && job.fsdp.strategy != Strategy::NoShard;
       const bool plain =
           has_fsdp2_layouts(job.fsdp.runtime) && job.fsdp.strategy != Strategy::HybridShard && job.mesh.tensor == 1;
       return job.train.optimizer.name == OptimizerKind::Muon && !flat && !plain;
     },
     "adamw or sgd, or muon under fsdp2 with one shard group"},
    {"train.optimizer.impl",
     [](const Job& job) {
       const FsdpOptions& fsdp = job.fsdp;
       const bool fires = has_fsdp2_layouts(fsdp.runtime) && !job.train.grad_scaler.enabled;
       const bool never = fsdp.runtime == Runtime::Fsdp1 && fsdp.use_orig_params;
       return steps_in_backward(job.train.optimizer.impl) && !fires && !never;
     },
     "for_loop, foreach or fused, or fsdp2 without a scaler"},
};

}  // namespace

Result<void> check_built(const Job& job) {
  for (const Missing& missing : kMissing) {
    if (!missing.asked(job)) continue;
    return fail({.code = ErrorCode::Unsupported,
                 .message = fmt::format("{} with this value is not planned yet", missing.key),
                 .file = {},
                 .place = missing.key,
                 .expected = missing.instead,
                 .got = write_job_key(*find_job_key(missing.key), job),
                 .hint = "set it to what is expected"});
  }
  return {};
}

}  // namespace foreshard
