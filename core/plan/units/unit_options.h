// What a job asks of each unit: the job's own values, then fsdp.overrides by unit name (the root is "").
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/job.h"
#include "core/result.h"

namespace foreshard {

struct UnitOptions {
  Strategy strategy = Strategy::FullShard;
  MixedPrecision precision;
  ReshardAfterForward reshard;                    // the root's default is False (F2-12); fsdp1: of roots alone
  std::map<std::string, std::int64_t> shard_dim;  // fsdp2: parameter pattern -> dimension
  bool operator==(const UnitOptions&) const = default;
};

/// Options of the units named, in their order; later overrides win field by field. Errors: a pattern that matches no
/// unit, a strategy or an option that the runtime does not have, under fsdp1 a reshard_after_forward without effect.
Result<std::vector<UnitOptions>> read_unit_options(const Job& job, const std::vector<std::string_view>& units);

/// M5, M9: a floating buffer's dtype from the first forward on; fsdp2 casts no buffers. `created`: as it was made.
DType trained_buffer_dtype(const Job& job, DType created);

}  // namespace foreshard
