#include "core/job/not_built.h"

#include <fmt/format.h>

#include "core/job/job_keys.h"

namespace foreshard {
namespace {

struct Missing {
  const char* key;
  bool (*asked)(const Job&);
  const char* instead;  // what works
};

// One line a key: it goes when the key works.
constexpr Missing kMissing[] = {
    {"model.loss", [](const Job& job) { return job.model.loss == "chunked_cross_entropy"; }, "cross_entropy"},
    {"model.loss", [](const Job& job) { return job.model.loss == "fused_linear_cross_entropy"; }, "cross_entropy"},
    {"model.attention_mask", [](const Job& job) { return job.model.attention_mask; }, "false"},
    {"model.compile", [](const Job& job) { return job.model.compile; }, "false"},
    {"model.float8", [](const Job& job) { return job.model.float8 != "none"; }, "none"},
    {"model.program", [](const Job& job) { return !job.model.program.empty(); }, "an archive of one program"},
    {"adapters.kind", [](const Job& job) { return job.adapters.kind != "none"; }, "none"},
    {"mesh.context", [](const Job& job) { return job.mesh.context > 1; }, "1"},
    {"mesh.expert", [](const Job& job) { return job.mesh.expert > 1; }, "1"},
    {"checkpointing.policy", [](const Job& job) { return job.checkpointing.policy == CheckpointPolicy::Ops; },
     "none, block, every_k or selective"},
    {"checkpointing.offload_activations", [](const Job& job) { return job.checkpointing.offload_activations; },
     "false"},
    {"train.optimizer.name", [](const Job& job) { return job.train.optimizer.name > OptimizerKind::Sgd; },
     "adamw or sgd"},
    {"train.optimizer.impl", [](const Job& job) { return job.train.optimizer.impl == OptimizerImpl::InBackward; },
     "for_loop, foreach or fused"},
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
