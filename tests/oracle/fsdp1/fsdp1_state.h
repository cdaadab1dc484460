// The rows of fsdp1-numerics that compute no numbers: keys and shapes of state dicts (K1, K2, K4, K5), and the bytes of
// wrapping a model and of one backward.
#pragma once

#include "tests/oracle/oracle.h"

namespace foreshard::oracle {

/// Case "state": every kind of dict on every rank.
RowResult compare_state_dicts(const Json& row);

/// Case "memory": signed bytes of allocations in their order, their peak and what stays.
RowResult compare_bytes(const Json& row);

}  // namespace foreshard::oracle
