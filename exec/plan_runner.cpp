#include "exec/plan_runner.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <tuple>
#include <utility>

#include "exec/optimizer.h"
#include "exec/plan_runner_support.h"
#include "exec/sharded_unit.h"
#include "exec/torch_types.h"

namespace foreshard::exec {
namespace {

using Kind = InstructionKind;
/// The number tells the reduce-scatter outputs of several micro-batches apart.
using BufferKey = std::tuple<BufferWhat, UnitId, ParamId, std::int32_t>;

MemoryCategory category_of(BufferWhat what) {
  switch (what) {
    case BufferWhat::Full: return MemoryCategory::FullParameters;
    case BufferWhat::RsOutput: return MemoryCategory::Gradients;
    default: return MemoryCategory::ReduceBuffers;
  }
}

/// What the streams work on during one step. Touched by work only, but for reset() between steps.
struct StepState {
  std::vector<std::vector<at::Tensor>> inputs;
  std::size_t micro_batch = 0;  // the next one to begin
  SegmentFrame frame;
  std::vector<SegmentGraph> graphs;  // by segment
  bool seeded = false;               // the loss has its gradient
  double loss = 0;
  at::Tensor norms;  // one sum of squares per parameter, until reduced
  std::optional<double> grad_norm;
};

class Fsdp2Runner final : public PlanRunner {
 public:
  Fsdp2Runner(PlanRunnerSetup setup) : setup_(std::move(setup)), optimizer_(setup_.optimizer) {
    streams_[static_cast<std::size_t>(Stream::D)] = setup_.backend.create_stream("D", 0);
    for (const StreamInfo& info : setup_.plan.streams) {
      streams_[static_cast<std::size_t>(info.stream)] =
          setup_.backend.create_stream(stream_name(info.stream), info.priority);
    }
    place_.resize(setup_.model.params.size());
    for (const PlanUnit& unit : setup_.plan.units) {
      units_.emplace_back(setup_.model, unit, setup_.plan.rank, setup_.plan.world_size);
      for (std::size_t i = 0; i < unit.sharded.size(); ++i) {
        place_[unit.sharded[i].param.index()] = {units_.size() - 1, i};
      }
    }
    state_.graphs.resize(setup_.plan.segments.size());
  }

  Outcome<void> load(const OperatorInterpreter::ParamTensors& full_params) {
    for (ShardedUnit& unit : units_) {
      for (std::size_t i = 0; i < unit.tensors().size(); ++i) {
        const Bytes bytes = unit.tensors()[i].padded_numel * itemsize(unit.dtype());
        const Buffer memory = setup_.backend.allocate(on(Stream::D, {}), bytes, MemoryCategory::Parameters);
        setup_.backend.launch(on(Stream::D, {}), [&unit, i, memory, whole = full_params(unit.tensors()[i].id)] {
          unit.load_shard(i, memory.data(), whole);
        });
        resident_.push_back(memory);
      }
    }
    return setup_.backend.synchronize();
  }

  Outcome<StepResult> step(const std::vector<std::vector<at::Tensor>>& micro_batches, double lr) override {
    const std::size_t index = std::min(steps_, setup_.plan.iterations.size() - 1);
    const PlanIteration& iteration = setup_.plan.iterations[index];
    FORESHARD_CHECK(micro_batches.size() == static_cast<std::size_t>(iteration.micro_batches),
                    "a step takes the inputs of all of its micro-batches");
    state_.inputs = micro_batches;
    state_.micro_batch = 0;
    state_.loss = 0;
    state_.grad_norm.reset();
    lr_ = lr;
    ++steps_;
    std::int32_t id = first_instruction(setup_.plan, index);
    for (const Instruction& instruction : iteration.instructions) issue(instruction, InstructionId(id++));
    if (auto done = setup_.backend.synchronize(); !done) return tl::unexpected<Failure>(done.error());
    return StepResult{state_.loss / iteration.micro_batches, state_.grad_norm};
  }

  at::Tensor shard(ParamId param) const override {
    const auto [unit, index] = place_[setup_.model.storage_of(param).index()];
    return const_cast<ShardedUnit&>(units_[unit]).tensors()[index].shard;
  }

 private:
  struct Place {
    std::size_t unit = 0, index = 0;
  };

  StreamIndex stream(Stream letter) const { return streams_[static_cast<std::size_t>(letter)]; }
  Issue on(Stream letter, InstructionId id, std::span<const Buffer> uses = {}) const {
    return {stream(letter), id, uses};
  }
  static BufferKey key_of(const Instruction& instruction) {
    const BufferName& name = instruction.buffer;
    return {name.what, name.unit, name.param, name.what == BufferWhat::RsOutput ? instruction.arg : 0};
  }
  const Buffer& buffer(BufferWhat what, UnitId unit, std::int32_t number = 0) const {
    return buffers_.at({what, unit, ParamId(), number});
  }
  ShardedUnit& unit_of(const Instruction& instruction) { return units_[instruction.unit.index()]; }
  ShardedTensor& tensor_of(ParamId param) {
    const Place place = place_[param.index()];
    return units_[place.unit].tensors()[place.index];
  }
  const std::shared_ptr<Communicator>& communicator(Stream letter) const { return setup_.communicators.at(letter); }

  void issue(const Instruction& instruction, InstructionId id) {
    switch (instruction.kind) {
      case Kind::WaitStream:
        return setup_.backend.wait_event(on(instruction.stream, id),
                                         setup_.backend.record_event(on(instruction.other, id)));
      case Kind::RecordEvent:
        events_[instruction.event] = setup_.backend.record_event(on(instruction.stream, id));
        return;
      case Kind::WaitEvent: return setup_.backend.wait_event(on(instruction.stream, id), events_.at(instruction.event));
      case Kind::Alloc: return allocate(instruction, id);
      case Kind::Resize: return instruction.bytes > 0 ? attach(instruction, id) : detach(instruction, id);
      case Kind::Free: return free(instruction, id);
      case Kind::Cast: return cast(instruction, id);
      case Kind::Add: return add(instruction, id);
      case Kind::Accumulate:  // the sum itself was made where backward returned the gradient
        return setup_.backend.launch(on(instruction.stream, id),
                                     [&tensor = tensor_of(instruction.buffer.param)] { tensor.absorbed = true; });
      case Kind::CopyIn: return copy_in(instruction, id);
      case Kind::CopyOut: return copy_out(instruction, id);
      case Kind::AllGather: return all_gather(instruction, id);
      case Kind::ReduceScatter: return reduce_scatter(instruction, id);
      case Kind::Forward: return forward(instruction, id);
      case Kind::Backward: return backward(instruction, id);
      case Kind::Clip: return clip(instruction, id);
      case Kind::AllReduce: return reduce_norms(instruction, id);
      case Kind::OptimizerStep: return optimize(instruction, id);
      case Kind::Mark:
        if (setup_.plan.name_of(instruction.name) == "micro_batch") begin_micro_batch(id);
        return;
      default: return;  // zero: the gradients' memory has its own frees; the rest was refused by create()
    }
  }

  void allocate(const Instruction& instruction, InstructionId id) {
    if (instruction.buffer.what == BufferWhat::AccumulatedGrad) return;  // its cast, which stands before, has made it
    buffers_[key_of(instruction)] =
        setup_.backend.allocate(on(instruction.stream, id), instruction.bytes, category_of(instruction.buffer.what));
  }

  void attach(const Instruction& instruction, InstructionId id) {
    allocate(instruction, id);
    setup_.backend.launch(
        on(instruction.stream, id),
        [&tensor = tensor_of(instruction.buffer.param), bytes = instruction.bytes,
         memory = buffers_[key_of(instruction)]] { ShardedUnit::attach_full(tensor, memory.data(), bytes); });
  }

  void detach(const Instruction& instruction, InstructionId id) {
    const auto found = buffers_.find(key_of(instruction));
    if (found == buffers_.end()) return;  // already empty
    setup_.backend.launch(on(instruction.stream, id),
                          [&tensor = tensor_of(instruction.buffer.param)] { ShardedUnit::detach_full(tensor); });
    setup_.backend.free(found->second, id);
    buffers_.erase(found);
  }

  void cast(const Instruction& instruction, InstructionId id) {
    if (instruction.buffer.what == BufferWhat::CastBuffer) {
      const Buffer to = buffers_.at(key_of(instruction));
      return setup_.backend.launch(on(instruction.stream, id, {&to, 1}),
                                   [&unit = unit_of(instruction), to] { unit.cast_shards(to.data()); });
    }
    const Buffer to = buffers_[key_of(instruction)] =
        setup_.backend.allocate(on(instruction.stream, id), instruction.bytes, MemoryCategory::Gradients);
    setup_.backend.launch(on(instruction.stream, id),
                          [&tensor = tensor_of(instruction.buffer.param), to, dtype = instruction.dtype] {
                            tensor.accumulated = tensor_over(to.data(), tensor.gradient.sizes().vec(), dtype);
                            tensor.accumulated.copy_(tensor.gradient);
                          });
  }

  void add(const Instruction& instruction, InstructionId id) {
    const Place place = place_[instruction.buffer.param.index()];
    if (instruction.buffer.what == BufferWhat::AccumulatedGrad) {
      return setup_.backend.launch(on(instruction.stream, id), [&tensor = tensor_of(instruction.buffer.param)] {
        at::NoGradGuard no_grad;
        tensor.accumulated.add_(tensor.gradient);
      });
    }
    // The sharded gradient so far, and the newest reduce-scatter's.
    const std::vector<std::pair<BufferKey, Buffer>> outputs = reduce_outputs(UnitId(place.unit));
    const std::array<Buffer, 2> uses = {outputs.front().second, outputs.back().second};
    setup_.backend.launch(on(instruction.stream, id, uses), [&unit = units_[place.unit], uses, index = place.index] {
      at::NoGradGuard no_grad;
      unit.sharded_gradient(index, uses[0].data()).add_(unit.sharded_gradient(index, uses[1].data()));
    });
  }

  /// The unit's reduce-scatter outputs that the plan has not freed, oldest first.
  std::vector<std::pair<BufferKey, Buffer>> reduce_outputs(UnitId unit) const {
    const auto first = buffers_.lower_bound({BufferWhat::RsOutput, unit, ParamId(), 0});
    auto last = first;
    while (last != buffers_.end() && std::get<0>(last->first) == BufferWhat::RsOutput &&
           std::get<1>(last->first) == unit) {
      ++last;
    }
    return {first, last};
  }

  void free(const Instruction& instruction, InstructionId id) {
    if (instruction.buffer.what == BufferWhat::Grad) {  // made by autograd: goes where it was made
      return setup_.backend.launch(on(instruction.stream, id), [&tensor = tensor_of(instruction.buffer.param)] {
        if (!std::exchange(tensor.absorbed, false)) tensor.gradient = at::Tensor();
      });
    }
    if (instruction.buffer.what == BufferWhat::AccumulatedGrad) {
      setup_.backend.launch(on(instruction.stream, id),
                            [&tensor = tensor_of(instruction.buffer.param)] { tensor.accumulated = at::Tensor(); });
    }
    const auto found = buffers_.find(key_of(instruction));
    setup_.backend.free(found->second, id);
    buffers_.erase(found);
  }

  void copy_in(const Instruction& instruction, InstructionId id) {
    const Buffer to = buffers_.at(key_of(instruction));
    ShardedUnit& unit = unit_of(instruction);
    if (instruction.buffer.what == BufferWhat::RsInput) {
      return setup_.backend.launch(on(instruction.stream, id, {&to, 1}),
                                   [&unit, to] { unit.copy_in_grads(to.data()); });
    }
    const auto cast = buffers_.find({BufferWhat::CastBuffer, instruction.unit, ParamId(), 0});
    const Buffer from = cast != buffers_.end() ? cast->second : Buffer();
    setup_.backend.launch(on(instruction.stream, id, {&to, 1}),
                          [&unit, to, from] { unit.copy_in_shards(to.data(), from.valid() ? from.data() : nullptr); });
  }

  void copy_out(const Instruction& instruction, InstructionId id) {
    if (instruction.buffer.what == BufferWhat::Full) {  // one rank: straight from the shard
      return setup_.backend.launch(on(instruction.stream, id), [&tensor = tensor_of(instruction.buffer.param)] {
        ShardedUnit::copy_whole(tensor);
      });
    }
    const Buffer from = buffers_.at(key_of(instruction));
    if (instruction.buffer.what == BufferWhat::RsOutput) {  // one rank: its own sum
      return setup_.backend.copy(on(instruction.stream, id), from, buffer(BufferWhat::RsInput, instruction.unit),
                                 instruction.bytes);
    }
    setup_.backend.launch(on(instruction.stream, id, {&from, 1}),
                          [&unit = unit_of(instruction), from] { unit.copy_out(from.data()); });
  }

  void all_gather(const Instruction& instruction, InstructionId id) {
    const Buffer whole = buffers_.at(key_of(instruction));
    setup_.backend.collective(
        on(instruction.stream, id, {&whole, 1}), communicator(instruction.stream),
        [whole, numel = unit_of(instruction).chunk_numel(), dtype = instruction.dtype](Communicator& group) {
          auto* data = static_cast<std::byte*>(whole.data());
          group.all_gather(data, data + group.rank() * numel * itemsize(dtype), numel, dtype);
        });
  }

  void reduce_scatter(const Instruction& instruction, InstructionId id) {
    const std::array<Buffer, 2> uses = {buffers_.at(key_of(instruction)),
                                        buffer(BufferWhat::RsOutput, instruction.unit, instruction.arg)};
    setup_.backend.collective(
        on(instruction.stream, id, uses), communicator(instruction.stream),
        [uses, numel = unit_of(instruction).chunk_numel(), dtype = instruction.dtype, op = instruction.reduce_op](
            Communicator& group) { group.reduce_scatter(uses[1].data(), uses[0].data(), numel, dtype, op); });
  }

  void begin_micro_batch(InstructionId id) {
    setup_.backend.launch(on(Stream::D, id), [this] {
      state_.frame = setup_.interpreter.begin(state_.inputs[state_.micro_batch++]);
      state_.seeded = false;
    });
  }

  void forward(const Instruction& instruction, InstructionId id) {
    const Segment& segment = setup_.plan.segments[instruction.segment.index()];
    setup_.backend.launch(on(instruction.stream, id), [this, &segment, at = instruction.segment.index()] {
      state_.graphs[at] = setup_.interpreter.forward(
          segment.op_begin, segment.op_end, state_.frame, [this](ParamId param) { return tensor_of(param).full; },
          setup_.buffers);
    });
  }

  void backward(const Instruction& instruction, InstructionId id) {
    setup_.backend.launch(on(instruction.stream, id), [this, at = instruction.segment.index()] {
      if (!state_.seeded) seed_loss();
      setup_.interpreter.backward(std::exchange(state_.graphs[at], {}), state_.frame,
                                  [this](ParamId param, at::Tensor gradient) {
                                    at::Tensor& sum = tensor_of(param).gradient;
                                    sum = sum.defined() ? sum + gradient : std::move(gradient);
                                  });
    });
  }

  void seed_loss() {
    const std::size_t loss = setup_.model.outputs.front().index();
    at::Tensor value = std::exchange(state_.frame.values[loss], at::Tensor());
    state_.loss += value.item<double>();
    state_.frame.grads[loss] = at::full_like(value, 1.0 / static_cast<double>(state_.inputs.size()),
                                             at::dtype(value.scalar_type()).requires_grad(false));
    state_.seeded = true;
  }

  /// The reduced gradients of all units, which the plan has not freed yet.
  std::vector<Buffer> reduced_gradients() const {
    std::vector<Buffer> all(units_.size());
    for (std::size_t u = 0; u < units_.size(); ++u) {
      const auto outputs = reduce_outputs(UnitId(u));
      if (!outputs.empty()) all[u] = outputs.front().second;
    }
    return all;
  }

  static std::vector<Buffer> present(const std::vector<Buffer>& buffers) {
    std::vector<Buffer> valid;
    std::copy_if(buffers.begin(), buffers.end(), std::back_inserter(valid), [](const Buffer& b) { return b.valid(); });
    return valid;
  }

  std::vector<OptimizedShard> shards_with(const std::vector<Buffer>& reduced) {
    std::vector<OptimizedShard> shards;
    for (std::size_t u = 0; u < units_.size(); ++u) {
      for (std::size_t i = 0; i < units_[u].tensors().size(); ++i) {
        at::Tensor gradient = reduced[u].valid() ? units_[u].sharded_gradient(i, reduced[u].data()) : at::Tensor();
        shards.push_back({units_[u].tensors()[i].shard, std::move(gradient)});
      }
    }
    return shards;
  }

  void clip(const Instruction& instruction, InstructionId id) {
    max_norm_ = instruction.factor;
    const std::vector<Buffer> reduced = reduced_gradients();
    setup_.backend.launch(on(instruction.stream, id, present(reduced)), [this, reduced, max_norm = max_norm_] {
      at::NoGradGuard no_grad;
      std::vector<at::Tensor> squares;
      for (const OptimizedShard& shard : shards_with(reduced)) {
        squares.push_back(shard.gradient.defined() ? shard.gradient.square().sum() : at::zeros({}));
      }
      state_.norms = at::stack(squares);
      if (setup_.plan.world_size == 1) scale_gradients(reduced, max_norm);
    });
  }

  void reduce_norms(const Instruction& instruction, InstructionId id) {
    const std::vector<Buffer> reduced = reduced_gradients();
    setup_.backend.collective(on(instruction.stream, id, present(reduced)), communicator(instruction.stream),
                              [this, reduced, max_norm = max_norm_](Communicator& group) {
                                group.all_reduce(state_.norms.data_ptr(), state_.norms.numel(), DType::Float32,
                                                 ReduceOp::Sum);
                                scale_gradients(reduced, max_norm);
                              });
  }

  void scale_gradients(const std::vector<Buffer>& reduced, double max_norm) {
    at::NoGradGuard no_grad;
    const at::Tensor norm = state_.norms.sum().sqrt();
    state_.grad_norm = norm.item<double>();
    const at::Tensor coefficient = at::clamp_max(max_norm / (norm + 1e-6), 1.0);
    for (const OptimizedShard& shard : shards_with(reduced)) {
      if (shard.gradient.defined()) shard.gradient.mul_(coefficient);
    }
  }

  void optimize(const Instruction& instruction, InstructionId id) {
    const std::vector<Buffer> reduced = reduced_gradients();
    setup_.backend.launch(on(instruction.stream, id, present(reduced)),
                          [this, reduced, lr = lr_] { optimizer_.step(shards_with(reduced), lr); });
  }

  PlanRunnerSetup setup_;
  Optimizer optimizer_;
  std::array<StreamIndex, kStreamCount> streams_{};
  std::vector<ShardedUnit> units_;
  std::vector<Place> place_;  // by ParamId, owners only
  std::vector<Buffer> resident_;
  std::map<BufferKey, Buffer> buffers_;
  std::map<EventId, Event> events_;
  StepState state_;
  std::size_t steps_ = 0;
  double lr_ = 0;
  double max_norm_ = 0;
};

}  // namespace

Result<std::unique_ptr<PlanRunner>> PlanRunner::create(PlanRunnerSetup setup,
                                                       const OperatorInterpreter::ParamTensors& full_params) {
  if (auto error = unsupported_instruction(setup.plan)) return fail(std::move(*error));
  if (auto error = missing_communicator(setup)) return fail(std::move(*error));
  auto runner = std::make_unique<Fsdp2Runner>(std::move(setup));
  if (const auto loaded = runner->load(full_params); !loaded) {
    Error error;
    error.message = "the parameters cannot be brought in: " + loaded.error().text;
    return fail(std::move(error));
  }
  return runner;
}

}  // namespace foreshard::exec
