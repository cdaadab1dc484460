// A training run as one rank does it: model, plan, runner and data brought together, step after step, checkpoints in
// between. What a program adds is flags and printing.
//
// One Training lives on one thread, which becomes the issuer of its backend. All ranks open and run together; beside
// the plan's own communicators they share one called "control": after each step it carries everybody's loss and wish to
// stop, so that all ranks report the same number and stop at the same step.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/job.h"
#include "core/model/model.h"
#include "core/plan.h"
#include "core/result.h"
#include "exec/backend/backend.h"
#include "exec/communicators/communicator.h"
#include "exec/launch/launch.h"
#include "exec/training/failure_text.h"

namespace foreshard::exec {

class CommHookRegistry;
class Recorder;

/// A communicator of this rank with `ranks` of the world; `name` tells them apart. Ranks call it in the same order.
using Connect =
    std::function<Result<std::shared_ptr<Communicator>>(const std::string& name, const std::vector<int>& ranks)>;

/// Where a training's tensors lie. The host's memory by default.
struct TrainingDevice {
  DeviceKind kind = DeviceKind::Host;
  /// Of this rank, for a plan that outlives it; unset: the host's.
  std::function<Result<std::unique_ptr<Backend>>(const Plan&)> make_backend = {};
  /// Of the plan's own groups, whose collectives run in the device's memory, one for each group and stream; unset:
  /// TrainingSetup::connect.
  Connect connect = {};
};

struct TrainingSetup {
  Job job;  // cluster.world_size is the place's
  RankPlace place;
  Connect connect;  // in host memory; not called for a rank alone
  TrainingDevice device = {};
  /// Of the plan's ranks only this one exists: its device's groups have pretended peers
  /// (exec/communicators/emulated_communicator.h), nobody is asked for losses, and nothing is saved.
  bool emulated = false;
  int intra_op_threads = 0;                 // 0: LibTorch's own choice
  Recorder* recorder = nullptr;             // outlives the training
  const CommHookRegistry* hooks = nullptr;  // outlives the training; what fsdp.comm_hook = "own:NAME" is looked up in
  bool resume = false;
  std::function<bool()> stop_asked = [] { return false; };  // a signal came: finish this step, save, end
  std::map<std::string, std::string> documents = {};        // kept in checkpoints: "job.toml", ...
};

struct StepReport {
  std::int64_t step = 0;             // counted from 1: this many are done
  double loss = 0;                   // mean over ranks and micro-batches
  std::optional<double> grad_norm;   // before clipping, where the plan clips
  std::optional<double> loss_scale;  // with a gradient scaler: of the next step
  bool skipped = false;              // by it: an infinity or a NaN was among the gradients
  double lr = 0;
  std::int64_t step_time_ns = 0;       // of this rank: reading the batch and the step itself
  std::optional<double> tokens_per_s;  // of all ranks; none for models without tokens
  Bytes peak_allocated_bytes = 0, end_allocated_bytes = 0;
  Bytes peak_reserved_bytes = 0;  // from the device or the C library
  // Of a device's caching allocator; the host has none.
  std::optional<Bytes> peak_active_bytes;
  std::optional<std::int64_t> alloc_retries, ooms;  // since the process began
  std::optional<double> eval_loss;  // after steps that an evaluation follows: mean over ranks and batches
  std::int64_t eval_time_ns = 0;
};

/// Called on the training's thread. Unset ones are not called.
struct TrainingEvents {
  std::function<void(const StepReport&)> step;
  std::function<void(const std::string& folder)> saved;
  std::function<void(const std::string& text)> note;
};

struct TrainingEnd {
  enum class How : std::uint8_t { Done, Interrupted, Failed } how = How::Done;
  std::int64_t steps = 0;  // done in all, those before a resumption included
  FailureAccount failure;  // Failed: rank, step, instruction, unit and cause
  std::string saved;       // the last checkpoint that this run has written or begun with; empty: none
};

class Training {
 public:
  virtual ~Training() = default;

  /// Loads or makes everything, resumes if asked. Errors: whatever the job, its files or its checkpoints are wrong in.
  static Result<std::unique_ptr<Training>> open(const TrainingSetup& setup, const TrainingEvents& events);

  virtual const Model& model() const = 0;
  virtual const Plan& plan() const = 0;
  virtual std::int64_t first_step() const = 0;  // steps done before this run
  virtual MemoryReport after_init() const = 0;
  virtual MemoryReport memory() const = 0;  // of the last step
  /// For whoever exchanges something after the run: null for a rank alone.
  virtual Communicator* control() = 0;

  /// Steps until train.steps are done, somebody asked to stop, or something failed. Call it once.
  virtual TrainingEnd run(const TrainingEvents& events) = 0;
};

}  // namespace foreshard::exec
