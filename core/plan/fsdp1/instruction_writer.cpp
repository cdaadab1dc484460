#include "core/plan/fsdp1/instruction_writer.h"

#include <array>

namespace foreshard::fsdp1 {
namespace {

constexpr std::array<const char*, kMarkCount> kMarkNames{
    "enter",          "lazy_init",     "skip",           "stop",
    "no_gradient",    "held_gradient", "saved_gradient", "cleared_gradient",
    "prefetch_begin", "prefetch_end",  "unpack",         "no_sync_enter",
    "no_sync_exit",   "summon_enter",  "summon_entered", "summon_exit",
    "unshard",        "wait_unshard",  "eval",           "train",
    "copy_to_host",   "comm_hook"};

/// Work on the device: after it, the stream's tail is another one (R26).
bool launches(InstructionKind kind) {
  switch (kind) {
    case InstructionKind::Cast:
    case InstructionKind::CopyIn:
    case InstructionKind::CopyOut:
    case InstructionKind::Concat:
    case InstructionKind::Fill:
    case InstructionKind::Pad:
    case InstructionKind::Divide:
    case InstructionKind::Accumulate:
    case InstructionKind::H2d:
    case InstructionKind::D2h:
    case InstructionKind::AllGather:
    case InstructionKind::ReduceScatter:
    case InstructionKind::AllReduce:
    case InstructionKind::Forward:
    case InstructionKind::Backward:
    case InstructionKind::Recompute: return true;
    default: return false;  // an addition is counted by the engine or by accumulate()
  }
}

}  // namespace

std::vector<std::string> mark_names() { return {kMarkNames.begin(), kMarkNames.end()}; }

Instruction& InstructionWriter::emit(InstructionKind kind, Stream stream) {
  Instruction& i = out_->emplace_back();
  i.kind = kind;
  i.stream = stream;
  i.phase = phase_;
  if (launches(kind)) autograd_.launch(stream);
  return i;
}

Instruction& InstructionWriter::emit(InstructionKind kind, Stream stream, const UnitState& u) {
  Instruction& i = emit(kind, stream);
  i.unit = u.id;
  return i;
}

Instruction& InstructionWriter::work(InstructionKind kind, Stream stream, const UnitState& u, BufferWhat what,
                                     Numel numel, DType dtype) {
  Instruction& i = emit(kind, stream, u);
  i.buffer = {what, u.id, {}};
  i.numel = numel;
  i.dtype = dtype;
  i.bytes = numel * itemsize(dtype);
  return i;
}

void InstructionWriter::mark(MarkName name) {
  emit(InstructionKind::Mark, Stream::Host).name = NameId(static_cast<std::int32_t>(name));
}

void InstructionWriter::mark(MarkName name, const UnitState& u) {
  emit(InstructionKind::Mark, Stream::Host, u).name = NameId(static_cast<std::int32_t>(name));
}

void InstructionWriter::enter(Phase phase, const UnitState& u, MarkName name) {
  phase_ = phase;
  mark(name, u);
}

void InstructionWriter::wait_stream(Stream stream, Stream other, const UnitState& u) {
  emit(InstructionKind::WaitStream, stream).other = other;
  name_root(u.id);
}

void InstructionWriter::wait_event(Stream stream, Stream other, EventId event, const UnitState& u) {
  Instruction& i = emit(InstructionKind::WaitEvent, stream);
  i.other = other;
  i.event = event;
  name_root(u.id);
}

void InstructionWriter::alloc(Stream pool, const UnitState& u, BufferWhat what, Numel numel, DType dtype) {
  work(InstructionKind::Alloc, pool, u, what, numel, dtype);
}

void InstructionWriter::free(Stream pool, const UnitState& u, BufferWhat what) {
  emit(InstructionKind::Free, pool, u).buffer = {what, u.id, {}};
}

void InstructionWriter::note_use(Stream pool, Stream other, const UnitState& u, BufferWhat what) {
  Instruction& i = emit(InstructionKind::NoteUse, pool, u);
  i.other = other;
  i.buffer = {what, u.id, {}};
}

}  // namespace foreshard::fsdp1
