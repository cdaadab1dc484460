// Streams and unshard: the all-gather of a unit, its copy-out, and giving the full parameters back (F2-2, F2-4..F2-10,
// F2-13).
//
//   C  +AGb(u) copy-in |
//   A                  `-> AG u |
//   D                           `-> +full(u), copy-out | compute u ... -full(u)
//
// Copy-in and all-gather run ahead of compute on C and A; only the copy-out is D's. In forward the buffer of the
// *previous* unit of its root is dropped at the end of this unit's copy-out, after C and A waited for that unit's
// copy-out (F2-8).
#pragma once

#include <optional>
#include <vector>

#include "core/plan/fsdp2/narrow_shards.h"
#include "core/plan/fsdp2/run.h"

namespace foreshard::fsdp2 {

class Gathering {
 public:
  explicit Gathering(Run& run) : run_(run), out_(run.out) {}

  void unshard(UnitState& u, bool async);
  void wait_for_unshard(UnitState& u);
  void reshard(UnitState& u);
  void prefetch(UnitState& target, TrainingState as);
  void to_sharded(UnitState& u);
  /// Scales of matrices that are gathered in 8 bits, made behind a step of the optimizer.
  void precompute_scales() { narrow_.precompute(); }
  void drop(UnitState& u, const PendingGather& gather);
  /// The last buffer of a root's forward, when C and A have waited.
  void drop_kept(UnitId waiter);

 private:
  void stage_shards(UnitState& u, Stream stream);
  void drop_stages(UnitState& u, Stream stream);
  void copy_shard(UnitState& u, ParamSizes& p, std::int32_t param_index);
  void drop_copy(const UnitState& u, const ParamSizes& p);
  void copy_out(UnitState& u);
  void allocate_full(UnitState& u, ParamSizes& p);
  void to_sharded_post_forward(UnitState& u);
  void streams_wait(EventId event, UnitId id);
  std::int32_t group_size(const UnitState& u) const;

  struct KeptGather {  // the all-gather buffer kept for the next unit's copy-out (F2-8)
    UnitId unit;
    PendingGather gather;
    EventId event;
  };
  /// That of the waiter's root, when C and A have waited.
  std::optional<KeptGather> take_kept(UnitId waiter);

  Run& run_;
  InstructionWriter& out_;
  NarrowShards narrow_{run_};
  std::vector<KeptGather> kept_;  // one of a root
};

}  // namespace foreshard::fsdp2
