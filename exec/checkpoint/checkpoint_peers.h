// What ranks tell each other around a checkpoint: texts, and whether all went well. `world` null: one rank alone. A
// communicator that fails is an Error here.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/result.h"
#include "exec/communicators/communicator.h"

namespace foreshard::exec {

/// Every rank's text, by rank, on every rank.
Result<std::vector<std::string>> gather_texts(Communicator* world, std::string_view mine);

/// Success if it is everybody's; else the error of the lowest rank that has one, on all ranks.
Result<void> agree(Communicator* world, const Result<void>& mine);

inline int rank_of(const Communicator* world) { return world == nullptr ? 0 : world->rank(); }
inline int size_of(const Communicator* world) { return world == nullptr ? 1 : world->size(); }

}  // namespace foreshard::exec
