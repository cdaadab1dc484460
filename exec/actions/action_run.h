// The plans of init, summon, save and load as one rank runs them: model, state, runner and peers brought together, and
// what each action took and made. What a program adds is flags, a prediction and printing.
//
// One ActionRun lives on one thread, which becomes the issuer of its backend. All ranks open and run together; beside
// the plan's own communicators they share one called "control". Host memory only.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/job.h"
#include "core/model/model.h"
#include "core/plan.h"
#include "core/result.h"
#include "exec/communicators/communicator.h"
#include "exec/launch/launch.h"
#include "exec/training/training_loop.h"

namespace foreshard::exec {

class Recorder;

struct ActionRunSetup {
  Job job;             // cluster.world_size and rank are the place's
  const Model& model;  // of this rank, where a mesh cuts it
  const Plan& plan;    // of build_action_plan, for this rank; both outlive the run
  RankPlace place;
  Connect connect;  // not called for a rank alone
  int intra_op_threads = 0;
  Recorder* recorder = nullptr;  // outlives the run
  bool resume = false;           // from the newest checkpoint in train.checkpoint.dir
  std::function<void(const std::string&)> note = [](const std::string&) {};
};

/// A tensor that an action has made, shown or returned, as this rank has it.
struct ActionTensor {
  std::string name;
  std::string dtype;
  Shape shape;                // of the whole
  Numel first_at = 0;         // its first element in the flattened whole: ranks that replicate say the same
  Bytes bytes = 0;            // on this rank
  double squares = 0;         // the sum over this rank's elements
  std::vector<double> first;  // a few elements from first_at on
};

/// Init and load list the shards that stay, summon what is shown, save what is returned.
struct ActionReport {
  std::string from;          // where its values come from, in words
  std::int64_t time_ns = 0;  // but for looking at what summon shows
  Bytes before = 0, peak = 0, end = 0;
  std::vector<ActionTensor> tensors;
};

struct ActionEnd {
  std::vector<ActionReport> actions;
  std::string failure;  // rank, action, instruction and cause; empty: all done
};

class ActionRun {
 public:
  virtual ~ActionRun() = default;

  /// Connects the ranks and makes what training leaves between two steps, unless the plan begins with init. Errors:
  /// what ActionRunner refuses, weights, checkpoints. Throws where a peer is gone.
  static Result<std::unique_ptr<ActionRun>> open(ActionRunSetup setup);

  /// All actions of the plan. Errors: a checkpoint that load cannot read.
  virtual Result<ActionEnd> run() = 0;
  /// For whoever exchanges something after the run: null for a rank alone.
  virtual Communicator* control() = 0;
};

}  // namespace foreshard::exec
