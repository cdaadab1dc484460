// FSDP1's instances as a training loop meets them: who is the root (R1), what must be equal over the tree (S5), and in
// which state which call is refused (T1, G1, G5, G9, U1).
//
// A plan's script cannot express a call from inside a module's forward or on an inner unit; a wrapper around a real
// training loop can. `Instances` answers such a call with PyTorch's class of error and a text of ours, without planning
// anything.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/job.h"
#include "core/plan.h"

namespace foreshard {

/// One FSDP instance; `parent` is an index in the list, -1 for the outermost.
struct Instance {
  std::string name;
  std::int32_t parent = -1;
  Strategy strategy = Strategy::FullShard;
  bool use_orig_params = false;
  bool limit_all_gathers = true;
  bool full_precision_in_eval = false;
  bool forward_prefetch = false;  // may differ (S5)
};

/// A table's units over a model, all with the job's options.
std::vector<Instance> instances_of(const Job& job, const std::vector<PlanUnit>& units);

enum class InstanceCall : std::uint8_t { Forward, NoSync, ClipGradNorm, Summon, StateDict, RegisterCommHook };

class Instances {
 public:
  /// REQUIRES a parent precedes its children.
  explicit Instances(std::vector<Instance> instances);

  /// The refusal, or nothing. Forward, NoSync and Summon go on until end(); the other calls are over at once.
  std::optional<PlanFailure> begin(InstanceCall call, std::size_t instance);
  /// Ends the innermost call that goes on. REQUIRES there is one.
  void end();
  bool is_root(std::size_t instance) const { return states_[instance].root == Root::Yes; }

 private:
  enum class Root : std::uint8_t { Unknown, Yes, No };
  enum class Training : std::uint8_t { Idle, ForwardBackward, Summon };
  struct State {
    Root root = Root::Unknown;
    Training training = Training::Idle;
    bool has_hook = false;
  };
  struct Open {
    InstanceCall call;
    std::vector<std::size_t> changed;
  };

  std::vector<std::size_t> below(std::size_t instance) const;
  std::optional<PlanFailure> lazy_init(std::size_t instance);
  std::optional<PlanFailure> check_homogeneous(const std::vector<std::size_t>& tree) const;
  std::optional<PlanFailure> need_idle(std::size_t instance, const char* what) const;
  std::optional<PlanFailure> summon(std::size_t instance);
  std::optional<PlanFailure> register_hook(std::size_t instance);

  std::vector<Instance> instances_;
  std::vector<State> states_;
  std::vector<Open> open_;
};

}  // namespace foreshard
