#include "core/instruction_spans.h"

#include <charconv>

#include "core/dtype.h"

namespace foreshard {
namespace {

constexpr std::string_view kIteration = "iteration ", kIssue = "issue ", kFrom = " from ";

std::optional<std::int32_t> whole_number(std::string_view text) {
  std::int32_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

}  // namespace

bool makes_work(InstructionKind kind) { return work_span_kind(kind) != SpanKind::Other; }

SpanKind work_span_kind(InstructionKind kind) {
  switch (kind) {
    case InstructionKind::AllGather: return SpanKind::AllGather;
    case InstructionKind::ReduceScatter: return SpanKind::ReduceScatter;
    case InstructionKind::AllReduce: return SpanKind::AllReduce;
    case InstructionKind::Broadcast: return SpanKind::Broadcast;
    case InstructionKind::Cast: return SpanKind::Cast;
    case InstructionKind::Fill: return SpanKind::Memset;
    case InstructionKind::CopyIn:
    case InstructionKind::CopyOut:
    case InstructionKind::Concat:
    case InstructionKind::Add:
    case InstructionKind::Pad:
    case InstructionKind::Divide:
    case InstructionKind::Accumulate:
    case InstructionKind::H2d:
    case InstructionKind::D2h: return SpanKind::Copy;
    case InstructionKind::Forward:
    case InstructionKind::Backward:
    case InstructionKind::Recompute: return SpanKind::Compute;
    case InstructionKind::Clip:
    case InstructionKind::ScaleLoss:
    case InstructionKind::Unscale:
    case InstructionKind::UpdateScale:
    case InstructionKind::OptimizerStep: return SpanKind::Optimizer;
    default: return SpanKind::Other;
  }
}

std::string host_span_name(const Plan& plan, const Instruction& instruction) {
  std::string text(instruction_kind_name(instruction.kind));
  if (instruction.unit.valid() && instruction.unit.index() < plan.units.size()) {
    const std::string& unit = plan.units[instruction.unit.index()].name;
    text += " " + (unit.empty() ? std::string("root") : unit);
  }
  return text;
}

std::string_view work_span_name(const Plan& plan, const Instruction& instruction) {
  if (instruction.segment.valid() && instruction.segment.index() < plan.segments.size())
    return plan.segments[instruction.segment.index()].label;
  if (instruction.name.valid()) return plan.name_of(instruction.name);
  return instruction_kind_name(instruction.kind);
}

Bytes instruction_bytes(const Instruction& instruction) {
  return instruction.bytes > 0 ? instruction.bytes : instruction.numel * itemsize(instruction.dtype);
}

std::string iteration_mark(std::int32_t index) { return std::string(kIteration) + std::to_string(index); }

std::string issue_mark(std::int32_t index, InstructionId instruction) {
  return std::string(kIssue) + std::to_string(index) + std::string(kFrom) + std::to_string(instruction.value);
}

std::optional<std::int32_t> read_iteration_mark(std::string_view name) {
  if (!name.starts_with(kIteration)) return std::nullopt;
  return whole_number(name.substr(kIteration.size()));
}

std::optional<IssueMark> read_issue_mark(std::string_view name) {
  if (!name.starts_with(kIssue)) return std::nullopt;
  name.remove_prefix(kIssue.size());
  const std::size_t from = name.find(kFrom);
  if (from == std::string_view::npos) return std::nullopt;
  const auto index = whole_number(name.substr(0, from));
  const auto first = whole_number(name.substr(from + kFrom.size()));
  if (!index || !first) return std::nullopt;
  return IssueMark{*index, InstructionId(*first)};
}

}  // namespace foreshard
