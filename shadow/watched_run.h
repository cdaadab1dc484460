// What a watched script leaves behind (python/foreshard/shadow): figures of its steps, the FSDP set-up that it was
// found to use, notes on what it was answered. A plain value, read from report.json.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/job.h"
#include "core/result.h"
#include "core/units.h"

namespace foreshard::shadow {

/// One step, by PyTorch's own allocator: peaks since the step before ended.
struct StepFigures {
  Bytes allocated = 0, active = 0, reserved = 0;
  std::int64_t retries = 0, ooms = 0;  // since the script began
  SimDuration virtual_time = 0;        // nanoseconds on the virtual device's clock
  std::size_t turn = 0;                // which of the script's optimizers stepped, where they take turns
};

/// One unit as PyTorch's own state says it. Dtypes and strategies are PyTorch's words; "none" keeps a dtype.
struct FoundUnit {
  std::vector<std::string> modules;  // one; several for fully_shard of a list. "": the root
  std::string strategy;
  std::int64_t reshard_after_forward = 1;  // 0 no, 1 yes, above: ranks that keep it
  std::string param = "none", reduce = "none", buffer = "none", output = "none";
  bool cast_forward_inputs = true, keep_low_precision_grads = false, cpu_offload = false;
  std::string backward_prefetch;  // fsdp1
  bool wrapped_twice = false;     // in a wrapper that has nothing to gather
  bool forward_prefetch = false, limit_all_gathers = true, use_orig_params = true;
  std::int64_t shard_group = 0;                // ranks
  std::int64_t tensor_parallel = 1;            // ranks of another dimension that its parameters are cut over
  std::int64_t expert_parallel = 1;            // ... that its experts are spread over
  std::int64_t parameters = 1;                 // 0: nothing to gather or to reduce
  std::int64_t numel = 1;                      // of these
  std::vector<std::string> forward, backward;  // fsdp2: explicit prefetches
  std::map<std::string, std::int64_t> shard_dim;
};

/// What an fsdp2 unit is told when a backward begins; the values here are PyTorch's defaults.
struct FoundSwitches {
  bool reduce = true, all_reduce = true, reshard = true, unshard = true, force_sum = false;
  bool unshard_async = false;
  bool reshard_after_forward = true;  // as its FoundUnit says, unless it is told otherwise between steps
  double divide = 0;                  // set_gradient_divide_factor; 0: none was set
  bool operator==(const FoundSwitches&) const = default;
};

struct FoundBackward {
  bool last = true;                            // set_is_last_backward
  std::map<std::string, FoundSwitches> units;  // by a unit's first module: those that are told anything
};

struct FoundOptimizer {
  std::string name, library, impl;  // a class, its package; for_loop, foreach, fused, in_backward, in_backward_foreach
  double lr = 0, eps = 0, weight_decay = 0, momentum = 0;
  std::vector<double> betas;
  std::int64_t states = -1;  // tensors that it keeps for each parameter, as large as that; -1: unknown
  double alpha = 0.99;       // RMSprop's
  bool centered = false, decoupled_weight_decay = false, amsgrad = false;
  std::vector<std::string> params;  // of a part: those that it steps
  std::string watched;              // which of the model's optimizers it is; empty: none
};

/// Recomputation, by the class of what is called again: calls in one forward.
struct FoundCheckpoint {
  std::string what;
  std::int64_t calls = 0;
  bool reentrant = false, selective = false;
};

struct FoundSetting {
  std::string runtime;  // fsdp1, fsdp2, none
  bool ddp = false;
  std::string model_class;
  bool alone = false;      // nothing shards or replicates its model
  std::int64_t roots = 1;  // modules that a step calls by themselves: the model's parts
  std::vector<FoundUnit> units;
  FoundOptimizer optimizer;
  std::vector<FoundOptimizer> others;       // that step parts of the parameters in the same step
  std::vector<std::string> waiting;         // parameters with a gradient that nothing steps in it
  std::vector<std::string> ignored;         // parameters that no unit manages, in modules that are units
  std::vector<std::string> frozen;          // parameters
  std::map<std::string, std::string> tied;  // parameters that are another unit's since they were sharded
  std::string autocast;                     // dtype; empty: none
  std::string init;                         // where parameters were before sharding: meta, device, host; empty: unknown
  std::int64_t batch = 1, seq = 0, micro_batches = 1;
  std::string zero_grad;  // before_forward, after_forward, zero: when the gradients of the step before go
  bool no_sync = false;   // only the last micro-batch reduces gradients
  std::vector<FoundBackward> backwards;  // fsdp2: of a steady step, by micro-batch
  std::vector<std::vector<bool>>
      once;  // by step and micro-batch: whether it runs what others share; empty: each runs all
  bool keeps_outputs = false;
  std::map<std::string, std::string> tensor_plan;  // mesh.plan; empty: nothing is cut, or nobody knows how
  bool tensor_sequence = false, tensor_loss = false;
  std::int64_t tensor_ranks = 1;    // that parameters are cut over where nothing shards them
  std::int64_t sequence_ranks = 1;  // that share a sequence; `seq` is this one's part of it
  std::string sequence_rotate = "allgather", sequence_buffers = "resized";  // mesh.context_rotate, mesh.context_buffers
  bool sequence_balanced = true;
  std::string float8_all_gather;  // fsdp.float8_all_gather; empty: nothing is gathered in 8 bits
  AllocatorOptions allocator;
  Bytes beside = 0;        // on the device before the first forward, and neither model, batch nor optimizer
  Bytes beside_later = 0;  // ... what was not there in the first step
  double clip = 0;
  bool scaler = false;
  std::vector<FoundCheckpoint> checkpointed;
  std::string loss;        // what autograd showed: own, cross_entropy, ...
  std::string model_file;  // beside the report; empty: the module could not be written down
};

/// Why a script ended other than by itself.
struct ScriptFailure {
  std::string code;  // bad-input, does-not-fit, script
  std::string message, hint;
};

struct WatchedRun {
  std::int64_t rank = 0, world_size = 1;
  std::vector<StepFigures> steps;
  std::optional<FoundSetting> setting;
  std::vector<FoundSetting> turns;  // of the second turn on: a step is one of `setting`, then one of each
  std::vector<std::string> notes;
  std::optional<ScriptFailure> failure;
  std::string torch;
  bool keeps_workspaces = false;  // TORCH_CUBLAS_WORKSPACE_CACHE=1
  Bytes host_peak = 0;            // of the script's process
};

/// Errors: there is no such file (the script never came to an end that could be watched), or it is no report.
Result<WatchedRun> read_watched_run(const std::string& path);

}  // namespace foreshard::shadow
