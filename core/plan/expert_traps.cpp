#include "core/plan/expert_traps.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "core/model/mesh_dimension.h"

namespace foreshard {

std::vector<Trap> expert_traps(const Model& model, const Job& job, const Plan& plan) {
  std::vector<std::string> padded, units;
  Numel stored = 0, own = 0;
  std::int64_t ranks = 1;
  for (const PlanUnit& unit : plan.units) {
    const MeshDimension* dimension = unit.params.empty() ? nullptr : experts_of(model, unit.params.front());
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
  const std::int64_t divided = asked < 0 ? ranks : asked == 0 ? data : asked;
  if (!units.empty() && divided != data) {
    traps.push_back(
        {46, fmt::format("gradients of experts are divided by {} ranks, those of the rest by {}", divided, data),
         "mesh", units,
         fmt::format("every expert has seen the tokens of all {} ranks, so its gradient is {:g} times too "
                     "large beside the others: their steps and the norm that clips them are not those of "
                     "training without expert parallelism",
                     data, static_cast<double>(data) / static_cast<double>(divided)),
         fmt::format("mesh.expert_divide_factor = 0, as set_gradient_divide_factor({}) does", data), true});
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
