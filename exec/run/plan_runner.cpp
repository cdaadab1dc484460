#include "exec/run/plan_runner.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "core/model/mesh_dimension.h"
#include "exec/host/counting_allocator.h"
#include "exec/operators/random_numbers.h"
#include "exec/run/plan_runner_support.h"
#include "exec/step/issue_context.h"
#include "exec/step/iteration_walk.h"
#include "exec/torch/torch_types.h"
#include "exec/units/flat_unit.h"
#include "exec/units/plain_tensors.h"
#include "exec/units/sharded_unit.h"
#include "exec/units/trained_blocks.h"

namespace foreshard::exec {
namespace {

using Kind = InstructionKind;

/// What the tensors hold, each storage once.
Bytes bytes_held(std::span<const at::Tensor> tensors) {
  std::vector<const void*> seen;
  Bytes bytes = 0;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || std::find(seen.begin(), seen.end(), tensor.storage().data()) != seen.end()) continue;
    seen.push_back(tensor.storage().data());
    bytes += static_cast<Bytes>(tensor.nbytes());
  }
  return bytes;
}

/// On a stream's thread: memory that nobody allocated through the backend.
void count_held(MemoryCategory category, Bytes change) {
  if (const auto& counter = OperatorMemory::current(); counter && change != 0) counter->changed(category, change);
}

/// What the streams work on during one iteration. Touched by work only, but for a reset between iterations.
struct IterationState {
  SegmentFrame frame;
  std::vector<SegmentGraph> graphs;  // by segment
  bool seeded = false;               // the loss has its gradient
  std::vector<at::Tensor> losses;    // by forward
  Bytes input_bytes = 0;             // of the micro-batches that have begun
};

/// What is worked out once for a plan that is run.
struct PreparedPlan {
  PreparedPlan(const Plan& of, std::vector<std::vector<UnitTensors*>> units,
               std::vector<std::shared_ptr<Communicator>> met)
      : plan(of), units_of_segment(std::move(units)), meets(std::move(met)) {
    for (const PlanIteration& iteration : of.iterations) roles.push_back(segment_roles(of, iteration));
    for (std::size_t n = 0; n < of.names.size(); ++n) {
      if (of.names[n] == "copy_in_grad") copy_in_grad = NameId(n);
      if (of.names[n] == "grad") grad = NameId(n);
    }
    first_op = std::numeric_limits<std::int32_t>::max();
    for (const Segment& segment : of.segments) first_op = std::min(first_op, segment.op_begin);
  }
  const Plan& plan;
  std::vector<std::vector<UnitTensors*>> units_of_segment;  // whose parameters it uses
  std::vector<std::shared_ptr<Communicator>> meets;         // by segment: whom its own operators meet
  std::vector<SegmentRoles> roles;                          // by iteration
  NameId copy_in_grad, grad;                                // marks
  std::int32_t first_op = 0;
};

class Runner final : public PlanRunner {
 public:
  explicit Runner(PlanRunnerSetup setup)
      : setup_(std::move(setup)),
        context_(setup_.backend, setup_.plan, setup_.communicators),
        blocks_(context_, setup_.plan, setup_.optimizer, setup_.scaler, norms_beside(setup_.plan, setup_.model)),
        events_(static_cast<std::size_t>(last_event(setup_.plan)) + 1),
        mesh_(mesh_groups(setup_.model, setup_.plan, setup_.communicators)) {
    if (setup_.trainable.empty()) {
      for (const ParamInfo& param : setup_.model.params) setup_.trainable.push_back(param.requires_grad);
    }
    blocks_.set_ranks_per_node(setup_.ranks_per_node);
    make_units();
    plan_ = prepare(setup_.plan);
  }

  Outcome<void> load(const OperatorInterpreter::ParamTensors& full_params) {
    for (UnitTensors* unit : all_) unit->load(full_params);
    setup_.backend.launch(context_.on(Stream::D, {}),
                          [this] { count_held(MemoryCategory::Parameters, bytes_held(setup_.buffers)); });
    auto done = setup_.backend.synchronize();
    blocks_.set_units(all_, setup_.model);
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
    for (UnitTensors* unit : all_) unit->drop_gathered();
    return result;
  }

  Outcome<at::Tensor> clip_grad_norm(double max_norm, double p) override;

  at::Tensor shard(ParamId param) const override {
    const Place& place = place_[param.index()];
    return place.unit->views()[static_cast<std::size_t>(place.index)].local;
  }

  Outcome<TrainState> state() override;
  TrainState gradients() const override { return blocks_.gradients(setup_.model, place_); }
  void set_optimizer_steps(std::int64_t steps) override { blocks_.set_steps(steps); }
  void set_scaler(const ScalerState& state) override { blocks_.set_scaler(state); }

 private:
  using Place = ParamPlace;

  void make_units();
  std::vector<std::vector<UnitTensors*>> units_of_segments(const Plan& plan) const;
  std::unique_ptr<PreparedPlan> prepare(const Plan& plan) const {
    return std::make_unique<PreparedPlan>(plan, units_of_segments(plan), meetings(setup_.model, plan, mesh_));
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
  Place place_of(const Instruction& instruction) const;

  /// Work of a segment, some of which may meet other ranks.
  void compute(const Instruction& instruction, InstructionId id, Work work) {
    const auto& met = running_->meets[instruction.segment.index()];
    if (met == nullptr) return context_.launch(instruction, id, {}, std::move(work));
    setup_.backend.collective(context_.on(instruction.stream, id), met,
                              [work = std::move(work)](Communicator&) { work(); });
  }
  void forward(const Instruction& instruction, InstructionId id);
  void recompute(const Instruction& instruction, InstructionId id);
  void backward(const Instruction& instruction, InstructionId id);
  void begin_micro_batch(InstructionId id);
  void scale_loss(const Instruction& instruction, InstructionId id);
  void seed_loss(bool scaled = false);
  double mean_factor() const { return 1.0 / static_cast<double>(inputs_->size()); }
  double loss_factor() const { return setup_.loss_factor.value_or(mean_factor()); }
  OperatorInterpreter::ParamTensors parameters() {
    return [this](ParamId param) {
      const Place& place = place_[param.index()];
      return place.unit->parameter(static_cast<std::size_t>(place.index));
    };
  }

  void zero(const Instruction& instruction, InstructionId id);

  PlanRunnerSetup setup_;
  IssueContext context_;
  TrainedBlocks blocks_;
  std::vector<std::unique_ptr<ShardedUnit>> sharded_;
  std::vector<std::unique_ptr<FlatUnit>> flat_;
  std::unique_ptr<PlainTensors> plain_;  // parameters of no unit
  std::vector<UnitTensors*> units_;      // by UnitId; empty without sharding
  std::vector<UnitTensors*> all_;        // units_, then plain_
  std::vector<Place> place_;             // by ParamId, every name
  std::vector<Event> events_;            // by EventId
  MeshGroups mesh_;
  std::unique_ptr<PreparedPlan> plan_, evaluated_;
  const PreparedPlan* running_ = nullptr;
  const SegmentRoles* roles_ = nullptr;
  const std::vector<MicroBatch>* inputs_ = nullptr;
  std::size_t forwards_ = 0;  // issued in this iteration
  std::size_t steps_ = 0;
  double lr_ = 0;
  bool skip_next_ = false;
  IterationState state_;
};

// ---------------------------------------------------------------- set-up

void Runner::make_units() {
  const Plan& plan = setup_.plan;
  const Model& model = setup_.model;
  place_.resize(model.params.size());
  for (std::size_t u = 0; u < plan.units.size() && plan.runtime != Runtime::None; ++u) {
    if (plan.runtime == Runtime::Fsdp1) {
      flat_.push_back(std::make_unique<FlatUnit>(context_, model, plan, UnitId(u), setup_.trainable, setup_.comm_hook));
      units_.push_back(flat_.back().get());
      if (setup_.optimizer.name == OptimizerKind::Adafactor) flat_.back()->keep_blocks_apart();
    } else {
      sharded_.push_back(std::make_unique<ShardedUnit>(context_, model, plan, UnitId(u), setup_.trainable));
      units_.push_back(sharded_.back().get());
    }
    for (std::size_t i = 0; i < plan.units[u].params.size(); ++i) {
      place_[plan.units[u].params[i].index()] = {units_.back(), static_cast<std::int32_t>(i)};
    }
  }
  for (const PlanUnit& unit : plan.units) {
    for (const SharedName& shared : unit.shared) {
      if (!units_.empty()) place_[shared.name.index()] = place_[shared.of.index()];
    }
  }
  std::vector<ParamId> rest;
  for (std::size_t p = 0; p < place_.size(); ++p) {
    const ParamId storage = model.storage_of(ParamId(p));
    if (place_[p].unit == nullptr && place_[storage.index()].unit != nullptr) place_[p] = place_[storage.index()];
    if (place_[p].unit == nullptr && storage.index() == p) rest.push_back(storage);
  }
  plain_ = std::make_unique<PlainTensors>(context_, model, rest, setup_.trainable);
  for (std::size_t i = 0; i < rest.size(); ++i) place_[rest[i].index()] = {plain_.get(), static_cast<std::int32_t>(i)};
  for (std::size_t p = 0; p < place_.size(); ++p) {
    const ParamId storage = model.storage_of(ParamId(p));
    if (place_[p].unit == nullptr) place_[p] = place_[storage.index()];
    if (place_[storage.index()].unit == nullptr) place_[storage.index()] = place_[p];
  }
  all_ = units_;
  all_.push_back(plain_.get());
}

std::vector<std::vector<UnitTensors*>> Runner::units_of_segments(const Plan& plan) const {
  std::vector<std::vector<UnitTensors*>> units(plan.segments.size());
  for (std::size_t s = 0; s < units.size(); ++s) {
    for (const ParamId param : plan.segments[s].params) {
      UnitTensors* unit = place_[param.index()].unit;
      if (std::find(units[s].begin(), units[s].end(), unit) == units[s].end()) units[s].push_back(unit);
    }
  }
  return units;
}

// The steady iteration runs again: what it knows as an event of the iteration before is one of its own last run.
void Runner::shift_events() {
  const auto shift = static_cast<std::size_t>(event_shift(setup_.plan));
  for (std::size_t e = 0; shift > 0 && e + shift < events_.size(); ++e) events_[e] = std::move(events_[e + shift]);
}

// ---------------------------------------------------------------- an iteration

Outcome<StepResult> Runner::run(const PreparedPlan& prepared, std::size_t index,
                                const std::vector<MicroBatch>& inputs) {
  running_ = &prepared;
  roles_ = &prepared.roles[index];
  FORESHARD_CHECK(inputs.size() == roles_->forward_grad.size(), "an iteration takes inputs for each of its forwards");
  inputs_ = &inputs;
  forwards_ = 0;
  state_ = {};
  state_.graphs.resize(prepared.plan.segments.size());
  const Outcome<void> issued = issue_all(prepared, index);
  // The batches are the caller's until the step is over.
  setup_.backend.launch(context_.on(Stream::D, {}),
                        [this] { count_held(MemoryCategory::Inputs, -state_.input_bytes); });
  setup_.backend.at_instruction(static_cast<std::int32_t>(steps_), {});
  const Outcome<void> done = setup_.backend.synchronize();
  if (!issued || !done) {
    Failure failure = !issued ? issued.error() : done.error();
    if (failure.instruction.valid()) failure.instruction.value -= first_id(prepared, 0);
    return tl::unexpected<Failure>(std::move(failure));
  }
  StepResult result;
  for (const at::Tensor& loss : state_.losses) result.losses.push_back(loss.item<double>());
  const bool trains = &prepared == plan_.get();
  for (const double loss : result.losses) result.loss += loss * (trains ? loss_factor() : mean_factor());
  if (const at::Tensor norm = blocks_.take_norm(); norm.defined()) result.grad_norm = norm.item<double>();
  if (const std::optional<bool> skipped = blocks_.take_skipped()) {
    result.skipped = *skipped;
    result.loss_scale = blocks_.scaler().state().scale;
  }
  state_ = {};
  return result;
}

Outcome<void> Runner::issue_all(const PreparedPlan& prepared, std::size_t index) {
  const PlanIteration& iteration = prepared.plan.iterations[index];
  const auto step = static_cast<std::int32_t>(steps_) - (&prepared == plan_.get() ? 1 : 0);
  const std::int32_t first = first_id(prepared, index);
  // fsdp1 manages no gradients but its own: those of ignored parameters go with the loop's zero_grad.
  if (prepared.plan.runtime == Runtime::Fsdp1 && !plain_->blocks().empty() &&
      std::find(iteration.actions.begin(), iteration.actions.end(), "zero") != iteration.actions.end()) {
    plain_->zero_gradients({}, InstructionId(first), setup_.plan.runtime != Runtime::Fsdp1);
  }
  skip_next_ = false;
  blocks_.begin_iteration();
  return walk_iteration(setup_.backend, iteration, step, first,
                        [this](const auto& instruction, const auto* next, auto id) {
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
      const Place place = place_of(instruction);
      const Buffer& used = place.unit->slot(instruction.buffer.what, place.index, instance_of(instruction));
      if (used.valid()) backend.note_use(context_.on(instruction.other, id), used);
      return {};
    }
    case Kind::Forward: forward(instruction, id); return {};
    case Kind::Recompute: recompute(instruction, id); return {};
    case Kind::Backward: backward(instruction, id); return {};
    case Kind::Clip: blocks_.clip(instruction, next, id); return {};
    case Kind::OptimizerStep: optimize(instruction, id); return {};
    case Kind::Zero: zero(instruction, id); return {};
    case Kind::Mark: mark(instruction); return {};
    case Kind::AllReduce:
      if (instruction.buffer.what != BufferWhat::None) break;
      blocks_.reduce(instruction, next, id);
      return {};
    case Kind::ScaleLoss: scale_loss(instruction, id); return {};
    case Kind::Unscale: blocks_.unscale(instruction, id); return {};
    case Kind::UpdateScale: blocks_.update_scale(instruction, id); return {};
    case Kind::D2h:
      if (instruction.buffer.what != BufferWhat::None) break;
      return blocks_.read_found(instruction, id);
    default: break;
  }
  const Place place = place_of(instruction);
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
  blocks_.optimize_param(instruction, id, lr_, place_of(instruction));
}

Outcome<void> Runner::host_wait(const Instruction& instruction, InstructionId id) {
  if (instruction.event.valid()) return setup_.backend.host_wait(events_[instruction.event.index()]);
  if (instruction.other != Stream::Host) return context_.wait_for(instruction.other, id);
  return setup_.backend.synchronize();
}

Runner::Place Runner::place_of(const Instruction& instruction) const {
  if (instruction.buffer.param.valid()) return place_[instruction.buffer.param.index()];
  const UnitId unit = instruction.buffer.unit.valid() ? instruction.buffer.unit : instruction.unit;
  const bool plain = units_.empty() || !unit.valid();
  return {plain ? static_cast<UnitTensors*>(plain_.get()) : units_[unit.index()], -1};
}

void Runner::allocate(const Instruction& instruction, InstructionId id) {
  const Place place = place_of(instruction);
  const BufferWhat what = instruction.buffer.what;
  if (what == BufferWhat::Shard) return;  // C1's pinned copy: an offloaded shard lies in the host's memory since load()
  place.unit->slot(what, place.index, instance_of(instruction)) =
      context_.allocate(instruction.stream, id, instruction.bytes, category_of(what));
  place.unit->allocated(instruction, place.index);
}

void Runner::free(const Instruction& instruction, InstructionId id) {
  const Place place = place_of(instruction);
  const BufferWhat what = instruction.buffer.what;
  std::int32_t instance = instance_of(instruction);
  // A clone left over from an earlier forward has taken the other number (F2-13).
  if (what == BufferWhat::PostForwardShard && !place.unit->slot(what, place.index, instance).valid()) {
    instance = 1 - instance;
  }
  Buffer& buffer = place.unit->slot(what, place.index, instance);
  if (!buffer.valid()) return place.unit->freed_without_buffer(instruction, id, place.index);
  place.unit->freed(what, place.index, instance);
  setup_.backend.free(buffer, id);
  buffer = {};
}

void Runner::mark(const Instruction& instruction) {
  if (!instruction.buffer.param.valid()) return;
  const Place place = place_of(instruction);
  if (instruction.name == running_->copy_in_grad && place.unit != plain_.get()) {
    static_cast<ShardedUnit*>(place.unit)->joins_reduction(place.index);
  }
  if (instruction.name == running_->grad && place.unit == plain_.get()) plain_->gradient_is_there(place.index);
}

// ---------------------------------------------------------------- compute

void Runner::begin_micro_batch(InstructionId id) {
  const std::size_t number = forwards_++;
  const PlanUnit& root = running_->plan.units.front();
  std::optional<DType> to;
  if (!units_.empty() && root.param_dtype != root.orig_dtype) to = root.param_dtype;
  if (setup_.input_dtype) to = *setup_.input_dtype;
  const std::uint64_t seed = mix_seed(setup_.seed, {steps_, number, static_cast<std::uint64_t>(setup_.plan.rank)});
  setup_.backend.launch(context_.on(Stream::D, id), [this, inputs = (*inputs_)[number], seed, to,
                                                     training = roles_->forward_training[number]]() mutable {
    const Bytes held = bytes_held(inputs);
    count_held(MemoryCategory::Inputs, held);
    state_.input_bytes += held;
    for (at::Tensor& input : inputs) {
      if (to && input.is_floating_point()) input = input.to(scalar_type_of(*to));
    }
    state_.frame = setup_.interpreter.begin(std::move(inputs), seed);
    state_.frame.training = training;
    state_.frame.mesh = mesh_;
    state_.seeded = false;
  });
}

void Runner::forward(const Instruction& instruction, InstructionId id) {
  const Segment& segment = running_->plan.segments[instruction.segment.index()];
  const std::size_t at = instruction.segment.index();
  if (segment.op_begin == running_->first_op) begin_micro_batch(id);
  for (UnitTensors* unit : running_->units_of_segment[at]) unit->before_segment(id);
  const bool grad = forwards_ == 0 || roles_->forward_grad[forwards_ - 1];
  const bool last = segment.op_end == static_cast<std::int32_t>(setup_.model.ops.size());
  compute(instruction, id,
          [this, &segment, at, grad, last, recomputed = roles_->recomputed[at], region = roles_->region[at]] {
            c10::AutoGradMode mode(grad);
            const MemoryScope memory(MemoryCategory::Temporaries, MemoryCategory::Activations);
            if (grad && recomputed) {
              setup_.interpreter.forward_checkpointed(segment.op_begin, segment.op_end, state_.frame, parameters(),
                                                      setup_.buffers, region);
            } else {
              state_.graphs[at] = setup_.interpreter.forward(segment.op_begin, segment.op_end, state_.frame,
                                                             parameters(), setup_.buffers);
            }
            // As `loss = model(...).loss` does: whatever else the model returns is let go.
            for (std::size_t o = 1; last && o < setup_.model.outputs.size(); ++o) {
              state_.frame.values[setup_.model.outputs[o].index()] = at::Tensor();
            }
            if (last && !grad) seed_loss();
          });
}

void Runner::recompute(const Instruction& instruction, InstructionId id) {
  const Segment& segment = running_->plan.segments[instruction.segment.index()];
  const std::size_t at = instruction.segment.index();
  for (UnitTensors* unit : running_->units_of_segment[at]) unit->before_segment(id);
  compute(instruction, id, [this, &segment, at, region = roles_->region[at]] {
    const MemoryScope memory(MemoryCategory::Temporaries, MemoryCategory::Activations);
    if (!state_.seeded) seed_loss();
    state_.graphs[at] = setup_.interpreter.recompute(segment.op_begin, segment.op_end, state_.frame, parameters(),
                                                     setup_.buffers, region);
  });
}

void Runner::backward(const Instruction& instruction, InstructionId id) {
  const std::size_t at = instruction.segment.index();
  for (UnitTensors* unit : running_->units_of_segment[at]) unit->before_segment(id);
  compute(instruction, id, [this, at] {
    const MemoryScope memory(MemoryCategory::Temporaries, MemoryCategory::ActivationGradients);
    if (!state_.seeded) seed_loss();
    if (!state_.graphs[at].valid()) return;
    setup_.interpreter.backward(std::exchange(state_.graphs[at], {}), state_.frame,
                                [this](ParamId param, at::Tensor gradient) {
                                  const Place& place = place_[param.index()];
                                  claim(gradient, MemoryCategory::Gradients);
                                  place.unit->take_gradient(static_cast<std::size_t>(place.index), std::move(gradient));
                                });
  });
}

void Runner::scale_loss(const Instruction& instruction, InstructionId id) {
  context_.launch(instruction, id, {}, [this] {
    if (!state_.seeded) seed_loss(blocks_.scaler().enabled());
  });
}

/// The loss is the first output, or its sum; its gradient begins backward: in the loss's type, so that a large scale
/// overflows where PyTorch's does.
void Runner::seed_loss(bool scaled) {
  const std::size_t output = setup_.model.outputs.front().index();
  const at::Tensor value = std::exchange(state_.frame.values[output], at::Tensor());
  const at::Tensor loss = value.dim() == 0 ? value.detach() : value.detach().to(at::kFloat).sum();
  state_.losses.push_back(loss);
  const double factor = loss_factor();
  at::Tensor& gradient = state_.frame.grads[output];
  gradient = at::full_like(value, factor, at::dtype(value.scalar_type()).requires_grad(false));
  if (scaled) gradient.mul_(blocks_.scaler().scale(value.device()).to(value.scalar_type()));
  state_.seeded = true;
}

void Runner::zero(const Instruction& instruction, InstructionId id) {
  const bool to_zero = setup_.plan.runtime == Runtime::Fsdp1 || instruction.numel > 0;
  for (UnitTensors* unit : units_) unit->zero_gradients(instruction, id, to_zero);
}

// ---------------------------------------------------------------- between steps

Outcome<at::Tensor> Runner::clip_grad_norm(double max_norm, double p) {
  Instruction reduce;
  reduce.kind = Kind::AllReduce;
  reduce.stream = Stream::D;
  reduce.reduce_op = std::isinf(p) ? ReduceOp::Max : ReduceOp::Sum;
  const bool sharded = std::any_of(units_.begin(), units_.end(), [](const UnitTensors* u) { return !u->replicated(); });
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
  auto state = blocks_.state(setup_.model, place_, setup_.trainable);
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
