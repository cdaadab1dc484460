#include "core/job/not_built.h"

#include <fmt/format.h>

namespace foreshard {
namespace {

struct Missing {
  const char* key;
  bool (*asked)(const Job&);
  const char* instead;  // what works
};

const ModelOptions& model(const Job& job) { return job.model; }
const OptimizerOptions& optimizer(const Job& job) { return job.train.optimizer; }

// One line a key: it goes when the key works.
constexpr Missing kMissing[] = {
    {"model.loss", [](const Job& job) { return model(job).loss == "chunked_cross_entropy"; }, "cross_entropy"},
    {"model.loss", [](const Job& job) { return model(job).loss == "fused_linear_cross_entropy"; }, "cross_entropy"},
    {"model.attention_mask", [](const Job& job) { return model(job).attention_mask; }, "false"},
    {"model.compile", [](const Job& job) { return model(job).compile; }, "false"},
    {"model.float8", [](const Job& job) { return model(job).float8 != "none"; }, "none"},
    {"model.program", [](const Job& job) { return !model(job).program.empty(); }, "an archive of one program"},
    {"adapters.kind", [](const Job& job) { return job.adapters.kind != "none"; }, "none"},
    {"mesh.context", [](const Job& job) { return job.mesh.context > 1; }, "1"},
    {"mesh.expert", [](const Job& job) { return job.mesh.expert > 1; }, "1"},
    {"checkpointing.policy", [](const Job& job) { return job.checkpointing.policy == CheckpointPolicy::Ops; },
     "none, block, every_k or selective"},
    {"checkpointing.offload_activations", [](const Job& job) { return job.checkpointing.offload_activations; },
     "false"},
    {"train.optimizer.name", [](const Job& job) { return optimizer(job).name > OptimizerKind::Sgd; }, "adamw or sgd"},
    {"train.optimizer.impl", [](const Job& job) { return optimizer(job).impl == OptimizerImpl::InBackward; },
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
                 .got = "a value that only the job file knows so far",
                 .hint = "docs/differences.md lists what Foreshard does not do"});
  }
  return {};
}

}  // namespace foreshard
