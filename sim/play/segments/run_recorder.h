// Sums up what every run of a segment does in the pools of the compute stream, onto a tape that other simulations of
// the same program may follow (sim/device/allocator/pool_tape.h), until one cannot be summed up. Part of one
// PlanPlayer.
#pragma once

#include <array>

#include "sim/device/allocator/pool_tape.h"
#include "sim/play/instructions/play_context.h"

namespace foreshard {

class RunRecorder {
 public:
  /// `tape` nullptr: nothing is recorded.
  RunRecorder(PlayContext& context, PoolTape* tape) : device_(context.device), tape_(tape) {}

  bool records() const { return tape_ != nullptr; }
  /// A run is being summed up.
  bool open() const { return open_; }

  /// A run of instructions, whose allocations nobody tells of one by one: what they come to is read off the peaks.
  void begin();
  SegmentRun& run() { return run_; }
  /// A block that the plan holds under this slot.
  void holds(std::int32_t slot, BlockHandle block);
  /// `first`: the number of the run's first instruction.
  void end_instructions(bool ok, std::int32_t first);

  void begin(const KernelList& list, std::int32_t instance, std::uint8_t had_workspaces, Bytes workspace);
  /// The kernel that is at it.
  void set_kernel(std::size_t kernel) { kernel_ = static_cast<std::uint32_t>(kernel); }
  /// A block that lies in this slot of all segments' (-1: in none); `again`: the slot has another one still; `held`: it
  /// is looked at beyond its segment; `gradient`: >= 0 the template's slot whose block the plan owns, and `slot` the
  /// plan's buffer.
  void made(std::int32_t slot, bool again, bool held, BlockHandle block, std::int32_t gradient);
  void made_workspace(std::uint8_t which, BlockHandle block);
  void needs_no_workspace(std::uint8_t which) { run_.made_workspaces |= which; }  // the next run finds it there
  void dropped(std::int32_t slot, bool held);
  /// The addend of a sum goes: SegmentTemplate::gradients[gradient]; `slot` as made() was told.
  void gradient_dropped(std::int32_t gradient, std::int32_t slot, BlockHandle block);
  /// After every event, once all is done that it does.
  void changed();
  /// `additions`: to gradients that were there.
  void end(bool ok, std::size_t additions);
  /// The run does what no tape holds; nor will any other.
  void give_up() {
    open_ = false;
    tape_ = nullptr;
  }

 private:
  bool start();
  bool finish(bool ok);
  SegmentRun::Holding holding_of(std::int32_t slot, BlockHandle block) const;

  Device& device_;
  PoolTape* tape_;
  // The run that is being summed up, and what there was before it.
  SegmentRun run_;
  AllocatorStats before_;
  MemoryBook::Categories categories_{};
  Bytes reserved_ = 0;
  std::int64_t events_ = 0;
  std::uint32_t kernel_ = 0;
  bool open_ = false;
  // Of a run of instructions.
  MemoryBook::Peak peak_;
  std::array<std::int32_t, 2> made_before_{};
  std::size_t calls_before_ = 0;
};

}  // namespace foreshard
