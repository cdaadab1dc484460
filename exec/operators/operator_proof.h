// Asks LibTorch what one operator does: runs it through the dispatcher and its autograd graph backward, and writes down
// what was kept (by hooks on saved tensors), what was allocated (by the CPU allocator's own reports), which kernels
// backward ran (RecordFunction) and what came out. The counterpart of predict_operator()
// (core/lowering/facts/operator_facts.h).
//
// One thread at a time: the process's autograd engine is told to hand saved tensors to the one that runs.
#pragma once

#include <string>
#include <tl/expected.hpp>

#include "core/lowering/facts/operator_facts.h"

namespace foreshard::exec {

/// Runs on tensors in memory while they have at most this many elements together, else on the meta device: shapes only.
inline constexpr Numel kProofNumel = 1 << 22;

struct OperatorProof {
  OperatorFacts facts;
  bool counted = true;  // false: on the meta device, held_bytes is not known
  bool flops = true;    // false: a kernel ran whose work PyTorch's counter does not know either
};

/// An unexpected sentence: LibTorch has no such operator or no kernel for it here, or refuses the arguments.
tl::expected<OperatorProof, std::string> ask_libtorch(const OperatorCase& what);

/// Where the two part; empty if they agree. The results of `what` are taken from LibTorch where it states none.
tl::expected<std::vector<std::string>, std::string> prove_rule(OperatorCase what);

}  // namespace foreshard::exec
