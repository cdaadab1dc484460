// Terms of a sum over the ranks (DTensor's Partial, or a local tensor that is one): which operators hand them on.
// Internal to core/mesh.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>
#include <vector>

#include "core/mesh/cut.h"
#include "core/model/model.h"

namespace foreshard::mesh {

/// An operator (its base_name) that puts its last argument into places of its first.
bool puts(std::string_view name);

/// Whether an operator of that base name makes zeros, which are terms as well as a whole.
bool makes_zeros(std::string_view name);

/// Whether zeros that such an operator reads stay zeros: others may write into them, through a view too.
bool leaves_zeros(std::string_view name);

/// Where the results of `op` lie, some of whose arguments are terms: results of an operator that is linear in them are
/// terms again. Rows that are put into a tensor make it one (a fresh one: zeros elsewhere, or all of them are put).
/// nullopt: the operator is not linear in them, or meets what is cut or whole.
std::optional<std::vector<Cut>> carry_terms(const Op& op, const std::vector<CutTensor>& args, std::size_t results);

}  // namespace foreshard::mesh
