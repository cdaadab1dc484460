// Which values of a cut program PyTorch holds as DTensors. Internal to lowering.
#pragma once

#include <vector>

#include "core/model/model.h"

namespace foreshard::lowering {

class DistributedValues {
 public:
  explicit DistributedValues(const Model& model);

  /// What was gathered for the linear layers that share it, and everything in a module whose own parameters are
  /// DTensors.
  bool made_by(const Op& op) const;

 private:
  std::vector<bool> holds_parts_;  // by module: whether it has such parameters
};

}  // namespace foreshard::lowering
