// What wrapping and the first forward make on the device and leave there: local shards, modules' buffers, free
// segments.
#pragma once

#include <vector>

#include "core/job.h"
#include "core/model/model.h"
#include "core/plan.h"
#include "sim/device/device.h"

namespace foreshard {

/// A module's buffer on the device, or what its attributes look at until the first forward.
struct ResidentBuffer {
  BlockHandle block = kNoBlock;
  Numel numel = 0;
  DType dtype = DType::Float32;
  bool viewed = false;       // a flat parameter that has gone to the host (C1)
  std::int32_t buffer = -1;  // of the model's
};

/// Wrapping: what is allocated on the way is freed again, shards and buffers stay. False: out of memory.
bool play_initialisation(Device& device, const Plan& plan, const Model& model, const Job& job,
                         std::vector<ResidentBuffer>& buffers);

/// train.beside and train.beside_later: many tensors, of which only their sum is known. Blocks that leave nothing over
/// in a segment of the allocator's, so that what counts as allocated is that sum. False: out of memory.
bool hold_beside(Device& device, Bytes bytes);

/// H7: FSDP1's lazy initialisation makes each handle's buffers once, on D, and drops them at once: they leave free
/// segments. False: out of memory.
bool play_lazy_initialisation(Device& device, const Plan& plan);

/// Forward's views take the place of those that wrapping made.
void drop_viewed(Device& device, std::vector<ResidentBuffer>& buffers);

/// M5: FSDP1's root casts floating buffers once, at the first forward. False: out of memory.
bool cast_buffers(Device& device, std::vector<ResidentBuffer>& buffers, DType dtype);

}  // namespace foreshard
