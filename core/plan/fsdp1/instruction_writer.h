// Appends instructions to one iteration in the words of FSDP1's runtime: marks by name, buffers by unit. What launches
// work is counted by autograd's streams too (R26).
#pragma once

#include <vector>

#include "core/plan.h"
#include "core/plan/autograd.h"
#include "core/plan/fsdp1/unit_state.h"

namespace foreshard::fsdp1 {

/// Names of the marks, in the order in which they are interned in Plan::names.
enum class MarkName : std::uint8_t {
  Enter,  // a hook or an action begins; phase and unit say which
  LazyInit,
  Skip,
  Stop,
  NoGradient,
  HeldGradient,
  SavedGradient,
  ClearedGradient,
  PrefetchBegin,
  PrefetchEnd,
  Unpack,  // a backward node asks for a checkpointed tensor: recomputation follows, then the node's backward
  NoSyncEnter,
  NoSyncExit,
  SummonEnter,
  SummonEntered,
  SummonExit,
  Unshard,
  WaitUnshard,
  Eval,
  Train,
  CopyToHost,  // summon: the full parameter is copied to the host
  CommHook,    // on the collective that a user's own hook stands for (G5)
};
inline constexpr std::size_t kMarkCount = static_cast<std::size_t>(MarkName::CommHook) + 1;
/// "enter", ...: as Plan::names begins.
std::vector<std::string> mark_names();

class InstructionWriter {
 public:
  /// Events are numbered from `next_event` on; both outlive the writer.
  InstructionWriter(autograd::Graph& autograd, std::int32_t& next_event)
      : autograd_(autograd), next_event_(next_event) {}

  /// What follows is appended here, until stop().
  void start(std::vector<Instruction>& into) { out_ = &into; }
  void stop() { out_ = nullptr; }
  void set_phase(Phase phase) { phase_ = phase; }

  Instruction& emit(InstructionKind kind, Stream stream);
  Instruction& emit(InstructionKind kind, Stream stream, const UnitState& u);
  /// A unit's buffer is read or written: `numel` elements.
  Instruction& work(InstructionKind kind, Stream stream, const UnitState& u, BufferWhat what, Numel numel, DType dtype);
  void mark(MarkName name);
  void mark(MarkName name, const UnitState& u);
  void enter(Phase phase, const UnitState& u, MarkName name = MarkName::Enter);
  /// `u`: one of the root whose streams are meant; told where there are several roots.
  void wait_stream(Stream stream, Stream other, const UnitState& u);
  void wait_event(Stream stream, Stream other, EventId event, const UnitState& u);
  /// From now on what waits names a unit of the root whose streams it means.
  void name_roots() { names_roots_ = true; }
  /// On the last instruction.
  void name_root(UnitId unit) {
    if (names_roots_) out_->back().unit = unit;
  }
  void alloc(Stream pool, const UnitState& u, BufferWhat what, Numel numel, DType dtype);
  void free(Stream pool, const UnitState& u, BufferWhat what);
  void note_use(Stream pool, Stream other, const UnitState& u, BufferWhat what);
  /// The last one.
  Instruction& back() { return out_->back(); }
  std::vector<Instruction>& all() { return *out_; }
  EventId new_event() { return EventId(next_event_++); }

 private:
  autograd::Graph& autograd_;
  std::int32_t& next_event_;
  std::vector<Instruction>* out_ = nullptr;
  Phase phase_ = Phase::None;
  bool names_roots_ = false;
};

}  // namespace foreshard::fsdp1
