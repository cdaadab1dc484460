// Gradients: copy-in, reduce-scatter, all-reduce, and where the sharded gradient ends up (F2-18, F2-20..F2-22, F2-26).
//
//   D  +rsin(u) chunk-cat -grads |
//   S                            `-> +rsout(u) (pre-divide) RS u >r (post-divide, cast, add or view, D2H) >p
//   H                                                        `-> AR u (hybrid: everything after >r is H's)
//
// At most one reduce-scatter input of a root lives: its next reduction waits for r and drops it (a schedule may allow
// more).
// Buffers made on S are used on H or D only after an event that somebody still holds, so nothing records streams
// (F2-10).
#pragma once

#include <optional>
#include <vector>

#include "core/plan/fsdp2/run.h"

namespace foreshard::fsdp2 {

class Reduction {
 public:
  explicit Reduction(Run& run) : run_(run), out_(run.out) {}

  Result<void> reduce(UnitState& u, std::vector<std::int32_t>& with_grad);
  bool to_accumulated(UnitState& u);
  /// Gradients that lie over the tensor dimension otherwise than their parameters (DTensor.redistribute), before the
  /// reshard: sums are completed, this rank's rows are taken out.
  void place_on_mesh(UnitState& u, const std::vector<std::int32_t>& with_grad);
  ParamSizes& gradient_of(ParamSizes& p);
  void offload(UnitState& u, std::int32_t param, Stream after, bool blocking);
  void accumulate_unsharded(UnitState& u);
  void wait_for_post_backward(UnitState& u);
  /// D waits for reduce-scatters of the waiter's root until at most `left` inputs of them are alive.
  void wait_for_last(UnitId waiter, std::size_t left = 0);
  /// `.grad = None` of all sharded gradients: an output of a reduction goes with the last view of it.
  void drop_sharded();

 private:
  struct Taken {
    Numel numel = 0;  // of the shards, padded
    std::optional<DType> dtype;
  };
  Result<Taken> take_grads(UnitState& u, const std::vector<std::int32_t>& with_grad);
  ReduceBuffer copy_in_grads(UnitState& u, const std::vector<std::int32_t>& with_grad, DType dtype, Numel input_numel);
  void release_last_grads(UnitState& u);
  void scatter(UnitState& u, Numel input_numel, DType dtype, const ReduceBuffer& output, ReduceOp op);
  void all_reduce(UnitState& u, Numel numel, DType dtype, const ReduceBuffer& output, ReduceOp op);
  void finish_output(UnitState& u, const std::vector<std::int32_t>& with_grad, ReduceBuffer output, Numel numel,
                     DType dtype, Stream after);
  void free_grad(const UnitState& u, ParamSizes& p);
  void free_taken(const UnitState& u, ParamSizes& p);
  void drop(ReduceBuffer& buffer);
  ReduceBuffer make_buffer(UnitState& u, BufferWhat what, Stream pool, Bytes bytes);
  void divide(Stream stream, UnitId id, Numel numel, DType dtype, double factor);

  Run& run_;
  InstructionWriter& out_;
  struct Running {
    EventId event;
    ReduceBuffer input;
  };
  std::vector<Running> running_;  // in the order of their reduce-scatters
  std::vector<ReduceBuffer> sharded_grads_;
  std::vector<std::int32_t> kept_last_;  // gradients that live until the reduction returns
};

}  // namespace foreshard::fsdp2
