// What autograd keeps between forward and backward: bytes per block and outside, with and without checkpointing.
//
// A storage is counted once, in full, at the module that kept it first; parameters, buffers and inputs are left out, as
// in PyTorch's saved-tensor hooks. Pure function of the model.
#pragma once

#include <string>
#include <vector>

#include "core/lowering/lowering.h"

namespace foreshard {

struct ActivationReport {
  struct Outside {
    std::string module;  // innermost module that was running; "" is the root
    Bytes bytes = 0;
    bool operator==(const Outside&) const = default;
  };
  Bytes saved = 0;                  // all of it
  std::vector<Bytes> per_block;     // order of the blocks
  std::vector<std::string> blocks;  // their fully qualified names
  std::vector<Outside> outside;     // in order of first use
  struct Share {
    std::string name;
    Bytes bytes = 0;
    bool operator==(const Share&) const = default;
  };
  std::vector<Share> by_class;     // class of the module that kept it first, in order of first use
  std::vector<Share> by_operator;  // operator that kept it first
  Bytes held_by_block_arguments =
      0;  // checkpointed: what regions hold that autograd did not pack (rotary tables, masks)
  Flops forward_flops = 0, backward_flops = 0;  // PyTorch's counter; recomputation left out
  std::vector<std::string> unknown_ops;
  bool operator==(const ActivationReport&) const = default;
};

/// `block_class` names the repeated block; empty: the model's own. `checkpoint_blocks`: every block is checkpointed,
/// non-reentrant.
Result<ActivationReport> activation_report(const Model& model, bool checkpoint_blocks,
                                           const std::string& block_class = {});

}  // namespace foreshard
