// Ranks as threads that train the tiny Llama: each with its own plan, backend, runner and communicators.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/job.h"
#include "exec/backend/backend.h"
#include "exec/operators/operator_interpreter.h"
#include "exec/run/plan_runner.h"
#include "exec/step/in_process_groups.h"
#include "tests/exec/tiny_llama.h"

namespace foreshard::exec {

/// What one rank reports of its training.
struct RankTrace {
  std::vector<StepResult> steps;
  std::map<std::string, at::Tensor> shards;  // by name: this rank's part of the final parameters
  std::map<std::string, std::vector<StatePiece>> pieces;
  MemoryReport memory;
  std::string failure;
};

class TinyRanks {
 public:
  using Visit = std::function<void(int rank, PlanRunner& runner)>;

  explicit TinyRanks(Job job);

  /// `done` is called on each rank's thread behind the last step.
  std::vector<RankTrace> train(int steps, const std::vector<double>& lr, const Visit& done = {}) {
    return train({0, steps, lr, {}, done, {}});
  }
  struct Run {
    int first = 0, steps = 0;  // of the recorded data; the rate of step s is lr[s]
    std::vector<double> lr;
    Visit before, done;
    CommHook hook = {};
  };
  std::vector<RankTrace> train(const Run& what);
  Plan plan(Job job, int rank) const;
  /// The model as the job's mesh cuts it for a rank.
  Model own_model(int rank) const;
  std::vector<MicroBatch> inputs(int step, int rank) const;
  const Model& model() const { return model_; }
  const Job& job() const { return job_; }

 private:
  void run(int rank, const Run& what, RankTrace& trace);

  Job job_;
  int world_;
  Model model_;
  OperatorInterpreter interpreter_;
  NamedTensors weights_, data_;
  InProcessGroups groups_;
};

/// Relative tolerances: max(1e-5, three times the spread between recordings of PyTorch itself).
struct Tolerance {
  double loss = 1e-5, norm = 1e-5, parameter = 1e-5;
  /// Steps that may be further off, by `moved_loss`: a token whose scores of two experts are equal but for rounding
  /// goes to the other one, by processor, and its gradient with it. Losses of the other steps still are as near as
  /// `loss`.
  int moved_steps = 0;
  double moved_loss = 0;
};
inline constexpr Tolerance kBf16 = {6e-4, 6e-3, 3e-4};
/// Other orders of sums move a token once in a run of experts. One of a step's 8 x 16 tokens weighs that part of its
/// loss.
inline constexpr Tolerance kMovedToken = {.moved_steps = 1, .moved_loss = 1.0 / (8 * 16)};

/// Trains as the job says and adds test failures where losses, norms (of a job that clips) or final parameters are not
/// those of a recorded run.
void expect_run(const Job& job, const std::string& run, const Tolerance& tolerance = {});
void expect_run(const Job& job, const RecordedRun& recorded, const Tolerance& tolerance = {});
/// Trains half of the steps as one job says and saves, goes on as another, and compares with a run.
void expect_resumed(const Job& first, const Job& second, const RecordedRun& recorded);
/// A job's own run, to be compared with.
RecordedRun run_of(const Job& job);

/// The whole parameters, put together from the ranks' pieces. Adds a test failure where ranks that hold the same
/// elements disagree, or an element is held by nobody.
std::map<std::string, at::Tensor> whole_parameters(const Model& model, const std::vector<RankTrace>& traces);

}  // namespace foreshard::exec
