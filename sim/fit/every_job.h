// The whole grid that `fit` searches, job by job: what its first choice is measured against, in tests and benchmarks.
#pragma once

#include <cstddef>
#include <optional>

#include "core/result.h"
#include "sim/fit/fit.h"

namespace foreshard {

struct EveryJob {
  std::optional<FitTrial> best;  // none where nothing fits
  std::size_t simulated = 0;
};

/// Full training of the request's job, every line with every batch. Errors: tokens that no batch makes up.
Result<EveryJob> try_every_job(const FitRequest& request);

}  // namespace foreshard
