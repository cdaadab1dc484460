// Gradients of units: what pre-backward does with the old ones (H14, H15), reduction on G and H (R12, HS2),
// communication hooks (G5), and what the optimizer finds (R13, M4, C2).
#pragma once

#include <optional>

#include "core/plan/fsdp1/gathering.h"
#include "core/plan/fsdp1/run.h"

namespace foreshard::fsdp1 {

class Gradients {
 public:
  Gradients(Run& run, Gathering& gathering);

  void reset_flags(const UnitState& root);
  void drop(UnitState& u);
  void prepare(UnitState& u);
  void post_backward(UnitState& u, Stream stream);
  void finalise(UnitState& u);

 private:
  void reduce(UnitState& u);
  void reduce_unsharded(UnitState& u, BufferWhat computed);
  void show_unsharded(const UnitState& u, Stream stream);
  void keep_sharded(UnitState& u, Stream stream, BufferWhat output);
  BufferWhat final_buffer(const UnitState& u) const;
  void divide(Stream stream, const UnitState& u, double factor, Numel numel, DType dtype);

  // comm_hook.cpp
  bool compresses(const UnitState& u) const { return hook_dtype_ && *hook_dtype_ != u.grad_dtype; }
  BufferWhat compress(UnitState& u, Numel numel);
  BufferWhat compress_output(UnitState& u, BufferWhat output);
  void cast(UnitState& u, Stream stream, BufferWhat to, Numel numel, DType dtype);

  Run& run_;
  InstructionWriter& out_;
  Gathering& gathering_;
  std::optional<DType> hook_dtype_;  // what a compressing hook casts gradients to
  bool own_hook_ = false;            // a user's
};

/// Whether job.fsdp.comm_hook is a user's own ("own:NAME"), and what a compressing one casts to.
bool is_own_hook(const Job& job);
std::optional<DType> compressing_hook(const Job& job);

}  // namespace foreshard::fsdp1
