// What the simulator says of candidates of one frame: each is simulated once, and those that are looked at ahead side
// by side. Answers do not depend on the number of threads, nor on what was looked at ahead.
#pragma once

#include <cstdint>
#include <limits>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sim/schedule/candidate.h"
#include "sim/schedule/kept_memory.h"
#include "sim/search/shared_parts.h"

namespace foreshard {

struct Judged {
  static constexpr double kNoTime = std::numeric_limits<double>::infinity();
  bool fits = false;
  double ns = kNoTime, compute_ns = 0;                // of a step; busy time of the compute stream
  Bytes reserved = 0, allocated = 0, outside = 0;     // outside: context and communicators
  std::int64_t alloc_retries = 0, driver_allocs = 0;  // of the last step
  std::int64_t first_retries = 0;                     // of the steps before it
  bool operator==(const Judged&) const = default;
};

/// Of the last step: how often the allocator gave its cache back to the driver and asked again, and how often it asked
/// the driver at all.
std::int64_t retries_of_last_step(const Prediction& prediction);
std::int64_t driver_allocs_of_last_step(const Prediction& prediction);

class CandidateJudge {
 public:
  /// Both outlive it. `threads`: in all, with the caller's own; 0: one for each processor.
  CandidateJudge(const UnitFrame& frame, Workbench& bench, Bytes budget, int threads);

  /// From now on what holds more than the budget is known not to fit, and neither planned nor simulated.
  void know(KeptMemory memory) { memory_ = std::move(memory); }
  const std::optional<KeptMemory>& memory() const { return memory_; }

  /// `below`: who takes longer need not be known to the end, but what is told of it takes longer as well.
  Judged judge(const Candidate& candidate, double below = Judged::kNoTime);
  /// So many different candidates were judged; those that were only looked at do not count.
  std::size_t judged() const { return judged_; }

  std::vector<Judged> look_ahead(const std::vector<Candidate>& candidates, double below = Judged::kNoTime);
  bool knows(const Candidate& candidate) const { return known_.count(candidate.key()) > 0; }

  /// Reserved bytes of a step under this limit, or on a card without one; 0: it does not fit.
  Bytes peak_within(const Candidate& candidate, std::optional<Bytes> budget);

  Bytes budget() const { return budget_; }
  Workbench& bench() const { return bench_; }
  int threads() const { return threads_; }

 private:
  struct Known {
    Judged judged;
    std::vector<SimDuration> steps;
    bool whole = false;  // else it gave up
    bool asked = false;  // by judge()
  };
  /// The answer hangs on `below` alone, not on what else was asked.
  Judged told(const Known& known, double below) const;
  bool knows(const Known& known, double below) const { return known.whole || gave_up(known, below); }
  bool gave_up(const Known& known, double below) const;
  void simulate_into(Known& known, const Candidate& candidate, double below, Workbench& bench) const;

  const UnitFrame& frame_;
  Workbench& bench_;
  std::list<Workbench> others_;  // one for each other thread
  Bytes budget_;
  int threads_;
  std::optional<KeptMemory> memory_;
  std::size_t judged_ = 0;
  std::map<std::string, Known> known_;
};

}  // namespace foreshard
