// Experts whose matrices are cut over the ranks: along which dimension each. Internal to core/mesh.
#pragma once

#include <map>

#include "core/model/model.h"

namespace foreshard::mesh {

/// By ParamId of the stacked weights that `module` holds: the dimension that is cut. A product of what is whole takes
/// the columns of its result (torchtitan's w1 and w3), a product of what is cut its rows (w2), so that the module's
/// result is a term of the ranks' sum. Weights that no product reads are left out.
std::map<std::int32_t, std::int32_t> cut_matrices(const Model& model, ModuleId module);

}  // namespace foreshard::mesh
