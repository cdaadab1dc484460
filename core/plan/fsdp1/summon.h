// summon_full_params: units gathered for the user, in the original type, and given back (U1..U6, G8).
#pragma once

#include <vector>

#include "core/plan/fsdp1/gathering.h"
#include "core/plan/fsdp1/gradients.h"
#include "core/plan/fsdp1/run.h"

namespace foreshard::fsdp1 {

class Summon {
 public:
  Summon(Run& run, Gathering& gathering, Gradients& gradients)
      : run_(run), out_(run.out), gathering_(gathering), gradients_(gradients) {}

  void enter(const SummonOptions& options);
  void exit();

 private:
  struct Open {
    SummonOptions options;
    std::vector<std::int32_t> units;  // in order of entry
    std::vector<bool> free;           // at exit
    std::vector<std::int32_t> gathered_grads;
  };

  bool may_enter(const SummonOptions& options);
  void enter_unit(UnitState& u, Open& open);
  void gather_gradient(UnitState& u, Open& open);
  void exit_unit(UnitState& u, const Open& open, bool free_full);

  Run& run_;
  InstructionWriter& out_;
  Gathering& gathering_;
  Gradients& gradients_;
  std::vector<Open> open_;  // innermost last; several only of one state each (U6, K2)
};

}  // namespace foreshard::fsdp1
