// Laws that every prediction obeys, tried on random jobs: what says more is never less, what has no effect changes
// nothing, what adds up does.
#pragma once

#include <cstdint>

#include "tests/sim/laws/law_book.h"
#include "tests/sim/laws/random_job.h"

namespace foreshard::testing {

/// Valid jobs from consecutive seeds, on all given threads. Fewer than asked for where nearly all are refused.
LawRun try_laws(std::uint64_t first_seed, std::int64_t jobs, int threads,
                RandomJob (*draw)(std::uint64_t) = random_job);

}  // namespace foreshard::testing
