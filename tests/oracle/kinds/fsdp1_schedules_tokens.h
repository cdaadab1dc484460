// An fsdp1 plan printed in the recordings' tokens: the one table from instructions to tokens. Nothing here decides
// anything.
#pragma once

#include <string>
#include <vector>

#include "core/model/model.h"
#include "core/plan.h"
#include "tests/oracle/oracle.h"

namespace foreshard::oracle {

/// The row's `result` as the plan has it: unit_table, streams, divide, ledger, pools, iterations (errors as [action,
/// class]).
Json schedule_of_plan(const Plan& plan, const Model& model);

}  // namespace foreshard::oracle
