#include "sim/play/action_start.h"

#include <algorithm>
#include <cstddef>
#include <string_view>

#include "sim/play/resident_state.h"

namespace foreshard {
namespace {

constexpr int kD = static_cast<int>(Stream::D);

bool hold(Device& device, Bytes bytes, MemoryCategory category) {
  return bytes == 0 || device.book.allocate(bytes, kD, category) != kNoBlock;
}

/// "init", "summon", ... as action_text spells them; empty: another action (a script's summon has its arguments in
/// braces).
std::string_view action_word(const PlanIteration& iteration) {
  for (const std::string& action : iteration.actions) {
    const std::string_view word = std::string_view(action).substr(0, action.find(':'));
    if (word == "init" || word == "summon" || word == "save" || word == "load") return word;
  }
  return {};
}

/// By its name: an action may have no instruction at all (save:local).
std::string_view first_action(const Plan& plan) {
  for (const PlanIteration& iteration : plan.iterations) {
    if (const std::string_view word = action_word(iteration); !word.empty()) return word;
  }
  return {};
}

bool hold_shards(Device& device, const Plan& plan, const Model& model, const Job& job) {
  std::vector<bool> managed(model.params.size(), false);
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    const PlanUnit& unit = plan.units[u];
    for (const ParamId param : unit.params) managed[model.storage_of(param).index()] = true;
    if (job.fsdp.cpu_offload) continue;  // C1, F2-26: on the host
    device.book.set_unit(static_cast<std::int32_t>(u));
    const Bytes element = itemsize(unit.orig_dtype);
    for (const ShardedParam& param : unit.sharded) {
      const Bytes own = itemsize(model.params[param.param.index()].dtype);  // frozen ones may have another
      if (!hold(device, numel_of(param.padded_local_shape) * own, MemoryCategory::ShardedParams)) return false;
    }
    if (!unit.sharded.empty() || plan.runtime != Runtime::Fsdp1) continue;
    const bool sharded = unit.strategy != Strategy::NoShard && unit.shard_size > 1;
    if (!hold(device, (sharded ? unit.shard_numel : unit.flat_numel) * element, MemoryCategory::ShardedParams)) {
      return false;
    }
  }
  device.book.set_unit(-1);
  for (std::size_t p = 0; p < model.params.size(); ++p) {  // ignored, or plain replicas
    const ParamInfo& param = model.params[p];
    const bool whole = plan.runtime == Runtime::None || !managed[p];
    if (param.shares.valid() || !whole) continue;
    if (!hold(device, numel_of(param.shape) * itemsize(param.dtype), MemoryCategory::ShardedParams)) return false;
  }
  return true;
}

}  // namespace

bool hold_optimizer_state(Device& device, const Plan& plan, const Model& model, const Job& job) {
  if (job.fsdp.cpu_offload) return true;
  const OptimizerOptions& options = job.train.optimizer;
  const OptimizerFacts facts = optimizer_facts(options);
  for (const LocalParam& param : local_params(plan, model, job)) {
    for (std::size_t moment = 0; moment < facts.states.size(); ++moment) {
      if (!hold(device, param.bytes, MemoryCategory::OptimizerState)) return false;
    }
    const bool counts_on_device = !facts.scalars.empty() && options.impl == OptimizerImpl::Fused;
    if (counts_on_device && !hold(device, itemsize(DType::Float32), MemoryCategory::OptimizerState)) return false;
  }
  return true;
}

bool is_action_plan(const Plan& plan) {
  return std::ranges::any_of(plan.iterations, [](const PlanIteration& iteration) {
    return iteration.micro_batches == 0 && !action_word(iteration).empty();
  });
}

bool play_action_start(Device& device, const Plan& plan, const Model& model, const Job& job,
                       std::vector<ResidentBuffer>& buffers) {
  const std::string_view first = first_action(plan);
  if (first == "init") return true;
  if (!hold_shards(device, plan, model, job)) return false;
  for (const BufferInfo& buffer : model.buffers) {
    const Numel numel = numel_of(buffer.shape);
    const BlockHandle block = device.book.allocate(numel * itemsize(buffer.dtype), kD, MemoryCategory::ShardedParams);
    if (block == kNoBlock) return false;
    buffers.push_back({block, numel, buffer.dtype});
  }
  return first == "load" || hold_optimizer_state(device, plan, model, job);
}

}  // namespace foreshard
