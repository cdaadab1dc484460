#include "exec/run/plan_runner.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/model/mesh_dimension.h"
#include "exec/run/placed_units.h"
#include "exec/run/plan_runner_support.h"
#include "exec/run/segment_work.h"
#include "exec/step/iteration_walk.h"
#include "exec/units/trained_blocks.h"

namespace foreshard::exec {
namespace {

using Kind = InstructionKind;

/// The setup with what is trainable said for every parameter.
PlanRunnerSetup with_trainable(PlanRunnerSetup setup) {
  if (setup.trainable.empty()) {
    for (const ParamInfo& param : setup.model.params) setup.trainable.push_back(param.requires_grad);
  }
  return setup;
}

class Runner final : public PlanRunner {
 public:
  explicit Runner(PlanRunnerSetup setup)
      : setup_(with_trainable(std::move(setup))),
        context_(setup_.backend, setup_.plan, setup_.communicators),
        blocks_(context_, setup_.plan, setup_.optimizer, setup_.scaler, norms_beside(setup_.plan, setup_.model)),
        events_(static_cast<std::size_t>(last_event(setup_.plan)) + 1),
        units_(context_, setup_),
        mesh_(mesh_groups(setup_.model, setup_.plan, setup_.communicators)),
        work_(context_, setup_, units_, blocks_, mesh_) {
    blocks_.set_ranks_per_node(setup_.ranks_per_node);
    plan_ = prepare(setup_.plan);
  }

  Outcome<void> load(const OperatorInterpreter::ParamTensors& full_params) {
    for (UnitTensors* unit : units_.all()) unit->load(full_params);
    setup_.backend.launch(context_.on(Stream::D, {}),
                          [this] { count_held(MemoryCategory::Parameters, setup_.buffers); });
    auto done = setup_.backend.synchronize();
    blocks_.set_units(units_.all(), setup_.model);
    return done;
  }

  Outcome<StepResult> step(const std::vector<MicroBatch>& micro_batches, double lr) override {
    const std::size_t count = setup_.plan.iterations.size();
    if (steps_ >= count) shift_events();
    lr_ = lr;
    const std::size_t index = std::min(steps_++, count - 1);
    return run(*plan_, index, micro_batches);
  }

  Outcome<StepResult> evaluate(const Plan& plan, const std::vector<MicroBatch>& micro_batches) override {
    if (evaluated_ == nullptr || &evaluated_->plan != &plan) {
      evaluated_ = prepare(plan);
    }
    std::vector<Event> training = std::exchange(events_, std::vector<Event>(last_event(plan) + std::size_t{1}));
    auto result = run(*evaluated_, 0, micro_batches);
    events_ = std::move(training);
    for (UnitTensors* unit : units_.all()) unit->drop_gathered();
    return result;
  }

  Outcome<at::Tensor> clip_grad_norm(double max_norm, double p) override;

  at::Tensor shard(ParamId param) const override {
    const ParamPlace& place = units_.of(param);
    return place.unit->views()[static_cast<std::size_t>(place.index)].local;
  }

  Outcome<TrainState> state() override;
  TrainState gradients() const override { return blocks_.gradients(setup_.model, units_.by_param()); }
  void set_optimizer_steps(std::int64_t steps) override { blocks_.set_steps(steps); }
  void set_scaler(const ScalerState& state) override { blocks_.set_scaler(state); }

 private:
  std::unique_ptr<PreparedPlan> prepare(const Plan& plan) const {
    return std::make_unique<PreparedPlan>(plan, units_.of_segments(plan), meetings(setup_.model, plan, mesh_));
  }
  void shift_events();
  /// A recorder tells plans apart by their numbers: another plan's go on behind those of training.
  std::int32_t first_id(const PreparedPlan& prepared, std::size_t iteration) const {
    const std::size_t before = &prepared == plan_.get() ? 0 : setup_.plan.iterations.size();
    return first_instruction(setup_.plan, before) + first_instruction(prepared.plan, iteration);
  }

  Outcome<StepResult> run(const PreparedPlan& prepared, std::size_t index, const std::vector<MicroBatch>& inputs);
  Outcome<void> issue_all(const PreparedPlan& prepared, std::size_t index);
  Outcome<void> issue(const Instruction& instruction, const Instruction* next, InstructionId id);
  Outcome<void> host_wait(const Instruction& instruction, InstructionId id);
  void optimize(const Instruction& instruction, InstructionId id);
  void allocate(const Instruction& instruction, InstructionId id);
  void free(const Instruction& instruction, InstructionId id);
  void mark(const Instruction& instruction);
  void zero(const Instruction& instruction, InstructionId id);

  PlanRunnerSetup setup_;
  IssueContext context_;
  TrainedBlocks blocks_;
  std::vector<Event> events_;  // by EventId
  PlacedUnits units_;
  MeshGroups mesh_;
  SegmentWork work_;
  std::unique_ptr<PreparedPlan> plan_, evaluated_;
  const PreparedPlan* running_ = nullptr;
  std::size_t steps_ = 0;
  double lr_ = 0;
  bool skip_next_ = false;
  std::int32_t newest_clone_ = 0;  // BufferWhat::PostForwardShard
};

// The steady iteration runs again: what it knows as an event of the iteration before is one of its own last run.
void Runner::shift_events() {
  const auto shift = static_cast<std::size_t>(event_shift(setup_.plan));
  for (std::size_t e = 0; shift > 0 && e + shift < events_.size(); ++e) events_[e] = std::move(events_[e + shift]);
}

// ---------------------------------------------------------------- an iteration

Outcome<StepResult> Runner::run(const PreparedPlan& prepared, std::size_t index,
                                const std::vector<MicroBatch>& inputs) {
  running_ = &prepared;
  work_.begin(prepared, index, inputs, steps_);
  const Outcome<void> issued = issue_all(prepared, index);
  work_.let_inputs_go();
  setup_.backend.at_instruction(static_cast<std::int32_t>(steps_), {});
  const Outcome<void> done = setup_.backend.synchronize();
  if (!issued || !done) {
    Failure failure = !issued ? issued.error() : done.error();
    if (failure.instruction.valid()) failure.instruction.value -= first_id(prepared, 0);
    return tl::unexpected<Failure>(std::move(failure));
  }
  StepResult result;
  result.losses = work_.take_losses();
  const bool trains = &prepared == plan_.get();
  for (const double loss : result.losses) result.loss += loss * (trains ? work_.loss_factor() : work_.mean_factor());
  if (const at::Tensor norm = blocks_.take_norm(); norm.defined()) result.grad_norm = norm.item<double>();
  if (const std::optional<bool> skipped = blocks_.take_skipped()) {
    result.skipped = *skipped;
    result.loss_scale = blocks_.scaler().state().scale;
  }
  return result;
}

/// The instruction behind the frees of a clip: an all-reduce there completes the norm.
const Instruction* behind_frees(const PlanIteration& iteration, const Instruction& instruction) {
  const Instruction* const end = iteration.instructions.data() + iteration.instructions.size();
  const Instruction* next = &instruction + 1;
  while (next != end && next->kind == Kind::Free) ++next;
  return next == end ? nullptr : next;
}

Outcome<void> Runner::issue_all(const PreparedPlan& prepared, std::size_t index) {
  const PlanIteration& iteration = prepared.plan.iterations[index];
  const auto step = static_cast<std::int32_t>(steps_) - (&prepared == plan_.get() ? 1 : 0);
  const std::int32_t first = first_id(prepared, index);
  // fsdp1 manages no gradients but its own: those of ignored parameters go with the loop's zero_grad.
  if (prepared.plan.runtime == Runtime::Fsdp1 && !units_.plain().blocks().empty() &&
      std::find(iteration.actions.begin(), iteration.actions.end(), "zero") != iteration.actions.end()) {
    units_.plain().zero_gradients({}, InstructionId(first), setup_.plan.runtime != Runtime::Fsdp1);
  }
  skip_next_ = false;
  blocks_.begin_iteration();
  return walk_iteration(setup_.backend, iteration, step, first,
                        [this, &iteration](const auto& instruction, const auto* next, auto id) {
                          if (instruction.kind == Kind::Clip) next = behind_frees(iteration, instruction);
                          return std::exchange(skip_next_, false) ? Outcome<void>() : issue(instruction, next, id);
                        });
}

Outcome<void> Runner::issue(const Instruction& instruction, const Instruction* next, InstructionId id) {
  Backend& backend = setup_.backend;
  if (is_of_matrices(instruction)) return blocks_.optimize_matrices(instruction, id, lr_), Outcome<void>();
  switch (instruction.kind) {
    case Kind::WaitStream:
      if (instruction.stream == instruction.other) return {};  // void (R13)
      backend.wait_event(context_.on(instruction.stream, id), backend.record_event(context_.on(instruction.other, id)));
      return {};
    case Kind::RecordEvent:
    case Kind::LimiterPush:
      events_[instruction.event.index()] = backend.record_event(context_.on(instruction.stream, id));
      return {};
    case Kind::WaitEvent:
      backend.wait_event(context_.on(instruction.stream, id), events_[instruction.event.index()]);
      return {};
    case Kind::HostWait: return host_wait(instruction, id);
    case Kind::LimiterCheck: return {};
    case Kind::Alloc: allocate(instruction, id); return {};
    case Kind::Free: free(instruction, id); return {};
    case Kind::NoteUse: {
      const ParamPlace place = units_.of(instruction);
      const Buffer& used = place.unit->slot(instruction.buffer.what, place.index, instance_of(instruction));
      if (used.valid()) backend.note_use(context_.on(instruction.other, id), used);
      return {};
    }
    case Kind::Forward: work_.forward(instruction, id); return {};
    case Kind::Recompute: work_.recompute(instruction, id); return {};
    case Kind::Backward: work_.backward(instruction, id); return {};
    case Kind::Clip: blocks_.clip(instruction, next, id); return {};
    case Kind::OptimizerStep: optimize(instruction, id); return {};
    case Kind::Zero: zero(instruction, id); return {};
    case Kind::Mark: mark(instruction); return {};
    case Kind::AllReduce:
      if (instruction.buffer.what != BufferWhat::None) break;
      blocks_.reduce(instruction, next, id);
      return {};
    case Kind::ScaleLoss: work_.scale_loss(instruction, id); return {};
    case Kind::Unscale: blocks_.unscale(instruction, id); return {};
    case Kind::UpdateScale: blocks_.update_scale(instruction, id); return {};
    case Kind::D2h:
      if (instruction.buffer.what != BufferWhat::None) break;
      return blocks_.read_found(instruction, id);
    default: break;
  }
  const ParamPlace place = units_.of(instruction);
  // PyTorch's trace names a kernel before the memory that it brings with it.
  if (next != nullptr && next->kind == Kind::Alloc && next->buffer == instruction.buffer &&
      instruction.kind != Kind::Resize) {
    allocate(*next, InstructionId(id.value + 1));
    skip_next_ = true;
  }
  place.unit->issue(instruction, id, place.index);
  return {};
}

void Runner::optimize(const Instruction& instruction, InstructionId id) {
  if (!instruction.buffer.param.valid()) return blocks_.optimize(instruction, id, lr_);
  blocks_.optimize_param(instruction, id, lr_, units_.of(instruction));
}

Outcome<void> Runner::host_wait(const Instruction& instruction, InstructionId id) {
  if (instruction.event.valid()) return setup_.backend.host_wait(events_[instruction.event.index()]);
  if (instruction.other != Stream::Host) return context_.wait_for(instruction.other, id);
  return setup_.backend.synchronize();
}

void Runner::allocate(const Instruction& instruction, InstructionId id) {
  const ParamPlace place = units_.of(instruction);
  const BufferWhat what = instruction.buffer.what;
  if (what == BufferWhat::Shard) return;  // C1's pinned copy: an offloaded shard lies in the host's memory since load()
  Instruction placed = instruction;
  // F2-13: two take turns, in a repeated iteration perhaps the other way round.
  if (what == BufferWhat::PostForwardShard)
    newest_clone_ = placed.arg = place.unit->slot(what, place.index, 0).valid() ? 1 : 0;
  place.unit->slot(what, place.index, instance_of(placed)) =
      context_.allocate(instruction.stream, id, instruction.bytes, category_of(what));
  place.unit->allocated(placed, place.index);
}

void Runner::free(const Instruction& instruction, InstructionId id) {
  const ParamPlace place = units_.of(instruction);
  const BufferWhat what = instruction.buffer.what;
  std::int32_t instance = instance_of(instruction);
  if (what == BufferWhat::PostForwardShard) {  // the one that was there before the newest, or the only one
    instance = 1 - newest_clone_;
    if (!place.unit->slot(what, place.index, instance).valid()) instance = newest_clone_;
  }
  Buffer& buffer = place.unit->slot(what, place.index, instance);
  if (!buffer.valid()) return place.unit->freed_without_buffer(instruction, id, place.index);
  place.unit->freed(what, place.index, instance);
  setup_.backend.free(buffer, id);
  buffer = {};
}

void Runner::mark(const Instruction& instruction) {
  if (!instruction.buffer.param.valid()) return;
  const ParamPlace place = units_.of(instruction);
  if (instruction.name == running_->copy_in_grad) units_.joins_reduction(place);
  if (instruction.name == running_->grad && place.unit == &units_.plain()) {
    units_.plain().gradient_is_there(place.index);
  }
}

void Runner::zero(const Instruction& instruction, InstructionId id) {
  const bool to_zero = setup_.plan.runtime == Runtime::Fsdp1 || instruction.numel > 0;
  for (UnitTensors* unit : units_.units()) unit->zero_gradients(instruction, id, to_zero);
}

// ---------------------------------------------------------------- between steps

Outcome<at::Tensor> Runner::clip_grad_norm(double max_norm, double p) {
  Instruction reduce;
  reduce.kind = Kind::AllReduce;
  reduce.stream = Stream::D;
  reduce.reduce_op = std::isinf(p) ? ReduceOp::Max : ReduceOp::Sum;
  const bool sharded = std::ranges::any_of(units_.units(), [](const UnitTensors* u) { return !u->replicated(); });
  std::vector<Instruction> reductions{reduce};
  const std::vector<PlanCommunicator>& all = setup_.plan.communicators;
  for (std::size_t c = 0; c < all.size(); ++c) {
    const bool shards = sharded && all[c].kind == kShardDimension && all[c].ranks == setup_.plan.groups.shard;
    const bool along =
        std::any_of(setup_.model.mesh.begin(), setup_.model.mesh.end(), [&](const MeshDimension& dimension) {
          return stands_beside_fsdp(dimension) && dimension.ranks == all[c].ranks;
        });
    if (!shards && !along) continue;
    if (reductions.back().communicator.valid()) reductions.push_back(reduce);
    reductions.back().communicator = CommunicatorId(c);
  }
  return blocks_.clip_now(reductions, max_norm, p);
}

Outcome<TrainState> Runner::state() {
  auto state = blocks_.state(setup_.model, units_.by_param(), setup_.trainable);
  for (std::size_t b = 0; state && b < setup_.model.buffers.size() && b < setup_.buffers.size(); ++b) {
    const BufferInfo& info = setup_.model.buffers[b];
    if (!info.persistent) continue;
    state->tensors.push_back({info.fqn, "buffer", info.shape, setup_.buffers[b], {{0, 0, setup_.buffers[b].numel()}}});
  }
  return state;
}

Error missing_hook() {
  Error error;
  error.code = ErrorCode::Unsupported;
  error.place = "fsdp.comm_hook";
  error.message = "the plan calls a communication hook of your own, and none was brought";
  error.expected = "a hook of that name";
  error.hint = "`run --load LIBRARY` brings hooks, fsdp.comm_hook = \"none\" does without (docs/run.md)";
  return error;
}

}  // namespace

Result<std::unique_ptr<PlanRunner>> PlanRunner::create(PlanRunnerSetup setup,
                                                       const OperatorInterpreter::ParamTensors& full_params) {
  if (auto error = unsupported_instruction(setup.plan)) return fail(std::move(*error));
  if (auto error = missing_communicator(setup.plan, setup.communicators)) return fail(std::move(*error));
  if (auto error = missing_dimension(setup.model, setup.plan, setup.communicators)) return fail(std::move(*error));
  if (!setup.comm_hook && calls_own_hook(setup.plan)) return fail(missing_hook());
  auto runner = std::make_unique<Runner>(std::move(setup));
  if (const auto loaded = runner->load(full_params); !loaded) {
    Error error;
    error.message = "the parameters cannot be brought in: " + loaded.error().text;
    error.place = fmt::format("instruction {}, stream {}", loaded.error().instruction.value, loaded.error().stream);
    error.expected = "parameters of the model's shapes, and memory for them";
    return fail(std::move(error));
  }
  return runner;
}

}  // namespace foreshard::exec
