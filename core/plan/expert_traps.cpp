#include "core/plan/expert_traps.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>

#include "core/model/mesh_dimension.h"
#include "core/plan/graph/script.h"

namespace foreshard {
namespace {

/// What the script has units divide gradients by, of experts or of the others; nullopt: it leaves them alone.
std::optional<double> told_factor(const Job& job, const std::vector<std::string>& experts, bool of_experts) {
  std::optional<double> told;
  for (const auto& iteration : job.train.script) {
    for (const std::string& text : iteration) {
      const Result<Action> action = parse_action(text);
      if (!action || action->call.method != UnitMethod::SetGradientDivideFactor) continue;
      const bool own = std::find(experts.begin(), experts.end(), action->unit) != experts.end();
      if (own == of_experts) told = action->call.number();
    }
  }
  return told;
}

}  // namespace

std::vector<Trap> expert_traps(const Model& model, const Job& job, const Plan& plan) {
  std::vector<std::string> padded, units;
  Numel stored = 0, own = 0;
  std::int64_t ranks = 1;
  bool others = false;  // that FSDP shards over all ranks
  for (const PlanUnit& unit : plan.units) {
    const MeshDimension* dimension = unit.params.empty() ? nullptr : experts_of(model, unit.params.front());
    others = others || (!unit.params.empty() && dimension == nullptr);
    if (dimension == nullptr) continue;
    units.push_back(unit.name);
    ranks = unit.shard_size;
    bool grows = false;
    for (const ShardedParam& param : unit.sharded) {
      const Shape& shape = model.params[param.param.index()].shape;
      grows = grows || (param.shard_dim == 0 && shape.front() % unit.shard_size != 0);
      stored += numel_of(param.padded_local_shape);
      own += numel_of(shape) / unit.shard_size;
    }
    if (grows) padded.push_back(unit.name);
  }
  std::vector<Trap> traps;
  const std::int64_t asked = job.mesh.expert_divide_factor;
  const std::int64_t data = plan.world_size / job.mesh.tensor;
  const double divided = told_factor(job, units, true)
                             .value_or(static_cast<double>(asked < 0    ? ranks
                                                           : asked == 0 ? data
                                                                        : asked));
  const double rest = told_factor(job, units, false).value_or(static_cast<double>(data));
  if (!units.empty() && others && divided != rest) {
    traps.push_back(
        {46, fmt::format("gradients of experts are divided by {:g}, those of the rest by {:g}", divided, rest), "mesh",
         units,
         fmt::format("every expert has seen the tokens of all {} ranks, so its gradient is {:g} times too {} "
                     "beside the others: their steps and the norm that clips them are not those of "
                     "training without expert parallelism",
                     data, std::max(rest / divided, divided / rest), rest > divided ? "large" : "small"),
         fmt::format("mesh.expert_divide_factor = {:g}, as set_gradient_divide_factor({:g}) does",
                     rest == static_cast<double>(data) ? 0 : rest, rest),
         true});
  }
  if (!padded.empty()) {
    traps.push_back({47, "experts are padded to whole ones by FSDP", "mesh", padded,
                     fmt::format("{} ranks shard fewer experts along their first dimension: each stores and gathers {} "
                                 "elements of experts where {} are its share",
                                 ranks, stored, own),
                     "leave the dimension to the plan, or fsdp.overrides with shard_dim = {\"*\" = 1} for these units",
                     false});
  }
  return traps;
}

}  // namespace foreshard
