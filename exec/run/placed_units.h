// Where a rank's parameters live: the tensors of the plan's units, flat or sharded, and of the parameters of no unit.
//
// Made once by a runner, which owns it, before anything is issued; the issuer's, but for what UnitTensors gives to
// work.
#pragma once

#include <memory>
#include <vector>

#include "core/model/model.h"
#include "core/plan.h"
#include "exec/run/plan_runner.h"
#include "exec/step/issue_context.h"
#include "exec/units/flat_unit.h"
#include "exec/units/plain_tensors.h"
#include "exec/units/sharded_unit.h"

namespace foreshard::exec {

class PlacedUnits {
 public:
  /// `setup`, with what is trainable, and `context` outlive it.
  PlacedUnits(const IssueContext& context, const PlanRunnerSetup& setup);

  const std::vector<UnitTensors*>& units() const { return units_; }      // by UnitId; empty without sharding
  const std::vector<UnitTensors*>& all() const { return all_; }          // units(), then the parameters of no unit
  const std::vector<ParamPlace>& by_param() const { return by_param_; }  // every name
  PlainTensors& plain() const { return *plain_; }                        // parameters of no unit

  const ParamPlace& of(ParamId param) const { return by_param_[param.index()]; }
  ParamPlace of(const Instruction& instruction) const;
  /// By segment of a plan of the same units: whose parameters it uses.
  std::vector<std::vector<UnitTensors*>> of_segments(const Plan& plan) const;
  /// Inside work, on the compute stream.
  OperatorInterpreter::ParamTensors parameters() const;
  /// A parameter's gradient goes into the copy that is reduced next.
  void joins_reduction(const ParamPlace& place) const;

 private:
  void make(const IssueContext& context, const PlanRunnerSetup& setup);
  void place(const Plan& plan);

  std::vector<std::unique_ptr<ShardedUnit>> sharded_;
  std::vector<std::unique_ptr<FlatUnit>> flat_;
  std::unique_ptr<PlainTensors> plain_;
  std::vector<UnitTensors*> units_, all_;
  std::vector<ParamPlace> by_param_;
};

}  // namespace foreshard::exec
