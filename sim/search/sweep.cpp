#include "sim/search/sweep.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>

#include "sim/search/shared_parts.h"

namespace foreshard {
namespace {

// Neighbours that share a plan, or what the allocator did, stay with one thread; more would leave threads idle at the
// end.
constexpr std::size_t kLeastChunk = 8, kMostChunk = 128, kChunksPerThread = 8;
constexpr std::size_t kLongestRow = 256;

/// Whether jobs that differ in this key alone may allocate the same on the compute stream.
bool leaves_allocations(const std::string& key) {
  return key.starts_with("fsdp.prefetch.") || key == "cluster.memory" || key == "cluster.profile";
}

void note_misfit(SweepPoint& point, const Prediction& prediction) {
  if (!prediction.deadlock.empty()) {
    point.misfit = "deadlock: " + prediction.deadlock;
  } else if (prediction.oom) {
    const OutOfMemory& oom = *prediction.oom;
    point.misfit = "out of memory in " + (oom.phase.empty() ? std::string("a step") : oom.phase);
    if (!oom.unit.empty()) point.misfit += " of " + oom.unit;
    if (oom.phase != "init") point.misfit += ", iteration " + std::to_string(oom.iteration);
  }
}

/// The work of all threads: points in sharing order, results by position.
class Sweep {
 public:
  Sweep(const Job& base, const SweepGrid& grid, const SweepOptions& options)
      : base_(base), grid_(grid), options_(options) {
    if (options.budget > 0) base_.cluster.memory = options.budget;
  }

  SweepResult run() {
    const auto begun = std::chrono::steady_clock::now();
    list_points();
    play();
    SweepResult result;
    result.simulated = distinct_.size();
    for (SweepPoint& point : points_) {
      if (!point.same_as) continue;
      const SweepPoint& first = points_[position_.at(*point.same_as)];
      const auto [index, values, same_as] = std::tuple(point.index, std::move(point.values), point.same_as);
      point = first;
      point.index = index;
      point.values = values;
      point.same_as = same_as;
    }
    result.points = std::move(points_);
    find_front(result);
    result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
    return result;
  }

 private:
  /// The points of this part, which of them are the same job, and the jobs that are left.
  void list_points() {
    const SweepPart part = options_.part;
    for (std::size_t index = part.index - 1; index < grid_.size(); index += part.of) {
      position_.emplace(index, points_.size());
      points_.emplace_back().index = index;
    }
    std::unordered_map<std::size_t, std::size_t> first_of;  // the job's first point in the grid -> in this part
    std::vector<bool> distinct(points_.size(), false);
    for (std::size_t k = 0; k < points_.size(); ++k) {
      SweepPoint& point = points_[k];
      point.values = grid_.values_of(point.index);
      const auto job = grid_.job_of(point.index, base_);
      if (!job) {
        point.refused = job.error();
        continue;
      }
      const auto [first, added] = first_of.emplace(grid_.same_job(point.index, *job), point.index);
      distinct[k] = added;
      if (!added) point.same_as = first->second;
    }
    const std::size_t alike = grid_.sharing_row();
    std::size_t place = 0, row = 0;  // in the grid's order
    for (const std::size_t index : grid_.sharing_order()) {
      const std::size_t of = place++ / alike;
      const auto at = position_.find(index);
      if (at == position_.end() || !distinct[at->second]) continue;
      if (rows_.empty() || of != row) rows_.push_back(distinct_.size());
      row = of;
      distinct_.push_back(at->second);
    }
  }

  void play() {
    int threads = options_.threads > 0 ? options_.threads : static_cast<int>(std::thread::hardware_concurrency());
    const auto parts = static_cast<std::size_t>(std::max(threads, 1)) * kChunksPerThread;
    chunk_ = std::clamp(distinct_.size() / parts, kLeastChunk, kMostChunk);
    cut_chunks(rows_.size() >= parts);
    const std::size_t chunks = chunks_.size();
    threads = std::clamp(threads, 1, static_cast<int>(std::max<std::size_t>(chunks, 1)));
    std::vector<std::thread> pool;
    running_ = threads;
    for (int t = 0; t < threads; ++t) pool.emplace_back([this] { work(); });
    {
      std::unique_lock lock(mutex_);
      while (running_ > 0) {
        finished_.wait_for(lock, std::chrono::milliseconds(100));
        if (!options_.progress || running_ == 0) continue;
        lock.unlock();
        options_.progress(done_, distinct_.size());
        lock.lock();
      }
    }
    for (std::thread& thread : pool) thread.join();
    if (options_.progress) options_.progress(done_, distinct_.size());  // also where nobody had to be waited for
  }

  /// With `rows` at those alone that share what the allocator did, unless one is very long. Not where there are few:
  /// threads would wait for each other at the end.
  void cut_chunks(bool rows) {
    auto row = rows_.begin();
    for (std::size_t begin = 0; begin < distinct_.size();) {
      chunks_.push_back(begin);
      const std::size_t end = std::min(begin + chunk_, distinct_.size());
      row = std::lower_bound(row, rows_.end(), end);
      const std::size_t whole = row == rows_.end() ? distinct_.size() : *row;
      begin = rows && whole - begin <= kLongestRow ? whole : end;
    }
  }

  void work() {
    Workbench bench(shared_);
    const auto& axes = grid_.axes();
    if (std::any_of(axes.begin(), axes.end(), [](const SweepAxis& axis) { return leaves_allocations(axis.key); }))
      bench.keep_tapes();
    for (;;) {
      const std::size_t chunk = next_.fetch_add(1);
      if (chunk >= chunks_.size()) break;
      const std::size_t end = chunk + 1 < chunks_.size() ? chunks_[chunk + 1] : distinct_.size();
      for (std::size_t k = chunks_[chunk]; k < end; ++k) {
        evaluate(bench, points_[distinct_[k]]);
        ++done_;
      }
    }
    const std::lock_guard lock(mutex_);
    --running_;
    finished_.notify_one();
  }

  void evaluate(Workbench& bench, SweepPoint& point) {
    const auto job = grid_.job_of(point.index, base_);
    if (!job) return;
    const auto prediction = bench.predict(*job);
    if (!prediction) {
      point.refused = prediction.error();
      return;
    }
    point.fits = prediction->fits && prediction->deadlock.empty();
    point.peak_reserved = prediction->memory.reserved;
    point.peak_allocated = prediction->memory.allocated;
    note_misfit(point, *prediction);
    if (!point.fits || prediction->iterations.empty()) return;
    point.step_time_ns = prediction->step_time_ns.value;
    point.exposed_ns = static_cast<double>(prediction->iterations.back().exposed_comm);
    point.tokens_per_step = prediction->tokens_per_s.value * point.step_time_ns * 1e-9;
    if (point.tokens_per_step <= 0) {
      point.tokens_per_step =
          static_cast<double>(job->model.batch * job->train.micro_batches * job->cluster.world_size);
    }
  }

  Job base_;
  const SweepGrid& grid_;
  const SweepOptions& options_;
  SharedParts shared_;
  std::vector<SweepPoint> points_;
  std::unordered_map<std::size_t, std::size_t> position_;  // index -> in points_
  std::vector<std::size_t> distinct_;                      // positions to evaluate
  std::vector<std::size_t> rows_, chunks_;                 // where they begin among these
  std::size_t chunk_ = kLeastChunk;
  std::atomic<std::size_t> next_{0}, done_{0};
  std::mutex mutex_;
  std::condition_variable finished_;
  int running_ = 0;
};

}  // namespace

double objective_time(const SweepPoint& point, SweepObjective objective) {
  if (objective == SweepObjective::StepTime || point.tokens_per_step <= 0) return point.step_time_ns;
  return point.step_time_ns / point.tokens_per_step;
}

void find_front(SweepResult& result) {
  double tokens = -1;
  result.objective = SweepObjective::StepTime;
  for (const SweepPoint& point : result.points) {
    if (!point.fits) continue;
    if (tokens < 0) tokens = point.tokens_per_step;
    // Rounding of a quotient of rates, not another amount of work.
    if (std::abs(tokens - point.tokens_per_step) > 1e-6 * tokens) result.objective = SweepObjective::TimePerToken;
  }
  std::vector<Cost> costs;
  for (const SweepPoint& point : result.points) {
    if (point.fits && !point.same_as && point.step_time_ns > 0)
      costs.push_back({point.index, objective_time(point, result.objective), point.peak_reserved});
  }
  result.front = pareto_front(std::move(costs));
}

Result<SweepResult> sweep(const Job& base, const SweepGrid& grid, const SweepOptions& options) {
  if (options.part.of < 1 || options.part.index < 1 || options.part.index > options.part.of) {
    return fail({.code = ErrorCode::Usage,
                 .message = "there is no such part of the sweep",
                 .file = {},
                 .place = "--part",
                 .expected = "i/n with 1 <= i <= n",
                 .got = std::to_string(options.part.index) + "/" + std::to_string(options.part.of),
                 .hint = "parts are counted from 1"});
  }
  return Sweep(base, grid, options).run();
}

}  // namespace foreshard
