#include "tests/core/plan_io/sample_plan.h"

#include <iterator>

namespace foreshard {
namespace {

using K = InstructionKind;

/// Appends instructions in the few words that a schedule needs.
class Pen {
 public:
  explicit Pen(Plan& plan) : out_(plan.iterations.back().instructions) {}

  Pen& at(Phase phase, UnitId unit) {
    phase_ = phase;
    unit_ = unit;
    return *this;
  }
  Instruction& add(K kind, Stream stream) {
    Instruction& i = out_.emplace_back();
    i.kind = kind;
    i.stream = stream;
    i.phase = phase_;
    i.unit = unit_;
    return i;
  }
  void wait(Stream stream, Stream other, Origin origin = Origin::Fsdp) {
    Instruction& i = add(K::WaitStream, stream);
    i.other = other;
    i.origin = origin;
  }
  void check(EventId event = {}) {
    add(K::LimiterCheck, Stream::Host).event = event;
    if (event.valid()) add(K::HostWait, Stream::Host).event = event;
  }
  void buffer(K kind, BufferWhat what, Stream pool, Bytes bytes) {
    Instruction& i = add(kind, pool);
    i.buffer = {what, unit_, {}};
    i.bytes = bytes;
  }
  void gather(Numel numel) {
    check();
    buffer(K::Alloc, BufferWhat::Full, Stream::U, numel * 4);
    Instruction& i = add(K::AllGather, Stream::U);
    i.numel = numel;
    i.bytes = numel * 4;
    i.communicator = CommunicatorId(0);
    add(K::UseFull, Stream::U);
  }
  void run(K kind, std::int32_t segment) { add(kind, Stream::D).segment = SegmentId(segment); }
  void concat(Numel numel) {
    wait(Stream::U, Stream::D, Origin::Autograd);
    buffer(K::Alloc, BufferWhat::Grad, Stream::U, numel * 4);
    Instruction& i = add(K::Concat, Stream::U);
    i.origin = Origin::Autograd;
    i.numel = numel;
    i.name = NameId(0);
  }
  void free_full(Stream stream, EventId event, Bytes bytes) {
    add(K::UseShard, stream);
    buffer(K::Free, BufferWhat::Full, Stream::U, bytes);
    add(K::RecordEvent, stream).event = event;
    add(K::LimiterPush, Stream::Host).event = event;
  }
  void reduce(Numel numel) {
    wait(Stream::G, Stream::U);
    buffer(K::Alloc, BufferWhat::ReduceOut, Stream::G, numel);
    Instruction& divide = add(K::Divide, Stream::G);
    divide.numel = numel;
    divide.factor = 2.0;
    Instruction& i = add(K::ReduceScatter, Stream::G);
    i.numel = numel;
    i.bytes = numel * 4;
    i.communicator = CommunicatorId(0);
    i.reduce_op = ReduceOp::Sum;
    Instruction& use = add(K::NoteUse, Stream::U);
    use.other = Stream::G;
    use.buffer = {BufferWhat::Grad, unit_, {}};
    buffer(K::Free, BufferWhat::Grad, Stream::U, numel * 4);
  }

 private:
  std::vector<Instruction>& out_;
  Phase phase_ = Phase::None;
  UnitId unit_;
};

PlanUnit unit_of(const std::string& name, ParamId param, Numel numel, Numel shard) {
  PlanUnit unit;
  unit.name = name;
  unit.modules = {ModuleId(param.value)};
  unit.params = {param};
  unit.numel = numel;
  unit.flat_numel = shard * 4;  // world padding is part of it under use_orig_params
  unit.shard_size = 4;
  unit.shard_numel = shard;
  unit.padded_numel = shard * 4;
  unit.world_padding = shard * 4 - numel;
  unit.flat = {{param, 0, numel}, {ParamId(), numel, shard * 4 - numel}};
  return unit;
}

}  // namespace

Plan sample_plan() {
  Plan plan;
  plan.runtime = Runtime::Fsdp1;
  plan.world_size = 4;
  plan.rank = 1;
  plan.param_names = {"embed.weight", "layers.0.weight"};
  plan.names = {"aten.cat", "lazy-init"};
  plan.units = {unit_of("", ParamId(0), 38, 10), unit_of("layers.0", ParamId(1), 100, 25)};
  plan.streams = {{Stream::U, 0}, {Stream::G, 0}, {Stream::Q, 0}};
  plan.groups = {{0, 1, 2, 3}, {1}};
  plan.communicators = {{"world", "shard", {0, 1, 2, 3}}};
  plan.pre_divide = plan.post_divide = 2.0;
  plan.segments = {{"embed", ModuleId(0), UnitId(0), 0, 2, {ParamId(0)}, false},
                   {"layers.0", ModuleId(1), UnitId(1), 2, 9, {ParamId(1)}, false},
                   {"head", ModuleId(2), UnitId(0), 9, 11, {ParamId(0)}, false}};
  const UnitId r(0), b(1);
  PlanIteration& it = plan.iterations.emplace_back();
  it.actions = {"zero", "fwd", "bwd", "step"};
  it.pre_order = {r, b};
  it.post_order = {b, r};
  it.limiter_queue = {EventId(1), EventId(2), EventId(3)};
  Pen pen(plan);
  pen.at(Phase::RootPreForward, r).add(K::Mark, Stream::Host).name = NameId(1);
  pen.wait(Stream::U, Stream::D);
  pen.wait(Stream::Q, Stream::D);
  pen.at(Phase::PreForward, r).gather(40);
  pen.wait(Stream::D, Stream::U);
  pen.at(Phase::Forward, r).run(K::Forward, 0);
  pen.at(Phase::PreForward, b).gather(100);
  pen.wait(Stream::D, Stream::U);
  pen.at(Phase::Forward, b).run(K::Forward, 1);
  pen.at(Phase::PostForward, b).free_full(Stream::D, EventId(1), 400);
  pen.at(Phase::Forward, r).run(K::Forward, 2);
  pen.at(Phase::PostForward, r).add(K::UseShard, Stream::D);
  pen.at(Phase::PreBackward, r).check();
  pen.add(K::UseFull, Stream::U);
  pen.wait(Stream::D, Stream::U);
  pen.at(Phase::Backward, r).run(K::Backward, 2);
  pen.at(Phase::PreBackward, b).gather(100);
  pen.wait(Stream::D, Stream::U);
  pen.at(Phase::Backward, b).run(K::Backward, 1);
  pen.concat(100);
  pen.at(Phase::PostBackward, b).free_full(Stream::U, EventId(2), 400);
  pen.reduce(100);
  pen.at(Phase::Backward, r).run(K::Backward, 0);
  pen.concat(40);
  pen.at(Phase::PostBackward, r).free_full(Stream::U, EventId(3), 160);
  pen.reduce(40);
  pen.at(Phase::Final, r).wait(Stream::D, Stream::G);
  pen.at(Phase::Optimizer, UnitId()).add(K::OptimizerStep, Stream::D).numel = 35;
  return plan;
}

Plan random_plan(std::mt19937& random) {
  const auto pick = [&](int n) { return static_cast<std::int32_t>(random() % static_cast<unsigned>(n)); };
  const auto coin = [&] { return pick(2) == 1; };
  const std::vector<std::string> odd{"a\"b", "true", "12", "-", "x=y [z]", "tab\t", "\xc3\xa9", "{", "plain.0", ""};
  const auto word = [&] { return odd[static_cast<std::size_t>(pick(10))]; };
  const auto big = [&] { return static_cast<std::int64_t>(random()) * 1000 - pick(2); };
  Plan plan;
  plan.runtime = static_cast<Runtime>(pick(3));
  plan.world_size = 1 + pick(16);
  plan.rank = pick(plan.world_size);
  plan.steady = coin();
  plan.pre_divide = static_cast<double>(random()) / 977.0;
  for (int i = pick(4); i > 0; --i) plan.groups.shard.push_back(pick(16));
  for (int i = pick(4); i > 0; --i)
    plan.streams.push_back({static_cast<Stream>(pick(static_cast<int>(kStreamCount))), pick(3) - 1});
  const int communicators = pick(3);
  for (int i = 0; i < communicators; ++i)
    plan.communicators.push_back({std::to_string(i) + word(), word(), {pick(16)}});
  const int params = 1 + pick(4), units = 1 + pick(4), segments = 1 + pick(3), names = 1 + pick(4);
  for (int i = 0; i < params; ++i) plan.param_names.push_back("p" + std::to_string(i) + "." + word());
  for (int i = 0; i < names; ++i) plan.names.push_back(std::to_string(i) + word());
  const auto param = [&](bool optional) { return optional && coin() ? ParamId() : ParamId(pick(params)); };
  const auto unit = [&] { return coin() ? UnitId() : UnitId(pick(units)); };
  const auto dtype = [&] { return static_cast<DType>(pick(13)); };
  for (int i = 0; i < units; ++i) {
    PlanUnit& u = plan.units.emplace_back();
    u.name = i == 0 ? "" : "u" + std::to_string(i) + word();
    for (int k = pick(3); k > 0; --k) u.modules.emplace_back(pick(9));
    for (int k = pick(3); k > 0; --k) u.params.push_back(param(false));
    for (int k = pick(2); k > 0; --k) u.shared.push_back({param(false), param(false)});
    u.strategy = static_cast<Strategy>(pick(5));
    u.requires_grad = coin();
    u.orig_dtype = dtype();
    u.param_dtype = dtype();
    u.reduce_dtype = dtype();
    u.keep_low_precision_grads = coin();
    u.shard_size = 1 + pick(8);
    u.numel = std::abs(big());
    u.flat_numel = std::abs(big());
    u.padded_numel = std::abs(big());
    u.shard_numel = std::abs(big());
    u.align_padding = pick(9);
    u.world_padding = pick(9);
    for (int k = pick(3); k > 0; --k) u.flat.push_back({param(true), pick(100), pick(100)});
    for (int k = pick(3); k > 0; --k) u.sharded.push_back({param(false), pick(3), {pick(5), pick(5)}, {pick(5)}});
    u.reshard_after_forward.kind = static_cast<ReshardAfterForward::Kind>(pick(3));
    if (u.reshard_after_forward.kind == ReshardAfterForward::Kind::GroupSize)
      u.reshard_after_forward.group_size = 1 + pick(8);
  }
  for (int i = 0; i < segments; ++i) {
    Segment& s = plan.segments.emplace_back();
    s = {word(), ModuleId(pick(9) - 1), unit(), pick(5), 5 + pick(5), {param(false)}, coin()};
  }
  for (int k = pick(4); k > 0; --k) {
    PlanIteration& it = plan.iterations.emplace_back();
    it.index = pick(5);
    it.micro_batches = pick(5);
    for (int i = pick(4); i > 0; --i) it.actions.push_back(word());
    for (int i = pick(3); i > 0; --i) it.pre_order.emplace_back(pick(units));
    for (int i = pick(3); i > 0; --i) it.limiter_queue.emplace_back(1 + pick(99));
    for (int n = pick(30); n > 0; --n) {
      Instruction& i = it.instructions.emplace_back();
      i.kind = static_cast<InstructionKind>(pick(34));
      i.stream = static_cast<Stream>(pick(static_cast<int>(kStreamCount)));
      i.other = static_cast<Stream>(pick(static_cast<int>(kStreamCount)));
      i.phase = static_cast<Phase>(pick(16));
      i.origin = static_cast<Origin>(pick(2));
      i.dtype = dtype();
      i.reduce_op = static_cast<ReduceOp>(pick(5));
      i.blocking = coin();
      i.pinned = coin();
      i.on_host = coin();
      i.unit = unit();
      if (coin()) i.event = EventId(1 + pick(999));
      if (coin()) i.buffer = {static_cast<BufferWhat>(pick(29)), unit(), param(true)};
      if (coin()) i.segment = SegmentId(pick(segments));
      if (coin()) i.name = NameId(pick(names));
      if (coin()) i.arg = pick(99) - 50;
      if (communicators > 0 && coin()) i.communicator = CommunicatorId(pick(communicators));
      if (coin()) i.bytes = big();
      if (coin()) i.numel = big();
      if (coin()) i.factor = static_cast<double>(random()) / 977.0;
    }
  }
  for (int i = pick(3); i > 0; --i) plan.checks.push_back({word(), static_cast<CheckStatus>(pick(3)), word(), word()});
  for (int i = pick(3); i > 0; --i) plan.traps.push_back({pick(13), word(), word(), {word()}, word(), word(), coin()});
  for (int i = pick(3); i > 0; --i) plan.warnings.push_back(word());
  if (coin()) plan.failure = PlanFailure{pick(3), word(), word(), word()};
  return plan;
}

}  // namespace foreshard
