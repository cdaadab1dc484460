// Gradients of whole DTensors (modules of style "replicate"): what cut layers give back is a term of the ranks' sum
// (Partial). DTensor sums it where an operator of backward cannot take terms (a norm), or leaves it so down to the
// parameters, whose gradients FSDP2 then sums (torch/distributed/tensor/_ops). Internal to core/mesh.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "core/mesh/cut.h"
#include "core/model/model.h"

namespace foreshard::mesh {

class PartialGradients {
 public:
  /// An operator, in the program's order. `args`: its tensors, `params`: those of the replicated module
  /// that it is of; empty: it is of none.
  void follow(const Op& op, const std::vector<CutTensor>& args, const std::vector<ParamId>& params);

  /// A term comes back for `value`. Returns whether it is summed there; else the parameters behind it get it.
  bool arrives(std::int32_t value);

  /// What comes back for `value` is of the rank's own rows, and nobody sums it.
  void gets_terms(std::int32_t value);

  /// Gradients of `value` go to `params` as they come, with no sum between.
  bool feeds(std::int32_t value, const std::set<std::int32_t>& params) const;

  /// Parameters that got terms.
  const std::set<std::int32_t>& reached() const { return reached_; }

  /// Parameters behind factors of a rank's own terms (scores of experts' results) and behind rows that it takes alone:
  /// what comes back for them is of these alone, and nobody sums it.
  const std::set<std::int32_t>& lacking() const { return lacking_; }

 private:
  struct Source {
    bool sums = false;              // an operator that takes whole gradients alone made it
    std::set<std::int32_t> params;  // that its gradients go to as they come
    std::set<std::int32_t> behind;  // all of them
  };
  std::map<std::int32_t, Source> sources_;  // by value
  std::set<std::int32_t> views_;            // values that show parameters
  std::set<std::int32_t> reached_, lacking_;
};

}  // namespace foreshard::mesh
