#include "sim/play/segments/instruction_runs.h"

#include "core/instruction_spans.h"

namespace foreshard {
namespace {

bool frees(const Instruction& i) {
  return i.kind == InstructionKind::Free || (i.kind == InstructionKind::Resize && instruction_bytes(i) == 0);
}

/// Whether it can be in a group at all: which phase of the loop it is in is known from its own alone.
bool is_of_compute(const Instruction& i) {
  const bool moves =
      i.kind == InstructionKind::Alloc || i.kind == InstructionKind::Resize || i.kind == InstructionKind::Free;
  return moves && i.stream == Stream::D && i.arg == 0 && i.phase != Phase::None && i.phase != Phase::Optimizer;
}

}  // namespace

bool InstructionRuns::belongs(const Instruction& i, const Instruction& first) const {
  return is_of_compute(i) && i.phase == first.phase && i.unit == first.unit;
}

bool InstructionRuns::play_buffers(const Instruction& i) {
  if (is_of_compute(i) && !buffers_.in_arena()) {
    if (follower_.follows() && pass_buffers(i)) return true;
    if (recorder_.records() && can_record(i)) return record_buffers(i);
  }
  if (follower_.passed_buffers() > 0 && buffers_.block(buffers_.index(i.buffer)) == kPassedBlock)
    follower_.make_skipped_blocks();
  return buffers_.play(i);
}

// ------------------------------------------------------------------------------------------------ passing over

/// True: the buffer has been given what the tape says, or has lost it.
bool InstructionRuns::pass(const SegmentRun::Buffer& buffer, const Instruction& i) {
  const std::size_t at = buffers_.index(i.buffer);
  if (at != buffer.index || frees(i) != buffer.frees || instruction_bytes(i) != buffer.bytes) return false;
  BlockHandle& block = buffers_.block(at);
  if (!buffer.frees) {
    if (block != kNoBlock) return false;
    undo_.emplace_back(at, std::exchange(block, buffer.number < 0 ? kEmptyBlock : kPassedBlock));
    passed_ += buffer.number < 0 ? 0 : 1;
    return true;
  }
  const CachingAllocator& allocator = context_.device.allocator;
  bool same = buffer.number >= 0;
  if (block >= 0) {
    same = allocator.stream_of(block) == kCompute && allocator.is_small(block) == buffer.small &&
           allocator.tapes().number_of(block) == buffer.number;
    has_real_ = true;
  } else if (block != kPassedBlock) {
    same = buffer.number < 0 && (block == kEmptyBlock || !buffers_.has_more());
  }
  if (!same) return false;
  passed_ -= block == kPassedBlock ? 1 : 0;
  undo_.emplace_back(at, std::exchange(block, kNoBlock));
  return true;
}

void InstructionRuns::undo() {
  for (; !undo_.empty(); undo_.pop_back()) buffers_.block(undo_.back().first) = undo_.back().second;
}

bool InstructionRuns::pass_buffers(const Instruction& first) {
  const SegmentRun* const run = follower_.next();
  const auto& all = context_.iteration->instructions;
  const auto begin = static_cast<std::size_t>(context_.position);
  if (run == nullptr || run->buffers.empty() || begin + run->buffers.size() > all.size()) return false;
  if (!context_.device.allocator.tapes().follows(kCompute)) return false;
  undo_.clear();
  passed_ = 0;
  has_real_ = false;
  bool same = true;
  for (std::size_t k = 0; same && k < run->buffers.size(); ++k)
    same = belongs(all[begin + k], first) && pass(run->buffers[k], all[begin + k]);
  Device& device = context_.device;
  if (same) device.book.set_instruction(context_.instruction() + run->highest_at);
  if (!same || !follower_.pass(*run)) {
    device.book.set_instruction(context_.instruction());
    undo();
    return false;
  }
  follower_.count_buffers(passed_);
  if (has_real_) {
    for (const auto& [index, block] : undo_)
      if (block >= 0) device.allocator.tapes().disown(block);
  }
  device.clock.host_cost(static_cast<SimDuration>(run->calls.size()) * device.profile.driver_alloc_ns);
  context_.position += static_cast<std::int32_t>(run->buffers.size()) - 1;
  return true;
}

bool InstructionRuns::play_step(const Instruction& i, OptimizerSteps& optimizer) {
  const std::string& profile = context_.job.cluster.profile;
  Device& device = context_.device;
  if (!optimizer.keeps_to_compute(i)) return optimizer.play(i);
  if (const SegmentRun* const run = follower_.next(); run != nullptr) {
    if (run->step == static_cast<std::int32_t>(i.kind) && run->profile == profile && follower_.pass(*run)) {
      device.launch_all(run->launches, i.phase);
      optimizer.passed(i);
      return true;
    }
  }
  if (!recorder_.records()) return optimizer.play(i);
  recorder_.begin();
  if (!recorder_.open()) return optimizer.play(i);
  recorder_.run().step = static_cast<std::int32_t>(i.kind);
  recorder_.run().profile = profile;
  device.write_launches(&recorder_.run().launches);
  const bool ok = optimizer.play(i);
  device.write_launches(nullptr);
  recorder_.end_instructions(ok, context_.instruction());
  return ok;
}

// ------------------------------------------------------------------------------------------------ recording

bool InstructionRuns::can_record(const Instruction& i) const {
  const BlockHandle block = buffers_.block(buffers_.index(i.buffer));
  if (!frees(i)) return block == kNoBlock;
  return block >= 0 ? context_.device.allocator.stream_of(block) == kCompute
                    : block == kEmptyBlock || !buffers_.has_more();
}

bool InstructionRuns::record_buffers(const Instruction& first) {
  recorder_.begin();
  if (!recorder_.open()) return buffers_.play(first);
  const std::int32_t begin = context_.instruction();
  const auto& all = context_.iteration->instructions;
  const auto count = static_cast<std::int32_t>(all.size());
  bool ok = record(first);
  while (ok && context_.position + 1 < count) {
    const Instruction& next = all[static_cast<std::size_t>(context_.position + 1)];
    if (!belongs(next, first) || !can_record(next)) break;
    ++context_.position;
    context_.device.book.set_instruction(context_.instruction());
    ok = record(next);
  }
  recorder_.end_instructions(ok, begin);
  return ok;
}

bool InstructionRuns::record(const Instruction& i) {
  const CachingAllocator& allocator = context_.device.allocator;
  const std::size_t at = buffers_.index(i.buffer);
  const auto slot = static_cast<std::int32_t>(storages_.count() + at);
  SegmentRun::Buffer buffer{at, instruction_bytes(i), -1, frees(i), false};
  const auto note = [&](BlockHandle block) {
    if (block < 0 || !allocator.tapes().records(kCompute)) return;
    buffer.number = allocator.tapes().number_of(block);
    buffer.small = allocator.is_small(block);
  };
  if (buffer.frees) {
    note(buffers_.block(at));
    if (buffer.number >= 0) recorder_.dropped(slot, false);
  }
  if (!buffers_.play(i)) return false;
  if (!buffer.frees) {
    const BlockHandle block = buffers_.block(at);
    note(block);
    if (buffer.number >= 0) recorder_.holds(slot, block);
  }
  recorder_.run().buffers.push_back(buffer);
  return true;
}

}  // namespace foreshard
