#include "sim/refusals.h"

#include <algorithm>
#include <string>

#include "core/job/optimizer_facts.h"

namespace foreshard {
namespace {

/// What PyTorch refuses on this device, of the job's own optimizer or of a part's.
std::optional<Error> refused_optimizer(const OptimizerOptions& optimizer, const Model& model, const Job& job,
                                       const HardwareProfile& profile) {
  const std::string& asked = watched_name(optimizer);
  const bool known = std::any_of(model.optimizers.begin(), model.optimizers.end(),
                                 [&](const auto& each) { return each.name == asked; });
  if (optimizer.name == OptimizerKind::Watched && !known) {
    std::string names;
    for (const WatchedOptimizer& each : model.optimizers) names += (names.empty() ? "one of " : ", ") + each.name;
    return Error{ErrorCode::Inconsistent,
                 "a watched optimizer is one that the model's script was seen to step",
                 job.model.source,
                 "train.optimizer.watched",
                 names.empty() ? "a model that `foreshard shadow` has written" : names,
                 asked.empty() ? "nothing" : asked,
                 "set train.optimizer.name = \"adamw\", or watch the script: foreshard shadow --out DIR -- ..."};
  }
  if (optimizer.name == OptimizerKind::AdamW8bit && profile.kind == "cpu") {
    return Error{ErrorCode::Unsupported,
                 "an optimizer with moments of 8 bits runs compiled kernels of a GPU",
                 "",
                 "train.optimizer.name",
                 "adamw, sgd, adafactor or muon on a host",
                 "adamw8bit with the profile " + job.cluster.profile,
                 "set train.optimizer.name = \"adamw\", or a GPU's profile"};
  }
  const bool fused = optimizer.impl == OptimizerImpl::Fused;
  if (optimizer.name == OptimizerKind::Adagrad && fused && profile.kind != "cpu") {
    return Error{ErrorCode::Refused,
                 "RuntimeError: `fused=True` requires all the params to be floating point Tensors of supported devices "
                 "(Adagrad's fused step is a host's)",
                 "",
                 "train.optimizer.impl",
                 "for_loop or foreach on a GPU",
                 "fused adagrad with the profile " + job.cluster.profile,
                 "set train.optimizer.impl = \"foreach\""};
  }
  return std::nullopt;
}

}  // namespace

std::optional<Error> refused_simulation(const Plan& plan, const Model& model, const LoweredProgram& lowered,
                                        const Job& job, const HardwareProfile& profile, Bytes memory) {
  for (const OptimizerOptions& optimizer : optimizers_of(job.train))
    if (auto error = refused_optimizer(optimizer, model, job, profile)) return error;
  if (!lowered.instances.empty() && lowered.instances.size() != plan.segments.size()) {
    return Error{ErrorCode::Inconsistent,
                 "the lowered program is not that of this plan",
                 "",
                 "segments",
                 std::to_string(plan.segments.size()),
                 std::to_string(lowered.instances.size()),
                 ""};
  }
  if (memory <= 0) {
    return Error{ErrorCode::OutOfRange,
                 "the device has no memory left for the allocator",
                 "",
                 "cluster.memory",
                 "more than the context and the communicators take",
                 std::to_string(memory) + " bytes",
                 ""};
  }
  return std::nullopt;
}

}  // namespace foreshard
