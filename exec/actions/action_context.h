// What the parts of ActionRunner work on: the memory by the plan's names, where parameters lie in it, the one stream,
// and the action that runs. Made by the runner, which owns it; the issuer's, but for what work reads.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "exec/actions/action_runner.h"
#include "exec/actions/action_runner_buffers.h"
#include "exec/actions/action_runner_layout.h"
#include "exec/actions/action_runner_optimizer.h"
#include "exec/communicators/in_process_communicator.h"

namespace foreshard::exec {

/// A gathered parameter of a unit, in either precision.
inline bool is_full(BufferWhat what) { return what == BufferWhat::Full || what == BufferWhat::FullPrecision; }

struct ActionContext {
  explicit ActionContext(ActionSetup of);
  ActionContext(const ActionContext&) = delete;
  ActionContext& operator=(const ActionContext&) = delete;

  const std::vector<PlanUnit>& units() const { return setup.plan.units; }
  const PlanUnit& unit_of(const BufferName& buffer) const { return units()[buffer.unit.index()]; }
  const Model& model() const { return setup.source.model; }
  const Shape& shape(ParamId param) const { return model().params[param.index()].shape; }

  at::Tensor tensor(const BufferName& name, std::int32_t instance = 0, bool on_host = false) const {
    return buffers.tensor({name, instance, on_host});
  }
  bool has(const BufferName& name, std::int32_t instance = 0, bool on_host = false) const {
    return buffers.has({name, instance, on_host});
  }
  ActionBuffer home_of(ParamId param) const;
  /// fsdp1: a unit's gathered parameters, in the precision that they have.
  BufferName full_of(UnitId unit) const;

  /// On the host: now, when the device is done with what came before.
  void work(bool on_host, Work what);
  void collective(const Instruction& i, CollectiveWork what);
  /// What was allocated outside the plan is there. Throws what a stream has failed of.
  void settle() const;
  /// A parameter's starting value into its buffer.
  void fill_param(const BufferName& buffer, bool on_host);
  /// This rank's part of it, where a mesh cuts it.
  at::Tensor initial(ParamId param) const { return setup.initial(param).contiguous().view({-1}); }

  ActionSetup setup;
  ActionLayout layout;
  StreamIndex stream;
  ActionBuffers buffers;
  ActionOptimizer optimizer;
  StateDict dict;         // what load reads, or save has returned
  ActionRequest request;  // of the action that runs
  InstructionId id;       // counted over all iterations; outside of them none

 private:
  const std::shared_ptr<Communicator> alone_ = in_process_communicators(1).front();  // a group that meets nobody
};

}  // namespace foreshard::exec
