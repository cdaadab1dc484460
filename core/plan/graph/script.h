// A Script: what a training loop does, as a list of actions per iteration. The usual loop is the default.
//
// Actions: zero, fwd, fwd_rest, bwd, bwd:K, bwd_all, bwd_keep, step, clip, unscale and update (a gradient scaler's),
// no_sync{ .. }, summon{[:ARGS] .. }, nograd_fwd, eval, train, unshard:UNIT, wait, and method calls
// "call:UNIT:METHOD:ARGS" of fsdp2 units. `core/plan` runtimes interpret them in order.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/job.h"
#include "core/result.h"

namespace foreshard {

/// What summon takes: a flat JSON object of booleans, {"recurse":false}. `state` enters the state of that unit alone,
/// as the hooks of a state dict do (U6, K2); such calls may be nested over different states.
struct SummonOptions {
  std::int32_t state = -1;  // -1: this call covers the tree
  bool recurse = true, writeback = true;
  bool rank0_only = false, offload_to_cpu = false, with_grads = false;
  bool operator==(const SummonOptions&) const = default;
};

/// A method of an fsdp2 unit (F2-23).
enum class UnitMethod : std::uint8_t {
  Unknown,
  SetRequiresGradientSync,
  SetRequiresAllReduce,
  SetReshardAfterForward,
  SetReshardAfterBackward,
  SetUnshardAsyncOp,
  SetIsLastBackward,
  SetUnshardInBackward,
  SetForceSumReductionForComms,
  SetGradientDivideFactor,
  SetModulesToForwardPrefetch,
  SetModulesToBackwardPrefetch,
  SetAllReduceHook,
  SetPostOptimEvent,
  Unshard,
  Reshard,
  StateDict,
  Forward,
  Buffers,  // where buffers come from and whose collective runs: no order and no size changes (F2-25)
};

/// A call of one: its arguments as written, "key=value" where they are named.
struct UnitCall {
  UnitMethod method = UnitMethod::Unknown;
  std::vector<std::string> arguments;

  /// The first argument; nullopt: neither true nor false. `absent`: where there is none.
  std::optional<bool> truth(std::optional<bool> absent = std::nullopt) const;
  /// Units below are meant too, unless recurse=false; `positional`: also as a plain second argument.
  bool recurses(bool positional) const;
  /// Its second argument has no name.
  bool has_positional_second() const;
  std::optional<double> number() const;
  bool operator==(const UnitCall&) const = default;
};

/// A call as it is written. An unknown method stays Unknown.
UnitCall unit_call(const std::string& method, const std::string& args);

struct Action {
  enum class Kind : std::uint8_t {
    Zero,
    Forward,
    Backward,
    BackwardAll,
    BackwardKeep,
    Step,
    Clip,
    Unscale,
    UpdateScale,
    NoSyncEnter,
    NoSyncExit,
    SummonEnter,
    SummonExit,
    NoGradForward,
    Eval,
    Train,
    Unshard,
    WaitUnshard,
    Call,
  } kind = Kind::Forward;
  std::string text;   // as written
  bool rest = false;  // Forward: of a model of which a part runs once for several micro-batches, without that part
  std::int32_t output = -1;  // Backward: index of the pending output; -1 = the last
  std::string unit;          // Unshard, Call
  std::string method;        // Call
  std::string args;          // Call, SummonEnter: JSON object or plain text as written
  SummonOptions summon;      // SummonEnter: the same, read
  UnitCall call;             // Call: the same, read
  bool infinity = false;     // Clip: the infinity norm
  bool operator==(const Action&) const = default;
};

using IterationScript = std::vector<Action>;

struct Script {
  std::vector<IterationScript> iterations;  // run in order; with `repeat`, the last one again until the plan is steady
  bool repeat = true;
  bool operator==(const Script&) const = default;
};

/// One action's text to its value. Errors: unknown words, unbalanced braces are found by parse_script.
Result<Action> parse_action(const std::string& text);

/// The same job with the script of one evaluation: train.eval.batches forwards without grad, in eval mode. Behind a
/// training iteration, which leaves what an evaluation finds in memory, where `after_training`.
Job evaluation_job(const Job& job, bool after_training);

/// What one iteration of the usual loop does, without a script.
std::vector<std::string> usual_actions(const Job& job);

/// job.train.script, or (zero_grad, forward, backward) x micro_batches, clip, step with no_sync as asked; with a
/// gradient scaler unscale before clip, update after step.
Result<Script> script_of(const Job& job);

}  // namespace foreshard
