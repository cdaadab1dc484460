// Replays a lowered program: the storages of forward, recompute and backward in order, with every misuse counted.
#pragma once

#include <string>
#include <vector>

#include "core/lowering/lowering.h"

namespace foreshard::testing {

struct ReplayEvent {
  bool alloc = true;
  std::int64_t id = 0;  // allocations are numbered from 0
  Bytes bytes = 0;
  bool operator==(const ReplayEvent&) const = default;
};

struct Replay {
  std::vector<ReplayEvent> events;
  std::vector<std::string> forward_kernels, recompute_kernels, backward_kernels;
  Bytes after_forward = 0, peak = 0;
  Bytes left = 0;  // at the end, without what is held and without parameter gradients
  Bytes param_grads = 0;
  std::vector<std::string> misuse;  // freed twice, freed before it was made, allocated twice
};

/// Regions of checkpointed segments are recomputed before the backward of their last segment.
Replay replay(const LoweredProgram& program, const std::vector<SegmentRange>& segments);

/// One segment per outermost run of operators inside a module of `block_class`; the rest between them.
std::vector<SegmentRange> segments_by_block(const Model& model, const std::string& block_class,
                                            bool checkpointed = false);

std::vector<bool> all_trainable(const Model& model);

/// Bytes of the slots that a list's kernel allocates.
std::vector<Bytes> made_by(const LoweredProgram& lowered, const KernelList& list, const SegmentTemplate& segment,
                           const std::string& op);
/// Bytes alive when a kernel of the first template's forward list has been issued.
Bytes alive_at(const LoweredProgram& lowered, const std::string& op);

}  // namespace foreshard::testing
