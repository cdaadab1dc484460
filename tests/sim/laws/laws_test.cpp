#include "tests/sim/laws/laws.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

namespace foreshard::testing {
namespace {

std::int64_t number_from(const char* variable, std::int64_t otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoll(text, nullptr, 10);
}

/// Jobs of the first 2,000 seeds that break a law, to be mended: the list only shrinks. Both under FSDP1.
struct KnownBreach {
  std::string_view law, seed;
};
constexpr std::array kKnownBreaches = {
    // Reserved memory of a whole model in one unit settles at another size when it is one block deeper.
    KnownBreach{"a deeper model never takes less (reserved)", "seed 2907:"},
    // 2.8 % of a step of 7 ms: what the host waits for moves by a launch.
    KnownBreach{"a wider model is never faster", "seed 2454:"},
};

bool known(const std::string& law, const LawRecord& record) {
  return record.broken == 1 &&
         std::any_of(kKnownBreaches.begin(), kKnownBreaches.end(), [&](const KnownBreach& breach) {
           return breach.law == law && record.example.find(breach.seed) != std::string::npos;
         });
}

TEST(Laws, HoldForRandomJobs) {
  const auto seed = static_cast<std::uint64_t>(number_from("FORESHARD_LAWS_SEED", 1));
  const std::int64_t jobs = number_from("FORESHARD_LAWS_JOBS", 2000);
  const LawRun run = try_laws(seed, jobs, 2);
  std::printf("seeds from %llu on: %lld jobs, %lld refused, %lld simulations\n", static_cast<unsigned long long>(seed),
              static_cast<long long>(run.jobs), static_cast<long long>(run.refused),
              static_cast<long long>(run.simulations));
  std::printf("%lld grow; %lld plans without a steady step; iterations:", static_cast<long long>(run.growing),
              static_cast<long long>(run.restless));
  for (const auto& [length, count] : run.lengths) std::printf(" %zu: %lld,", length, static_cast<long long>(count));
  std::printf("\n");
  for (const auto& [law, record] : run.book) {
    std::printf("%8lld held %6lld broken  worst %8.4f  %s\n", static_cast<long long>(record.held),
                static_cast<long long>(record.broken), record.worst, law.c_str());
    if (known(law, record)) {
      std::printf("known, not mended: %s\n", record.example.c_str());
      continue;
    }
    EXPECT_EQ(record.broken, 0) << law << ": " << record.example;
  }
}

}  // namespace
}  // namespace foreshard::testing
