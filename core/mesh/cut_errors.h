// Why an operator cannot carry on what its arguments' ranks have. Internal to core/mesh.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/job.h"
#include "core/mesh/cut.h"
#include "core/model/model.h"
#include "core/result.h"

namespace foreshard::mesh {

struct CutErrors {
  const Op& op;
  const std::vector<CutTensor>& args;
  const Group& group;
  const std::string& place;  // the operator's module

  Error mixes(const std::string& why) const;
  bool whole_beside_sequence() const;
  Error does_not_divide(std::int64_t size) const;
  /// What a sequence module hands on is no local tensor.
  Error outside_plan() const;
  /// Modules see local tensors and literal widths of heads: torch refuses a view that would tear one.
  Error torn_head(std::int64_t heads) const;
  /// DTensor takes a local result for the same part of a whole that all ranks have.
  Error uneven_sum(std::int64_t size) const;
};

/// A mask that a library makes for as many positions as embeddings come out, a rank's part of them. `scores`: the model
/// adds it to its scores itself, no kernel of attention takes it.
Error mask_of_a_part(const Job& job, bool scores);

}  // namespace foreshard::mesh
