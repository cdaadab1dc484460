// Parameters that every rank has and that read what is cut: autograd gives each rank the part of their gradient that
// belongs to its own piece, and nobody sums them (DTensor knows nothing of plain parameters). Internal to core/mesh.
#pragma once

#include <map>
#include <vector>

#include "core/mesh/cut.h"
#include "core/model/model.h"

namespace foreshard::mesh {

/// A row in `model.parallel` for what the plan does to a module or parameter, once.
void note_once(Model& model, const ParallelStyle& row);
/// ... of style "partial" for a parameter.
void note_partial(Model& model, ParamId param);

/// By parameter: rows of it are looked up, or of what no_grad() sees of it.
std::vector<bool> embedding_tables(const Model& model);

class WholeParameters {
 public:
  /// Operators in the program's order, with the arguments that a rank gives them and how these lie over `dimension`,
  /// which must be the tensor's to be read. Rows of style "partial" are added to `model.parallel`, one a parameter.
  void read(Model& model, Op& op, const std::vector<CutTensor>& args, std::int32_t dimension);

 private:
  std::map<std::int32_t, std::vector<ParamId>> made_of_;  // value -> what alone it was made of
};

}  // namespace foreshard::mesh
