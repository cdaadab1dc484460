// The operator program of a model that a row gives as module calls: what its layers run, with the recorder's loss.
#pragma once

#include "core/model/model.h"
#include "tests/oracle/oracle.h"

namespace foreshard::oracle {

struct RowProgram {
  Model model;                               // operators instead of calls; its output is the loss, mean of squares
  std::vector<CheckpointKind> checkpointed;  // by ModuleId: calls of it are wrapped
};

/// `model` as model_of_row makes it; `compute` is the type that its layers compute in. Throws std::runtime_error where
/// a step depends on the iteration or a class is unknown.
RowProgram program_of_row(Model model, DType compute);

}  // namespace foreshard::oracle
