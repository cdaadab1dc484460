// Results inside an autograd function that operator-level selective checkpointing keeps: its dispatch mode sees the
// operators of the function's forward one by one, as it sees those of the program. The kernels of an operator's rule
// say which of them are results of operators of a list (of).
#pragma once

#include <string_view>

#include "core/lowering/lowering.h"
#include "core/lowering/lowering_tape.h"

namespace foreshard::lowering {

struct CheckpointFrame;

/// Whether the list keeps one more result of that name; products are counted anew in each region.
bool keeps_listed(const SavedOps& saved, CheckpointFrame& frame, std::string_view name);

/// Whether a region of the model's own, whose model was cut since, keeps what this collective makes.
bool keeps_collective(const Region& region, const Op& op);

class KeptInside {
 public:
  explicit KeptInside(const SavedOps& saved) : saved_(saved) {}

  /// The operator of `step` runs now, for the first time or `again`, in that region; nullptr: in none. What the policy
  /// of a region of the model's own keeps inside of it is an argument (`kept_inside`).
  void enter(CheckpointFrame* frame, const Op& op, std::int32_t step, bool again);
  void leave() { frame_ = nullptr; }

  /// The result of an operator inside: the kept one where the region runs again, else what `make` makes, which is kept
  /// if the list says so.
  template <class Make>
  Ref of(std::string_view name, Make&& make) {
    if (Ref kept = take()) return kept;
    Ref made = make();
    keep(name, made);
    return made;
  }

 private:
  Ref take();
  void keep(std::string_view name, const Ref& made);

  const SavedOps& saved_;
  CheckpointFrame* frame_ = nullptr;
  const ArgList* names_ = nullptr;  // what is kept; else the list says it
  std::int32_t step_ = -1;
  bool again_ = false;
  std::size_t next_ = 0;  // again: of the results inside
};

}  // namespace foreshard::lowering
