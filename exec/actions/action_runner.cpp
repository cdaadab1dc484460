#include "exec/actions/action_runner.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "exec/actions/action_context.h"
#include "exec/actions/action_copies.h"
#include "exec/actions/action_memory.h"
#include "exec/step/iteration_walk.h"
#include "exec/torch/torch_types.h"

namespace foreshard::exec {
namespace {

class Runner : public ActionRunner {
 public:
  explicit Runner(ActionSetup setup) : context_(std::move(setup)), memory_(context_), copies_(context_) {}

  void make_state(bool optimizer) override { memory_.make_state(optimizer); }
  void set_state(const TrainState& state) override { memory_.set_state(state); }
  TrainState state() const override { return memory_.state(); }
  void set_dict(StateDict dict) override { context_.dict = std::move(dict); }
  const StateDict& dict() const override { return context_.dict; }
  void on_shown(std::function<void(ParamId, at::Tensor)> visit) override { visit_ = std::move(visit); }

  Outcome<void> run(std::size_t index) override {
    iteration_ = &context_.setup.plan.iterations[index];
    context_.request = parse_actions(iteration_->actions.front())->front();
    if (!context_.request.kind_given && context_.setup.plan.runtime == Runtime::Fsdp2)
      context_.request.kind = StateKind::Sharded;
    shown_.clear();
    copies_.begin(*iteration_);
    // Everything is on one stream, so that nothing would overlap: each instruction is done before the next is issued,
    // and names mean the same to the issuer and to the stream's work.
    const auto step = static_cast<std::int32_t>(index);
    const auto one_by_one = [this](const Instruction& instruction, const Instruction*,
                                   InstructionId id) -> Outcome<void> {
      context_.id = id;
      execute(instruction);
      if (auto done = context_.setup.backend.synchronize(); !done) return done;
      show(instruction);
      return {};
    };
    const auto walked = walk_iteration(context_.setup.backend, *iteration_, step,
                                       first_instruction(context_.setup.plan, index), one_by_one);
    context_.id = {};
    if (!walked) return walked;
    if (context_.request.action == PlanAction::Save) collect();
    return {};
  }

 private:
  void execute(const Instruction& i) {
    switch (i.kind) {
      case InstructionKind::Alloc: memory_.allocate(i); break;
      case InstructionKind::Free:
        context_.buffers.release({i.buffer, i.arg, i.stream == Stream::Host}, context_.id);
        break;
      case InstructionKind::UseFull: shown_.push_back(i.buffer); break;
      default: copies_.issue(i);
    }
  }

  /// Inside summon, when all is there: to whoever asked for it.
  void show(const Instruction& i) {
    const bool is_inside = i.kind == InstructionKind::Mark && context_.setup.plan.name_of(i.name) == "summon_entered";
    if (!visit_ || context_.request.action != PlanAction::Summon || !is_inside) return;
    at::NoGradGuard no_grad;
    for (const BufferName& shown : shown_) {
      const bool offloaded = context_.has(shown, 0, true);
      if (!offloaded && !context_.has(shown)) continue;  // rank0_only: resharded at once
      show_flat(context_.unit_of(shown), context_.tensor(shown, 0, offloaded));
    }
    // What is whole anyway needs no unsharding.
    for (std::size_t u = 0; u < context_.units().size(); ++u) {
      const BufferName kept{BufferWhat::Shard, UnitId(u), {}};
      const bool entered = context_.request.recurse || context_.units()[u].name.empty();
      if (entered && !context_.layout.is_sharded(context_.units()[u]) && context_.has(kept))
        show_flat(context_.units()[u], context_.tensor(kept));
    }
    for (std::size_t p = 0; context_.request.recurse && p < context_.model().params.size(); ++p) {
      const BufferName plain{BufferWhat::Param, {}, ParamId(p)};
      if (!context_.layout.place(ParamId(p)).unit.valid() && context_.has(plain))
        visit_(ParamId(p), context_.tensor(plain).view(context_.shape(ParamId(p))));
    }
  }

  void show_flat(const PlanUnit& unit, const at::Tensor& full) const {
    for (const FlatEntry& entry : unit.flat) {
      if (!entry.param.valid()) continue;
      visit_(entry.param, full.narrow(0, entry.offset, entry.numel).view(context_.shape(entry.param)));
    }
  }

  void collect() {
    context_.dict.clear();
    std::size_t buffer = 0;
    for (const StateEntry& entry : model_state(context_.setup.source, context_.request)) {
      if (!entry.unit.valid() && !entry.param.valid()) {
        while (buffer < context_.model().buffers.size() && context_.model().buffers[buffer].fqn != entry.key) ++buffer;
        context_.dict[entry.key] = context_.setup.buffers.at(buffer);
      } else if (entry.held) {
        context_.dict[entry.key] = collected(entry);
      }
    }
    if (context_.request.optimizer) context_.optimizer.collect(context_.request, context_.dict);
  }

  at::Tensor collected(const StateEntry& entry) const {
    const Shape& local = entry.sharded ? entry.local : entry.shape;
    const ParamId param = entry.param.valid() ? context_.model().storage_of(entry.param) : ParamId();
    const BufferName copy{BufferWhat::StateCopy, entry.unit, param};
    for (const bool on_host : {true, false}) {
      if (context_.has(copy, 0, on_host))
        return context_.tensor(copy, 0, on_host).narrow(0, 0, numel_of(local)).view(local).clone();
    }
    if (param.valid() && context_.home_of(param).name.what == BufferWhat::Param) {
      return context_.buffers.tensor(context_.home_of(param)).view(local).clone();
    }
    const PlanUnit& unit = context_.units()[entry.unit.index()];
    if (numel_of(local) == 0 && param.valid()) {  // a mesh's chunk of no rows
      return at::empty(local, at::dtype(scalar_type_of(entry.dtype)));
    }
    if (!unit.sharded.empty()) {
      return context_.tensor({BufferWhat::Shard, entry.unit, param}).narrow(0, 0, numel_of(local)).view(local).clone();
    }
    const at::Tensor shard = context_.tensor({BufferWhat::Shard, entry.unit, {}});
    if (!param.valid()) return shard.narrow(0, 0, numel_of(local)).clone();  // no padding (K1)
    const auto pieces = context_.layout.pieces_in_home(param);
    if (pieces.empty()) return at::empty({0}, shard.options());
    return shard.narrow(0, pieces.front().local_offset, numel_of(local)).view(local).clone();
  }

  ActionContext context_;
  ActionMemory memory_;
  ActionCopies copies_;
  std::function<void(ParamId, at::Tensor)> visit_;
  const PlanIteration* iteration_ = nullptr;
  std::vector<BufferName> shown_;  // full parameters inside summon
};

/// fsdp2's full kind gathers what units shard; what no unit has lies on the mesh all the same.
const ParamInfo* cut_outside_units(const ActionSetup& setup, const ActionRequest& request) {
  const bool full = request.kind_given && request.kind == StateKind::Full;
  if (request.action != PlanAction::Save || setup.plan.runtime != Runtime::Fsdp2 || !full) return nullptr;
  const std::vector<ParamInfo>& params = setup.source.model.params;
  for (std::size_t p = 0; p < params.size(); ++p) {
    const ParamId owner = setup.source.model.storage_of(ParamId(p));
    if (params[p].part.dim >= 0 && !setup.source.table.unit_of_param[owner.index()].valid()) return &params[p];
  }
  return nullptr;
}

std::optional<Error> refused(const ActionSetup& setup) {
  const auto error = [](std::string place, std::string message, std::string got, std::string hint = "") {
    return Error{ErrorCode::Unsupported, std::move(message), "", std::move(place), "actions that `run` has",
                 std::move(got),         std::move(hint)};
  };
  for (const PlanIteration& iteration : setup.plan.iterations) {
    if (iteration.micro_batches > 0 || iteration.actions.size() != 1) {
      return error("summon", "gradients are not shown yet", "with_grads",
                   "plan and simulate take it; leave it out here");
    }
    const auto request = parse_actions(iteration.actions.front());
    if (!request) return request.error();
    const bool init = request->front().action == PlanAction::Init;
    if (setup.source.job.fsdp.cpu_offload && !init) {
      return error(iteration.actions.front(), "CPU offload is not run here yet", "fsdp.cpu_offload",
                   "plan and simulate take it; --set fsdp.cpu_offload=false");
    }
    if (const ParamInfo* outside = cut_outside_units(setup, request->front())) {
      return error(iteration.actions.front(), "what a mesh cuts and no unit manages is not gathered", outside->fqn,
                   "save:sharded takes it, or take it out of fsdp.ignored");
    }
    for (const Instruction& i : iteration.instructions) {
      if (i.stream != Stream::Host && i.stream != Stream::D) {
        return error(std::string(stream_name(i.stream)), "actions run on the compute stream", "");
      }
    }
  }
  return missing_communicator(setup.plan, setup.communicators);
}

}  // namespace

Result<std::unique_ptr<ActionRunner>> ActionRunner::create(ActionSetup setup) {
  if (auto error = refused(setup)) return fail(std::move(*error));
  return std::make_unique<Runner>(std::move(setup));
}

}  // namespace foreshard::exec
