#include "sim/play/segments/instruction_runs.h"

#include <utility>

namespace foreshard {

bool InstructionRuns::play_buffers(const Instruction& i) {
  if (context_.buffer != nullptr && !buffers_.in_arena()) {
    if (follower_.follows() && pass_buffers()) return true;
    if (recorder_.records() && can_record(*context_.buffer)) return record_buffers(i);
  }
  if (follower_.passed_buffers() > 0 && buffers_.block(buffers_.index(i.buffer)) == kPassedBlock)
    follower_.make_skipped_blocks();
  return buffers_.play(i);
}

// ------------------------------------------------------------------------------------------------ passing over

/// True: the buffer has been given what the tape says, or has lost it.
bool InstructionRuns::pass(const SegmentRun::Buffer& buffer, const BufferStep& step) {
  if (step.index != buffer.index || step.frees != buffer.frees || step.bytes != buffer.bytes) return false;
  const BlockHandle block = buffers_.block(buffer.index);
  if (!buffer.frees) {
    if (block != kNoBlock) return false;
    passed_ += buffer.number < 0 ? 0 : 1;
    return true;
  }
  if (block == kPassedBlock) {
    --passed_;
    return buffer.number >= 0;
  }
  if (block < 0) return buffer.number < 0 && (block == kEmptyBlock || !buffers_.has_more());
  const CachingAllocator& allocator = context_.device.allocator;
  has_real_ = true;
  return buffer.number >= 0 && allocator.stream_of(block) == kCompute && allocator.is_small(block) == buffer.small &&
         allocator.tapes().number_of(block) == buffer.number;
}

/// How many of the run's are as the context has them from here on; they are there or gone.
std::size_t InstructionRuns::pass_all(const SegmentRun& run) {
  before_.resize(run.buffers.size());
  passed_ = 0;
  has_real_ = false;
  std::size_t k = 0;
  for (; k < run.buffers.size(); ++k) {
    const SegmentRun::Buffer& buffer = run.buffers[k];
    if (!pass(buffer, context_.buffer[k])) break;
    const BlockHandle now = buffer.frees ? kNoBlock : buffer.number < 0 ? kEmptyBlock : kPassedBlock;
    before_[k] = std::exchange(buffers_.block(buffer.index), now);
  }
  return k;
}

bool InstructionRuns::pass_buffers() {
  const SegmentRun* const run = follower_.next();
  if (run == nullptr || run->buffers.empty()) return false;
  if (run->buffers.size() > static_cast<std::size_t>(context_.buffer->group)) return false;
  Device& device = context_.device;
  if (!device.allocator.tapes().follows(kCompute)) return false;
  std::size_t count = pass_all(*run);
  const bool same = count == run->buffers.size();
  if (same) device.book.set_instruction(context_.instruction() + run->highest_at);
  if (!same || !follower_.pass(*run)) {
    device.book.set_instruction(context_.instruction());
    while (count-- > 0) buffers_.block(run->buffers[count].index) = before_[count];
    return false;
  }
  follower_.count_buffers(passed_);
  if (has_real_) {
    for (const BlockHandle block : before_)
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

bool InstructionRuns::can_record(const BufferStep& step) const {
  const BlockHandle block = buffers_.block(step.index);
  if (!step.frees) return block == kNoBlock;
  return block >= 0 ? context_.device.allocator.stream_of(block) == kCompute
                    : block == kEmptyBlock || !buffers_.has_more();
}

bool InstructionRuns::record_buffers(const Instruction& first) {
  recorder_.begin();
  if (!recorder_.open()) return buffers_.play(first);
  const std::int32_t begin = context_.instruction();
  const BufferStep* const group = context_.buffer;
  bool ok = record(first, *group);
  for (std::int32_t k = 1; ok && k < group->group && can_record(group[k]); ++k) {
    ++context_.position;
    context_.device.book.set_instruction(context_.instruction());
    ok = record(context_.iteration->instructions[static_cast<std::size_t>(context_.position)], group[k]);
  }
  recorder_.end_instructions(ok, begin);
  return ok;
}

bool InstructionRuns::record(const Instruction& i, const BufferStep& step) {
  const CachingAllocator& allocator = context_.device.allocator;
  const std::int32_t slot = storages_.place_of_buffer(step.index);
  SegmentRun::Buffer buffer{step.index, step.bytes, -1, step.frees, false};
  const auto note = [&](BlockHandle block) {
    if (block < 0 || !allocator.tapes().records(kCompute)) return;
    buffer.number = allocator.tapes().number_of(block);
    buffer.small = allocator.is_small(block);
  };
  if (buffer.frees) {
    note(buffers_.block(step.index));
    if (buffer.number >= 0) recorder_.dropped(slot, false);
  }
  if (!buffers_.play(i)) return false;
  if (!buffer.frees) {
    const BlockHandle block = buffers_.block(step.index);
    note(block);
    if (buffer.number >= 0) recorder_.holds(slot, block);
  }
  recorder_.run().buffers.push_back(buffer);
  return true;
}

}  // namespace foreshard
