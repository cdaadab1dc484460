// A unit's full parameters: gathered, shown to its modules, pointed back at the shard and freed (H8..H13, R1, R6, R7),
// the limiter (R22) and prefetch (P1..P4).
#pragma once

#include <vector>

#include "core/plan/fsdp1/run.h"

namespace foreshard::fsdp1 {

class Gathering {
 public:
  explicit Gathering(Run& run) : run_(run), out_(run.out) {}

  void lazy_init(UnitState& root);
  /// Of all roots: an action on the model itself.
  void lazy_init();
  bool full_precision_forced(const UnitState& u) const;
  bool needs_unshard(UnitState& u);
  autograd::NodeIndex accumulation(UnitState& u, Stream stream);
  void unshard(UnitState& u, Stream pre_stream, Stream stream);
  void reshard(UnitState& u, bool free_full, Stream stream);
  void free_full(UnitState& u, Stream stream);
  bool frees_in_backward(const UnitState& u) const;
  void prefetch_forward(UnitState& u);
  void prefetch_backward(UnitState& u, BackwardPrefetch when);
  /// R11: the unit is there for its backward, and the next one is asked for.
  void gather_for_backward(UnitState& u);
  /// R22: free events that nobody has waited for.
  std::vector<EventId> limiter_queue() const;

 private:
  void set_data(UnitState& u, DType dtype, bool on_host);
  void make_views(UnitState& u, Stream stream);
  bool write_back(UnitState& u, Stream stream);
  bool pre_unshard(UnitState& u, Stream stream);
  void show_saved_gradient(UnitState& u, Stream stream);
  void copy_from_host(UnitState& u, Stream stream, Numel numel);
  void drop_copy(UnitState& u, BufferWhat what);
  void leave_copies(UnitState& u);
  void cast_shard(UnitState& u, Stream stream, Numel numel);
  void drop_cast_shard(UnitState& u, Stream user);
  void limiter_check(const UnitState& u);
  void gather(UnitState& u, Stream stream);
  void use_full(UnitState& u, Stream stream, bool view_only);
  void use_shard(UnitState& u);

  Run& run_;
  InstructionWriter& out_;
};

/// H12: the shard of NO_SHARD is the flat parameter, so its original parameters are pointed at views made with grad.
void number_shard_views(autograd::Graph& autograd, const UnitState& u);

}  // namespace foreshard::fsdp1
