#include "sim/play/prepared_plan.h"

#include <algorithm>
#include <utility>

#include "core/instruction_spans.h"

namespace foreshard {
namespace {

constexpr std::size_t kBufferKinds = static_cast<std::size_t>(BufferWhat::ViewedCopy) + 1;

constexpr std::uint64_t bit(InstructionKind kind) { return std::uint64_t{1} << static_cast<unsigned>(kind); }
constexpr bool is_among(InstructionKind kind, std::uint64_t kinds) { return (kinds & bit(kind)) != 0; }

// They do nothing on the device.
constexpr std::uint64_t kNotes =
    bit(InstructionKind::Mark) | bit(InstructionKind::UseFull) | bit(InstructionKind::UseShard);
// Where the loop stands follows from these alone.
constexpr std::uint64_t kPhases =
    bit(InstructionKind::Zero) | bit(InstructionKind::Clip) | bit(InstructionKind::OptimizerStep);
constexpr std::uint64_t kMoves =
    bit(InstructionKind::Alloc) | bit(InstructionKind::Resize) | bit(InstructionKind::Free);

/// Whether it can be in a group at all: which phase of the loop it is in is known from its own alone.
bool is_of_compute(const Instruction& i) {
  return is_among(i.kind, kMoves) && i.stream == Stream::D && i.arg == 0 && i.phase != Phase::None &&
         i.phase != Phase::Optimizer;
}

BufferStep buffer_step(const Instruction& i, const BufferNumbers& numbers) {
  BufferStep step;
  step.index = numbers.of(i.buffer);
  step.bytes = instruction_bytes(i);
  step.frees = i.kind == InstructionKind::Free || (i.kind == InstructionKind::Resize && step.bytes == 0);
  return step;
}

/// Goes through an iteration as the loop does.
class PlayLister {
 public:
  PlayLister(const Plan& plan, const BufferNumbers& numbers) : plan_(plan), numbers_(numbers) {}

  PlayList list(const std::vector<Instruction>& all) {
    list_.steps.reserve(all.size());
    list_.buffers.reserve(all.size() / 2);
    for (const Instruction& i : all) {
      const bool same = last_ != nullptr && !alone_ && last_->phase == i.phase && last_->unit == i.unit;
      const bool note = is_among(i.kind, kNotes) && &i != &all.back();
      if (note && same) continue;
      const bool stays = same && !is_among(i.kind, kPhases);
      const LoopPhase next = stays ? phase_ : phase_after(i);
      if (note && next == phase_ && batch_begun_) continue;
      phase_ = next;
      add(i, static_cast<std::int32_t>(&i - all.data()), stays);
    }
    return std::move(list_);
  }

 private:
  LoopPhase phase_after(const Instruction& i) const {
    const LoopPhase next = loop_phase_after(phase_, stepped_, plan_, i);
    return next == LoopPhase::None ? phase_ : next;
  }

  void add(const Instruction& i, std::int32_t position, bool stays) {
    last_ = &i;
    stepped_ = stepped_ || (i.kind == InstructionKind::OptimizerStep && i.phase == Phase::Optimizer && !i.name.valid());
    alone_ = stepped_ || is_among(i.kind, kPhases);
    batch_begun_ = i.phase != Phase::RootPreForward;
    if (i.kind == InstructionKind::Alloc && i.buffer.what == BufferWhat::Input) list_.owns_inputs = true;
    const bool buffer = is_of_compute(i);
    list_.steps.push_back({position, buffer ? static_cast<std::int32_t>(list_.buffers.size()) : -1, phase_, stays});
    if (!buffer) {
      group_ = nullptr;
      return;
    }
    list_.buffers.push_back(buffer_step(i, numbers_));
    const bool joins = group_ != nullptr && group_ + 1 == &i && group_->phase == i.phase && group_->unit == i.unit;
    group_ = &i;
    list_.buffers.back().group = joins ? list_.buffers[list_.buffers.size() - 2].group + 1 : 1;
  }

  const Plan& plan_;
  const BufferNumbers& numbers_;
  PlayList list_;
  LoopPhase phase_ = LoopPhase::None;
  const Instruction* last_ = nullptr;   // played
  const Instruction* group_ = nullptr;  // the last one, if it is over one of the compute stream's buffers
  bool stepped_ = false, alone_ = false;
  bool batch_begun_ = false;  // EarlyKernels::before() has been asked in this phase
};

PlayList play_list(const Plan& plan, const PlanIteration& iteration, const BufferNumbers& numbers) {
  PlayList list = PlayLister(plan, numbers).list(iteration.instructions);
  // Until now: how many belong together up to each.
  std::int32_t length = 0;
  for (auto buffer = list.buffers.rbegin(); buffer != list.buffers.rend(); ++buffer) {
    if (length == 0) length = buffer->group;
    const bool first = buffer->group == 1;
    buffer->group = length - buffer->group + 1;
    if (first) length = 0;
  }
  return list;
}

}  // namespace

BufferNumbers::BufferNumbers(const Plan& plan, const Model& model)
    : units_(plan.units.size()), width_(units_ + plan.param_names.size() + 1) {
  of_param_.reserve(model.params.size());
  for (std::size_t p = 0; p < model.params.size(); ++p)
    of_param_.push_back(units_ + model.storage_of(ParamId(p)).index());
}

std::size_t BufferNumbers::count() const { return kBufferKinds * width_; }

PreparedPlan::PreparedPlan(const Plan& plan, const Model& model) : numbers(plan, model) {
  const std::vector<PlanIteration>& all = plan.iterations;
  for (const PlanIteration& iteration : all) {
    const bool again = plan.steady && all.size() > 1 && &iteration == &all.back() &&
                       iteration.instructions.size() == (&iteration - 1)->instructions.size();  // equal but for events
    lists.push_back(again ? lists.back() : std::make_shared<const PlayList>(play_list(plan, iteration, numbers)));
  }
  owns_inputs = std::any_of(lists.begin(), lists.end(), [](const auto& list) { return list->owns_inputs; });
}

}  // namespace foreshard
