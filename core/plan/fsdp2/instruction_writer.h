// Appends instructions to one plan iteration: the words of core/plan.h with the current phase, event numbers and
// interned names.
//
// Private to core/plan's fsdp2 and unsharded runtimes. One writer per plan; not thread-safe. Events are numbered from 1
// over the whole plan.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/plan.h"

namespace foreshard::fsdp2 {

/// Names that the runtimes use again and again, interned once. Kernels have their ATen or FSDP name, events what they
/// mark.
enum class Word : std::uint8_t {
  AllGatherCopyIn,
  ForeachCopy,
  SplitWithSizesCopy,
  ChunkCat,
  Copy,
  AddInPlace,
  DivInPlace,
  Div,
  ToCopy,
  Clone,
  Cat,
  EmptyLike,
  EventUnshard,
  EventAllGather,
  EventCopyOut,
  EventReshard,
  EventReduceScatter,
  EventAllReduce,
  EventGradOffload,
  EventPostReduce,
  EventUser,
  EventBucket,
  BeginRootPreForward,
  EndRootPreForward,
  BeginPreForward,
  EndPreForward,
  BeginPostForward,
  EndPostForward,
  BeginPreBackward,
  EndPreBackward,
  BeginPostBackward,
  EndPostBackward,
  BeginUnshard,
  EndUnshard,
  BeginWait,
  EndWait,
  BeginReshard,
  EndReshard,
  BeginFinalCallback,
  EndFinalCallback,
  BeginFinalize,
  EndFinalize,
  Grad,
  CopyInGrad,
  WaitWork,
  AllReduceHook,
  Norm,
  MicroBatch,
};

inline constexpr std::size_t kWordCount = static_cast<std::size_t>(Word::MicroBatch) + 1;

class InstructionWriter {
 public:
  /// Interns the words; `plan` must outlive the writer.
  explicit InstructionWriter(Plan& plan);

  void start(std::vector<Instruction>& into) { out_ = &into; }
  void set_phase(Phase phase) { phase_ = phase; }
  Phase phase() const { return phase_; }
  std::int32_t next_event() const { return next_event_; }
  std::int32_t& event_counter() { return next_event_; }

  NameId intern(std::string_view text);
  NameId name(Word word) const { return words_[static_cast<std::size_t>(word)]; }

  Instruction& add(InstructionKind kind, Stream stream, UnitId unit = {}) {
    Instruction& instruction = out_->emplace_back();
    instruction.kind = kind;
    instruction.stream = stream;
    instruction.phase = phase_;
    instruction.unit = unit;
    return instruction;
  }

  void mark(Word word, UnitId unit) { add(InstructionKind::Mark, Stream::Host, unit).name = name(word); }
  EventId record(Stream stream, Word word, UnitId unit);
  void wait_event(Stream stream, EventId event, UnitId unit);
  void wait_stream(Stream stream, Stream other, UnitId unit);
  void host_wait(EventId event, UnitId unit);
  /// `instance` tells buffers of one name apart that are alive at once.
  Instruction& alloc(BufferName buffer, Stream pool, Bytes bytes, std::int32_t instance = 0);
  void free(BufferName buffer, Stream pool, Bytes bytes, std::int32_t instance = 0);
  void resize(BufferName buffer, Stream pool, Bytes bytes);
  Instruction& kernel(InstructionKind kind, Stream stream, NameId name, UnitId unit, Numel numel, DType dtype);
  Instruction& kernel(InstructionKind kind, Stream stream, Word word, UnitId unit, Numel numel, DType dtype) {
    return kernel(kind, stream, name(word), unit, numel, dtype);
  }

 private:
  Plan& plan_;
  std::vector<Instruction>* out_ = nullptr;
  Phase phase_ = Phase::None;
  std::int32_t next_event_ = 1;
  std::array<NameId, kWordCount> words_;
};

}  // namespace foreshard::fsdp2
