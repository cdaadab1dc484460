// The search among the schedules of one frame: sets of units that keep parameters or activations, then how far gathers
// run ahead, then one decision of one unit at a time, each judged by the simulator.
//
// Deterministic: the number of simulations is bounded, not the time unless SearchTask::end says so, and no answer hangs
// on the number of threads.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "sim/schedule/candidate.h"
#include "sim/schedule/candidate_judge.h"
#include "sim/search/shared_parts.h"

namespace foreshard {

/// So many candidates of a frame are simulated at most, as its plan's length allows in some seconds.
std::size_t most_simulations(const UnitFrame& frame);

/// What is looked for, and how.
struct SearchTask {
  using Clock = std::chrono::steady_clock;
  Bytes budget = 0;
  bool for_memory = false;
  int threads = 1;  // 0: one for each processor
  // Once something fits, nothing more is tried behind this.
  std::optional<std::chrono::time_point<Clock, std::chrono::duration<double>>> end;
};

class UnitSearch {
 public:
  UnitSearch(UnitFrame frame, Workbench& bench, const SearchTask& task);

  /// The best that was found; `limit_ns` is what a search for memory must not exceed. Of another way of wrapping single
  /// decisions are not looked at where its sets are behind `to_beat`.
  void run(double limit_ns, const UnitSearch* to_beat = nullptr);

  /// From what another search of the same units found: one decision at a time, under this one's budget.
  void run_from(const Candidate& found, double limit_ns);

  /// A few candidates that say whether this way of wrapping is worth a search.
  void try_bases(double limit_ns);
  const SearchTask& task() const { return task_; }
  bool is_late() const { return found() && task_.end && SearchTask::Clock::now() >= *task_.end; }
  bool promises(const UnitSearch& other) const;
  bool beats(const UnitSearch& other) const { return better(best_judged_, other.best_judged_); }

  bool found() const { return best_judged_.fits; }
  const Candidate& best() const { return best_; }
  const Judged& judged() const { return best_judged_; }
  const UnitFrame& frame() const { return frame_; }
  std::size_t simulated() const { return judge_.judged(); }
  /// Of its frame, once it has been measured.
  const std::optional<KeptMemory>& memory() const { return judge_.memory(); }
  /// Called behind every candidate that is looked at.
  void tell(std::function<void()> told) { told_ = std::move(told); }

  /// What can be done with the least memory, whatever the time; `known` where it is not a MiB less.
  Bytes least_budget(Bytes known);
  Bytes peak_without_budget() { return judge_.peak_within(leanest().front(), {}); }

 private:
  bool spent() const { return judge_.judged() >= most_ || is_late(); }

  /// fsdp2's own schedule; where it does not fit, what takes the least.
  void begin();

  /// Of these one takes the least memory: a gather too many can be cheaper than a block that lies in the way.
  std::vector<Candidate> leanest() const;

  bool better(const Judged& a, const Judged& b) const;
  Judged consider(const Candidate& candidate, double below = Judged::kNoTime);
  /// Whatever takes longer is not better. Less memory may be, whatever the time.
  double too_long() const { return task_.for_memory || !found() ? Judged::kNoTime : best_judged_.ns; }

  /// What to try from the best so far, if there is anything to.
  using Move = std::function<std::optional<Candidate>(const Candidate& best)>;
  static Move to(Candidate candidate);
  /// In turn, each from what is best by then; the next ones are simulated beside it as if nothing got better.
  void consider_each(const std::vector<Move>& moves);

  UnitChoice& of(Candidate& candidate, int unit) const { return candidate.units[static_cast<std::size_t>(unit)]; }

  Candidate with_kept(Candidate candidate, const std::vector<int>& order, std::size_t count) const;

  /// A candidate of so many, with which more of them need more memory.
  using Make = std::function<Candidate(int count)>;
  /// The largest count for which `make` fits; -1: none does. Fewer first where memory is what is looked for.
  int most_that_fits(int all, const Make& make);
  /// Each of them, as many side by side as there are threads.
  void each_most_that_fits(int all, const std::vector<Make>& makes);
  void look_ahead(int all, const std::vector<Make>& makes);

  /// Which parameters are kept, for each of a few amounts of kept activations.
  void sets();

  Candidate ahead(Candidate candidate, int forward, int backward) const;

  /// How far gathers run ahead.
  void pacing();

  /// Around the best, in ever smaller steps: more or fewer blocks recompute, and what that leaves is filled with
  /// parameters. Where kept parameters have hidden the links, bytes are better spent on activations.
  void sets_at_best();

  /// One decision of one unit at a time, as long as something gets better.
  void moves();
  void flip_params(int unit, std::vector<Move>& all) const;
  void flip_activations(int block, std::vector<Move>& all) const;
  void shift_starts(int unit, std::vector<Move>& all) const;
  /// One kept for another that is not, neighbours first.
  void swaps();

  UnitFrame frame_;
  CandidateJudge judge_;
  SearchTask task_;
  double limit_ns_ = Judged::kNoTime, first_ns_ = Judged::kNoTime;
  std::size_t most_ = 0;  // simulations
  std::function<void()> told_;
  std::vector<int> keepable_;  // units in forward order
  KeepParams level_ = KeepParams::Keep;
  Candidate start_, best_;
  Judged best_judged_;
};

}  // namespace foreshard
