#include "core/lowering/mesh/distributed_values.h"

namespace foreshard::lowering {

DistributedValues::DistributedValues(const Model& model) : holds_parts_(model.modules.size(), false) {
  for (const ParamInfo& param : model.params)
    if (param.part.dimension >= 0 && param.owner.valid()) holds_parts_[param.owner.index()] = true;
}

bool DistributedValues::made_by(const Op& op) const {
  return op.name == "mesh.all_gather" || (op.module.valid() && holds_parts_[op.module.index()]);
}

}  // namespace foreshard::lowering
