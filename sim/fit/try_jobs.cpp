#include "sim/fit/try_jobs.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "core/mesh/rank_model.h"

namespace foreshard {
namespace {

using fit_axes::Batch;

// Micro-batches from the third on repeat the second: what one of them takes is added for the others.
constexpr std::int64_t kFewMicroBatches = 3;

/// Every line on a thread of its own turn.
class OneLine {
 public:
  OneLine(Workbench& bench, FitLine& line, const std::vector<Batch>& batches)
      : bench_(bench), line_(line), batches_(batches) {}

  /// Peaks grow with the batch: two of them say where the memory ends, and their neighbours whether it does.
  void search() {
    if (batches_.empty() || !fits(0)) return;
    std::size_t largest = 0;
    if (batches_.size() > 1 && fits(1)) largest = std::max<std::size_t>(guess(), 1);
    while (largest > 0 && !fits(largest)) --largest;
    while (largest + 1 < batches_.size() && fits(largest + 1)) ++largest;
    // More sequences are not always faster: down as long as it helps.
    for (std::size_t k = largest; k > 0 && fits(k - 1) && trial(k - 1).ns_per_token < trial(k).ns_per_token;) --k;
    if (largest > 1) static_cast<void>(fits(largest - 2));
  }

  std::size_t simulated() const { return made_.size(); }

 private:
  FitTrial& trial(std::size_t index) { return line_.trials[made_.at(index)]; }

  bool fits(std::size_t index) {
    if (line_.refused) return false;
    const auto known = made_.find(index);
    if (known != made_.end()) return line_.trials[known->second].fits;
    const auto made = try_job(bench_, line_.job, batches_[index]);
    if (!made) {
      // A program of one size: its own batch, the first, is all that there is.
      if (made.error().place != "model.batch" || made_.empty()) line_.refused = made.error();
      return false;
    }
    made_.emplace(index, line_.trials.size());
    line_.trials.push_back(*made);
    return made->fits;
  }

  std::size_t guess() {
    const double bytes = static_cast<double>(trial(1).peak_reserved - trial(0).peak_reserved);
    const double slope = bytes / static_cast<double>(batches_[1].batch - batches_[0].batch);
    if (slope <= 0) return batches_.size() - 1;
    const double room = static_cast<double>(memory() - trial(1).peak_reserved);
    const double most = static_cast<double>(batches_[1].batch) + std::max(room, 0.0) / slope;
    std::size_t index = 1;
    while (index + 1 < batches_.size() && static_cast<double>(batches_[index + 1].batch) <= most) ++index;
    return index;
  }

  Bytes memory() {
    if (line_.job.cluster.memory > 0) return line_.job.cluster.memory;
    const auto parts = bench_.prepare(line_.job);
    return parts ? parts->profile->memory_bytes : 0;
  }

  Workbench& bench_;
  FitLine& line_;
  const std::vector<Batch>& batches_;
  std::map<std::size_t, std::size_t> made_;  // by place in batches_: place in the line's trials
};

}  // namespace

const FitTrial* FitLine::best() const {
  const FitTrial* best = nullptr;
  for (const FitTrial& trial : trials)
    if (trial.fits && (best == nullptr || trial.ns_per_token < best->ns_per_token)) best = &trial;
  return best;
}

Result<FitTrial> try_job(Workbench& bench, Job job, const Batch& batch) {
  job.model.batch = batch.batch;
  job.train.micro_batches = std::min(batch.micro_batches, kFewMicroBatches);
  const auto prediction = bench.predict(job);
  if (!prediction) return fail(prediction.error());
  FitTrial made;
  made.batch = batch;
  made.fits = prediction->fits && prediction->deadlock.empty() && !prediction->iterations.empty();
  made.peak_reserved = prediction->memory.reserved;
  if (!made.fits) return made;
  made.step_time_ns = prediction->step_time_ns.value;
  double tokens = prediction->tokens_per_s.value * made.step_time_ns * 1e-9;
  if (tokens <= 0) tokens = static_cast<double>(job.model.batch * job.train.micro_batches * job.cluster.world_size);
  made.compute_ns_per_token = static_cast<double>(prediction->iterations.back().compute) / tokens;
  if (const std::int64_t more = batch.micro_batches - job.train.micro_batches; more > 0) {
    tokens *= static_cast<double>(batch.micro_batches) / static_cast<double>(job.train.micro_batches);
    --job.train.micro_batches;
    const auto fewer = bench.predict(job);
    if (!fewer) return fail(fewer.error());
    made.step_time_ns += static_cast<double>(more) * (made.step_time_ns - fewer->step_time_ns.value);
  }
  made.ns_per_token = made.step_time_ns / tokens;
  return made;
}

std::vector<std::string> batch_settings(const Batch& batch) {
  std::vector<std::string> set{fmt::format("model.batch={}", batch.batch)};
  if (batch.micro_batches > 1) set.push_back(fmt::format("train.micro_batches={}", batch.micro_batches));
  return set;
}

LineSearch::LineSearch(SharedParts& shared, int threads, std::function<void(std::size_t, std::size_t)> progress)
    : shared_(shared), threads_(threads), progress_(std::move(progress)) {
  if (threads_ <= 0) threads_ = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

void LineSearch::run(std::vector<FitLine>& lines, const std::vector<Batch>& batches, std::int64_t tokens_per_step) {
  std::atomic<std::size_t> next{0}, done{0}, simulated{0};
  std::mutex mutex;
  std::condition_variable finished;
  int running = std::min<int>(threads_, static_cast<int>(std::max<std::size_t>(lines.size(), 1)));
  const auto work = [&] {
    Workbench bench(shared_);
    for (std::size_t k = next++; k < lines.size(); k = next++) {
      FitLine& line = lines[k];
      std::vector<Batch> own = batches;
      if (is_cut(line.job.mesh) && tokens_per_step > 0) {  // fewer data ranks: more sequences each
        auto made = fit_axes::batches(line.job, tokens_per_step);
        own = made ? std::move(*made) : std::vector<Batch>();
      }
      if (!line.cut && !line.refused) {
        OneLine search(bench, line, own);
        search.search();
        simulated += search.simulated();
      }
      ++done;
    }
    const std::lock_guard lock(mutex);
    --running;
    finished.notify_one();
  };
  std::vector<std::thread> pool;
  for (int t = running; t > 0; --t) pool.emplace_back(work);
  {
    std::unique_lock lock(mutex);
    while (running > 0) {
      finished.wait_for(lock, std::chrono::milliseconds(100));
      if (!progress_ || running == 0) continue;
      lock.unlock();
      progress_(done, lines.size());
      lock.lock();
    }
  }
  for (std::thread& thread : pool) thread.join();
  simulated_ += simulated;
}

}  // namespace foreshard
