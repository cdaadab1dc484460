// Until 2.14 PyTorch gives each cuBLAS handle a workspace before its first product and keeps it, and until 2.11 another
// one before the first that cuBLASLt runs; autograd's thread has its own handle. Part of one PlanPlayer.
#pragma once

#include <cstdint>

#include "sim/machine/card.h"
#include "sim/play/instructions/play_context.h"
#include "sim/play/segments/run_recorder.h"

namespace foreshard {

class BlasWorkspaces {
 public:
  BlasWorkspaces(PlayContext& context, RunRecorder& recorder);

  /// What the handle of the thread that runs now has been given, one bit for each workspace.
  std::uint8_t& made() { return context_.phase == LoopPhase::Backward ? of_backward_ : of_forward_; }
  /// What ensure() would have to be there.
  static std::uint8_t wanted(bool lt);
  bool has(std::uint8_t wanted, std::uint8_t wanted_on_engine) {
    return (wanted & ~made()) == 0 && (wanted_on_engine & ~of_backward_) == 0;
  }
  /// Before a product; `lt`: through cuBLASLt, `engine`: on autograd's thread in any case. False: out of memory.
  bool ensure(bool lt, bool engine);
  /// Of both; 0 on a host.
  Bytes bytes() const { return sizes_.blas + sizes_.lt; }

 private:
  PlayContext& context_;
  RunRecorder& recorder_;
  BlasWorkspaceSizes sizes_;
  std::uint8_t of_forward_ = 0, of_backward_ = 0;
};

}  // namespace foreshard
