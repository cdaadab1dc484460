#include "sim/schedule/candidate_judge.h"

#include <algorithm>
#include <atomic>
#include <thread>

namespace foreshard {

std::int64_t retries_of_last_step(const Prediction& prediction) {
  const std::vector<IterationResult>& played = prediction.iterations;
  return played.size() < 2 ? 0 : played.back().alloc_retries - played[played.size() - 2].alloc_retries;
}

std::int64_t driver_allocs_of_last_step(const Prediction& prediction) {
  const std::vector<IterationResult>& played = prediction.iterations;
  return played.size() < 2 ? 0 : played.back().stats.device_allocs - played[played.size() - 2].stats.device_allocs;
}

CandidateJudge::CandidateJudge(const UnitFrame& frame, Workbench& bench, Bytes budget, int threads)
    : frame_(frame),
      bench_(bench),
      budget_(budget),
      threads_(threads > 0 ? threads : std::max(1, static_cast<int>(std::thread::hardware_concurrency()))) {}

namespace {

Judged judged_of(const Prediction& prediction) {
  Judged result;
  if (prediction.iterations.empty()) return result;
  result.fits = prediction.fits && prediction.deadlock.empty();
  result.reserved = prediction.memory.reserved;
  result.allocated = prediction.memory.allocated;
  result.outside = static_cast<Bytes>(prediction.memory.outside_allocator.value);
  result.compute_ns = static_cast<double>(prediction.iterations.back().compute);
  result.alloc_retries = retries_of_last_step(prediction);
  result.driver_allocs = driver_allocs_of_last_step(prediction);
  result.first_retries = prediction.iterations.back().alloc_retries - result.alloc_retries;
  if (result.fits) result.ns = prediction.step_time_ns.value;
  return result;
}

}  // namespace

bool CandidateJudge::gave_up(const Known& known, double below) const {
  return gives_up(known.steps, frame_.plan->iterations.size(), below);
}

Judged CandidateJudge::told(const Known& known, double below) const {
  Judged judged = known.judged;
  if (!gave_up(known, below)) return judged;
  judged.fits = true;  // as whoever stops there sees it, though a later step may run out of memory
  judged.ns = Judged::kNoTime;
  return judged;
}

void CandidateJudge::simulate_into(Known& known, const Candidate& candidate, double below, Workbench& bench) const {
  known.whole = true;
  if (memory_ && memory_->exceeds(budget_, frame_, candidate)) return;
  Job job = job_of(frame_, candidate);
  job.schedule.budget = budget_;
  const auto prediction = bench.predict_candidate(job, below);
  if (!prediction) return;
  known.judged = judged_of(*prediction);
  known.steps = steps_of(*prediction);
  known.whole = !gave_up(known, below);
}

Judged CandidateJudge::judge(const Candidate& candidate, double below) {
  Known& known = known_[candidate.key()];
  if (!knows(known, below)) simulate_into(known, candidate, below, bench_);
  judged_ += known.asked ? 0 : 1;
  known.asked = true;
  return told(known, below);
}

std::vector<Judged> CandidateJudge::look_ahead(const std::vector<Candidate>& candidates, double below) {
  struct Wanted {
    const Candidate* candidate;
    Known* to;
  };
  std::vector<Wanted> wanted;
  std::vector<const Known*> results;
  for (const Candidate& candidate : candidates) {
    Known& known = known_[candidate.key()];
    const bool twice = std::any_of(wanted.begin(), wanted.end(), [&](const Wanted& one) { return one.to == &known; });
    if (!knows(known, below) && !twice) wanted.push_back({&candidate, &known});
    results.push_back(&known);
  }
  const std::size_t threads = std::min(wanted.size(), static_cast<std::size_t>(threads_));
  while (others_.size() + 1 < threads) others_.push_back(bench_.beside());
  std::atomic<std::size_t> next = 0;
  const auto work = [&](Workbench& bench) {
    for (std::size_t i = next++; i < wanted.size(); i = next++)
      simulate_into(*wanted[i].to, *wanted[i].candidate, below, bench);
  };
  std::vector<std::thread> pool;
  for (Workbench& bench : others_) {
    if (pool.size() + 1 < threads) pool.emplace_back([&] { work(bench); });
  }
  work(bench_);
  for (std::thread& thread : pool) thread.join();

  std::vector<Judged> judged;
  for (const Known* result : results) judged.push_back(told(*result, below));
  return judged;
}

Bytes CandidateJudge::peak_within(const Candidate& candidate, std::optional<Bytes> budget) {
  Job job = job_of(frame_, candidate);
  job.schedule.budget = budget.value_or(0);
  if (!budget) job.cluster.memory = Bytes{1} << 50;
  const auto prediction = bench_.predict(job);
  const bool fits = prediction && prediction->fits && prediction->deadlock.empty();
  return fits ? prediction->memory.reserved : 0;
}

}  // namespace foreshard
