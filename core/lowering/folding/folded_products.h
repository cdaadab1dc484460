// Products of a batch with a matrix that no gradient wanted when the program was written down, and one wants now.
#pragma once

#include <optional>
#include <vector>

#include "core/model/model.h"

namespace foreshard::lowering {

/// at::matmul of a batch that lies in memory otherwise than row by row, and a matrix: where the matrix requires a
/// gradient the batch is copied into rows for one product, else every entry is multiplied by the matrix expanded
/// (LinearAlgebra.cpp: should_fold). A frozen weight in a flat parameter that trains requires one (W7), although the
/// program that was captured had none: its products are folded here.
/// `trainable`: by ParamId. Returns nothing where no product is to be folded.
std::optional<Model> with_folded_products(const Model& model, const std::vector<bool>& trainable);

}  // namespace foreshard::lowering
