// Laws between a job and another that differs in one thing: a better machine, a larger model, more work, more ranks.
// All are paced (tests/sim/laws/trial.h). Each bound says where it comes from:
//
// - What a job asks of the allocator follows from the host's calls in their order: exact, whatever the machine's speed.
//   What it takes beyond that are rests of blocks (tests/sim/laws/asked_memory.h).
// - What is reserved is a cache's: best fit leaves other pieces for other sizes, and no bound is worth stating (its
//   worst case is as many times what is asked for as sizes double between the smallest and the largest). Where no block
//   waits for a stream, another machine sees the same calls and must reserve the same; else nine jobs of ten obey.
// - A step is a graph of waits: more work on it takes no less time, but for times in whole nanoseconds (one a launch),
//   for operators that cost less at larger shapes (tests/sim/laws/step_costs.h), and where the order is another one.
#pragma once

#include <optional>
#include <string>

#include "tests/sim/laws/law_book.h"
#include "tests/sim/laws/step_costs.h"
#include "tests/sim/laws/trial.h"

namespace foreshard::testing {

class Comparisons {
 public:
  /// REQUIRES base.runs(paced.prediction). All outlive the comparisons.
  Comparisons(const RandomJob& random, const Trial& base, const Paced& paced, Judge& judge);

  void judge_all();

 private:
  /// Another job on the same machine, with what its steady step costs.
  struct Other {
    Trial trial;
    Paced paced;
    StepCosts costs;
  };
  std::optional<Trial> trial_of(const RandomJob& random);
  /// nullopt: it is not valid, or has no steady step.
  std::optional<Other> other_of(const RandomJob& random);

  void steadiness();
  void machines();
  void machine(const std::string& law, const HardwareProfile& profile, Bytes memory = 0);
  void larger_jobs();
  void larger(const std::string& law, const RandomJob& random);
  void adds_work(const std::string& law, const RandomJob& without, const RandomJob& with);
  void micro_batches();
  void more_ranks();

  const RandomJob& random_;
  const Trial& base_;
  const Paced& paced_;
  StepCosts costs_;
  Judge& judge_;
};

}  // namespace foreshard::testing
