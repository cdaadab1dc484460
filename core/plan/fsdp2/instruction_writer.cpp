#include "core/plan/fsdp2/instruction_writer.h"

#include <algorithm>

namespace foreshard::fsdp2 {
namespace {

constexpr std::array<std::string_view, kWordCount> kWords{"fsdp.all_gather_copy_in",
                                                          "aten._foreach_copy_",
                                                          "fsdp.split_with_sizes_copy",
                                                          "fsdp.chunk_cat",
                                                          "aten.copy_",
                                                          "aten.add_",
                                                          "aten.div_",
                                                          "aten.div",
                                                          "aten._to_copy",
                                                          "aten.clone",
                                                          "aten.cat",
                                                          "aten.empty_like",
                                                          "unshard",
                                                          "all_gather",
                                                          "copy_out",
                                                          "reshard_after_forward",
                                                          "reduce_scatter",
                                                          "all_reduce",
                                                          "grad_offload",
                                                          "post_reduce",
                                                          "user",
                                                          "bucket",
                                                          "begin root_pre_forward",
                                                          "end root_pre_forward",
                                                          "begin pre_forward",
                                                          "end pre_forward",
                                                          "begin post_forward",
                                                          "end post_forward",
                                                          "begin pre_backward",
                                                          "end pre_backward",
                                                          "begin post_backward",
                                                          "end post_backward",
                                                          "begin unshard",
                                                          "end unshard",
                                                          "begin wait_for_unshard",
                                                          "end wait_for_unshard",
                                                          "begin reshard",
                                                          "end reshard",
                                                          "begin final_callback",
                                                          "end final_callback",
                                                          "begin finalize_backward",
                                                          "end finalize_backward",
                                                          "grad",
                                                          "copy_in_grad",
                                                          "wait_work",
                                                          "all_reduce_hook",
                                                          "norm",
                                                          "micro_batch"};

}  // namespace

InstructionWriter::InstructionWriter(Plan& plan) : plan_(plan) {
  plan_.names.reserve(kWords.size() + 8);
  for (std::size_t i = 0; i < kWords.size(); ++i) {
    words_[i] = NameId(plan_.names.size());
    plan_.names.emplace_back(kWords[i]);
  }
}

NameId InstructionWriter::intern(std::string_view text) {
  const auto found = std::find(plan_.names.begin(), plan_.names.end(), text);
  if (found != plan_.names.end()) return NameId(static_cast<std::size_t>(found - plan_.names.begin()));
  plan_.names.emplace_back(text);
  return NameId(plan_.names.size() - 1);
}

EventId InstructionWriter::record(Stream stream, Word word, UnitId unit) {
  Instruction& instruction = add(InstructionKind::RecordEvent, stream, unit);
  instruction.event = EventId(next_event_++);
  instruction.name = name(word);
  return instruction.event;
}

void InstructionWriter::wait_event(Stream stream, EventId event, UnitId unit) {
  add(InstructionKind::WaitEvent, stream, unit).event = event;
}

void InstructionWriter::wait_stream(Stream stream, Stream other, UnitId unit) {
  add(InstructionKind::WaitStream, stream, unit).other = other;
}

void InstructionWriter::host_wait(EventId event, UnitId unit) {
  add(InstructionKind::HostWait, Stream::Host, unit).event = event;
}

Instruction& InstructionWriter::alloc(BufferName buffer, Stream pool, Bytes bytes, std::int32_t instance) {
  Instruction& instruction = add(InstructionKind::Alloc, pool, buffer.unit);
  instruction.buffer = buffer;
  instruction.bytes = bytes;
  instruction.arg = instance;
  return instruction;
}

void InstructionWriter::free(BufferName buffer, Stream pool, Bytes bytes, std::int32_t instance) {
  Instruction& instruction = add(InstructionKind::Free, pool, buffer.unit);
  instruction.buffer = buffer;
  instruction.bytes = bytes;
  instruction.arg = instance;
}

void InstructionWriter::resize(BufferName buffer, Stream pool, Bytes bytes) {
  Instruction& instruction = add(InstructionKind::Resize, pool, buffer.unit);
  instruction.buffer = buffer;
  instruction.bytes = bytes;
}

Instruction& InstructionWriter::kernel(InstructionKind kind, Stream stream, NameId name, UnitId unit, Numel numel,
                                       DType dtype) {
  Instruction& instruction = add(kind, stream, unit);
  instruction.name = name;
  instruction.numel = numel;
  instruction.dtype = dtype;
  instruction.bytes = numel * itemsize(dtype);
  return instruction;
}

}  // namespace foreshard::fsdp2
