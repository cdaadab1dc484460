#include "tests/sim/laws/laws.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

namespace foreshard::testing {
namespace {

std::int64_t number_from(const char* variable, std::int64_t otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoll(text, nullptr, 10);
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
    EXPECT_EQ(record.broken, 0) << law << ": " << record.example;
  }
}

}  // namespace
}  // namespace foreshard::testing
