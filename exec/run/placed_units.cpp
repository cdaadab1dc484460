#include "exec/run/placed_units.h"

#include <algorithm>

namespace foreshard::exec {

PlacedUnits::PlacedUnits(const IssueContext& context, const PlanRunnerSetup& setup) {
  const Model& model = setup.model;
  make(context, setup);
  by_param_.resize(model.params.size());
  place(setup.plan);
  std::vector<ParamId> rest;
  for (std::size_t p = 0; p < by_param_.size(); ++p) {
    const ParamId storage = model.storage_of(ParamId(p));
    if (by_param_[p].unit == nullptr && of(storage).unit != nullptr) by_param_[p] = of(storage);
    if (by_param_[p].unit == nullptr && storage.index() == p) rest.push_back(storage);
  }
  plain_ = std::make_unique<PlainTensors>(context, model, rest, setup.trainable, units_.empty());
  for (std::size_t i = 0; i < rest.size(); ++i) {
    by_param_[rest[i].index()] = {plain_.get(), static_cast<std::int32_t>(i)};
  }
  for (std::size_t p = 0; p < by_param_.size(); ++p) {
    const ParamId storage = model.storage_of(ParamId(p));
    if (by_param_[p].unit == nullptr) by_param_[p] = of(storage);
    if (of(storage).unit == nullptr) by_param_[storage.index()] = by_param_[p];
  }
  all_ = units_;
  all_.push_back(plain_.get());
}

void PlacedUnits::make(const IssueContext& context, const PlanRunnerSetup& setup) {
  const Plan& plan = setup.plan;
  for (std::size_t u = 0; u < plan.units.size() && plan.runtime != Runtime::None; ++u) {
    if (plan.runtime == Runtime::Fsdp1) {
      flat_.push_back(
          std::make_unique<FlatUnit>(context, setup.model, plan, UnitId(u), setup.trainable, setup.comm_hook));
      units_.push_back(flat_.back().get());
      if (setup.optimizer.name == OptimizerKind::Adafactor) flat_.back()->keep_blocks_apart();
    } else {
      sharded_.push_back(std::make_unique<ShardedUnit>(context, setup.model, plan, UnitId(u), setup.trainable));
      units_.push_back(sharded_.back().get());
    }
  }
}

/// Of the units alone; shared names where what they share lies.
void PlacedUnits::place(const Plan& plan) {
  if (units_.empty()) return;
  for (std::size_t u = 0; u < units_.size(); ++u) {
    for (std::size_t i = 0; i < plan.units[u].params.size(); ++i) {
      by_param_[plan.units[u].params[i].index()] = {units_[u], static_cast<std::int32_t>(i)};
    }
  }
  for (const PlanUnit& unit : plan.units) {
    for (const SharedName& shared : unit.shared) by_param_[shared.name.index()] = of(shared.of);
  }
}

ParamPlace PlacedUnits::of(const Instruction& instruction) const {
  if (instruction.buffer.param.valid()) return of(instruction.buffer.param);
  const UnitId unit = instruction.buffer.unit.valid() ? instruction.buffer.unit : instruction.unit;
  const bool plain = units_.empty() || !unit.valid();
  return {plain ? static_cast<UnitTensors*>(plain_.get()) : units_[unit.index()], -1};
}

std::vector<std::vector<UnitTensors*>> PlacedUnits::of_segments(const Plan& plan) const {
  std::vector<std::vector<UnitTensors*>> units(plan.segments.size());
  for (std::size_t s = 0; s < units.size(); ++s) {
    for (const ParamId param : plan.segments[s].params) {
      UnitTensors* unit = of(param).unit;
      if (std::find(units[s].begin(), units[s].end(), unit) == units[s].end()) units[s].push_back(unit);
    }
  }
  return units;
}

OperatorInterpreter::ParamTensors PlacedUnits::parameters() const {
  return [this](ParamId param) {
    const ParamPlace& place = of(param);
    return place.unit->parameter(static_cast<std::size_t>(place.index));
  };
}

void PlacedUnits::joins_reduction(const ParamPlace& place) const {
  if (place.unit != plain_.get()) static_cast<ShardedUnit*>(place.unit)->joins_reduction(place.index);
}

}  // namespace foreshard::exec
