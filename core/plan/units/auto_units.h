// How wrap policy "auto" looks at a model: which class is its repeated block, which leaves outside the blocks are
// large.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/plan/units/unit_selection.h"
#include "core/plan/units/wrap_policy.h"

namespace foreshard {

/// The class that repeats among siblings and holds the most elements in all its instances; nullopt if none repeats.
std::optional<std::string> guess_block_class(const WrapRequest& request);

/// Leaves outside the blocks that hold at least `block_numel` elements: embedding and head. Tied ones make one unit
/// where `lists` are possible and stay with the root where not (trap 3).
std::vector<SelectedUnit> large_leaves(const WrapRequest& request, const std::vector<SelectedUnit>& blocks,
                                       Numel block_numel, bool lists);

}  // namespace foreshard
