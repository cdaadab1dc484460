// What every prediction obeys, tried on random jobs. Each law is named; a broken one keeps its worst example.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "tests/sim/laws/random_job.h"

namespace foreshard::testing {

struct LawRecord {
  std::int64_t held = 0, broken = 0;
  double worst = 0;  // how far beyond what the law allows, relative
  std::string example;
};

/// By the law's name.
using LawBook = std::map<std::string, LawRecord>;

struct LawRun {
  LawBook book;
  std::int64_t jobs = 0, refused = 0, simulations = 0, growing = 0, restless = 0;
  std::map<std::size_t, std::int64_t> lengths;  // iterations played until the allocator had settled
};

/// Valid jobs from consecutive seeds, on all given threads.
LawRun try_laws(std::uint64_t first_seed, std::int64_t jobs, int threads);

}  // namespace foreshard::testing
