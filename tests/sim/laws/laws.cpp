#include "tests/sim/laws/laws.h"

#include <atomic>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "core/adapters/adapted_model.h"
#include "core/mesh/rank_model.h"
#include "tests/sim/laws/compared_laws.h"
#include "tests/sim/laws/own_laws.h"
#include "tests/sim/laws/trial.h"

namespace foreshard::testing {
namespace {

std::string kind_of(const RandomJob& random, const RandomCase& made) {
  if (!random.file.empty()) return random.file.starts_with("captured/") ? "captured models" : "archives";
  if (is_cut(made.job.mesh)) return "meshes";
  return std::string(runtime_name(made.plan.runtime));
}

/// What the jobs were about, so that a run says what it tried.
void count_kinds(const RandomJob& random, const RandomCase& made, LawRun& run) {
  const Job& job = made.job;
  const OptimizerOptions& optimizer = job.train.optimizer;
  const bool usual = optimizer.name == OptimizerKind::AdamW || optimizer.name == OptimizerKind::Sgd;
  const std::pair<const char*, bool> also[] = {
      {"with adapters", has_adapters(job.adapters)},
      {"with context", job.mesh.context > 1},
      {"with experts", job.mesh.expert > 1},
      {"with own losses", job.model.loss != "auto" && !job.model.loss.starts_with("cross_entropy")},
      {"with other optimizers", !usual || steps_in_backward(optimizer.impl)},
      {"with saved operators", job.checkpointing.policy == CheckpointPolicy::Ops},
      {"with autocast", job.model.autocast.has_value()},
      {"compiled", job.model.compile},
      {"with something beside", job.train.beside > 0}};
  run.kinds[kind_of(random, made)] += 1;
  for (const auto& [name, is] : also)
    if (is) run.kinds[name] += 1;
}

/// False: the job is not valid.
bool try_job(const RandomJob& drawn, LawRun& run) {
  const auto job = job_of(drawn);
  if (!job) return false;
  const auto profile = load_profile(job->cluster.profile);
  if (!profile) return false;
  const auto settles = settled(drawn, *profile);
  if (!settles) return false;
  const RandomJob& random = *settles;
  auto made = make_case(random, *profile);
  if (!made) return false;
  const Trial trial(std::move(*made), *profile, run);
  const auto prediction = trial.predict();
  if (!prediction) return false;
  Judge judge(run, random.text());
  count_kinds(random, trial.made(), run);
  judge_alone(trial, *prediction, judge);
  run.growing += prediction->memory.growth > 0 ? 1 : 0;
  run.restless += trial.made().plan.steady || trial.made().plan.failure ? 0 : 1;
  const auto paced = trial.pace();
  if (paced && trial.runs(paced->prediction)) Comparisons(random, trial, *paced, judge).judge_all();
  return true;
}

}  // namespace

LawRun try_laws(std::uint64_t first_seed, std::int64_t jobs, int threads, RandomJob (*draw)(std::uint64_t)) {
  LawRun all;
  std::mutex guard;
  std::atomic<std::uint64_t> next{first_seed};
  std::atomic<std::int64_t> wanted{jobs}, refusals{20 * jobs + 100};  // about one in four is
  const auto work = [&] {
    LawRun run;
    while (wanted.load() > 0 && refusals.load() > 0) {
      if (!try_job(draw(next++), run)) {
        ++run.refused;
        --refusals;
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
