#include "tests/sim/laws/laws.h"

#include <atomic>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "tests/sim/laws/compared_laws.h"
#include "tests/sim/laws/own_laws.h"
#include "tests/sim/laws/trial.h"

namespace foreshard::testing {
namespace {

/// False: the job is not valid.
bool try_job(const RandomJob& random, LawRun& run) {
  const auto job = job_of(random);
  if (!job) return false;
  const auto profile = load_profile(job->cluster.profile);
  if (!profile) return false;
  auto made = make_case(random, *profile);
  if (!made) return false;
  const Trial trial(std::move(*made), *profile, run);
  const auto prediction = trial.predict();
  if (!prediction) return false;
  Judge judge(run, random.text());
  judge_alone(trial, *prediction, judge);
  run.growing += prediction->memory.growth > 0 ? 1 : 0;
  run.restless += trial.made().plan.steady || trial.made().plan.failure ? 0 : 1;
  const auto paced = trial.pace();
  if (paced && trial.runs(paced->prediction)) Comparisons(random, trial, *paced, judge).judge_all();
  return true;
}

}  // namespace

LawRun try_laws(std::uint64_t first_seed, std::int64_t jobs, int threads) {
  LawRun all;
  std::mutex guard;
  std::atomic<std::uint64_t> next{first_seed};
  std::atomic<std::int64_t> wanted{jobs};
  const auto work = [&] {
    LawRun run;
    while (wanted.load() > 0) {
      if (!try_job(random_job(next++), run)) {
        ++run.refused;
        continue;
      }
      ++run.jobs;
      --wanted;
    }
    const std::lock_guard lock(guard);
    merge(all, run);
  };
  std::vector<std::thread> workers;
  for (int t = 0; t < threads; ++t) workers.emplace_back(work);
  for (std::thread& worker : workers) worker.join();
  return all;
}

}  // namespace foreshard::testing
