// Where the elements of parameters lie in one rank's shards, for ActionRunner: fsdp1's flat units and fsdp2's rows.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "core/plan/actions/state_dict.h"
#include "exec/checkpoint/train_state.h"

namespace foreshard::exec {

struct ParamHome {
  UnitId unit;       // invalid: managed by none
  bool own = false;  // a shard of its own (fsdp2)
};

class ActionLayout {
 public:
  explicit ActionLayout(const StateSource& source) : source_(source) {}

  Numel rank(const PlanUnit& unit) const { return source_.rank_in(unit); }  // in the group that shards it
  bool is_sharded(const PlanUnit& unit) const { return unit.strategy != Strategy::NoShard; }
  ParamHome place(ParamId param) const;
  const ShardedParam& sharded(ParamId param) const;
  const FlatEntry& entry(const PlanUnit& unit, ParamId param) const;
  std::string flat_key(const PlanUnit& unit) const;

  /// Elements of the whole parameter in this rank's shard; local_offset counts in the shard (pieces_in_home) or in a
  /// tensor of these pieces alone (pieces). A parameter that no unit manages is whole, but for what a mesh cuts.
  std::vector<StatePiece> pieces_in_home(ParamId param) const;
  std::vector<StatePiece> pieces(ParamId param) const;

  Shape whole_shape(ParamId param) const;
  /// This rank's part of a whole parameter that a mesh cuts; others as they are.
  at::Tensor own_part(ParamId param, const at::Tensor& whole) const;

  /// fsdp2: this rank's rows of its part into its padded shard, whose rest is left alone.
  void copy_rows(ParamId param, const at::Tensor& whole, const at::Tensor& shard) const;
  /// fsdp2: padded shards, rank after rank, put together to the whole along the sharded dimension.
  at::Tensor side_by_side(ParamId param, const at::Tensor& ranks) const;
  /// fsdp1's sharded kind: ceil(d0 / W) rows from this rank's place on (K1).
  at::Tensor chunk(ParamId param, const at::Tensor& whole) const;

 private:
  /// Of this rank's part of the parameter.
  std::vector<StatePiece> pieces_of_part(ParamId param) const;
  const Shape& shape(ParamId param) const { return source_.model.params[param.index()].shape; }

  StateSource source_;
};

}  // namespace foreshard::exec
