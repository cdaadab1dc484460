// What rows of practice and meshes state besides memory: parameters as they are stored, collectives and matrix products
// per phase, communicators and streams. Worked out from a plan and its lowered program.
#pragma once

#include <map>
#include <string>

#include "core/job.h"
#include "core/model/model.h"
#include "tests/oracle/memory/memory_comparison.h"
#include "tests/oracle/oracle.h"

namespace foreshard::oracle {

/// A plan's communicators as a row's mesh names them; the others keep their names.
using GroupNames = std::map<std::string, std::string>;

/// [name pattern, shape, elements stored here, dtype, placements, how many]: layers that differ in their number only
/// are one entry.
Json stored_params(const Model& model, const Job& job, const Plan& plan);

/// Per step: phases with their collectives in order of first appearance and their products.
Json work_of(const PredictedRow& row, const Model& model, const GroupNames& names);

/// In order of creation, with numbers from 0.
Json communicators_of(const Plan& plan, const GroupNames& names);

/// Roles of streams, without the groups' internal ones, sorted.
Json stream_roles(const Plan& plan);

/// Compares `params`, `work`, `communicators` and `streams` of a row's result. Launches and copies are informative.
void compare_work(MemoryComparison& comparison, const Json& result, const Model& model, const Job& job,
                  const PredictedRow& row, const GroupNames& names);

}  // namespace foreshard::oracle
