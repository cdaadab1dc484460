// What the span of an instruction is called and means: the same words whether the instruction was simulated or
// executed, so that timelines of both can be laid side by side. Pure functions of the plan.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "core/plan.h"
#include "core/timeline.h"

namespace foreshard {

/// Whether the instruction puts work on a stream that a timeline shows. Allocations, events, waits, uses and marks do
/// not.
bool makes_work(InstructionKind kind);

/// Of the work on the stream: all_gather, copy, cast, compute, ...; Other for instructions that make none.
SpanKind work_span_kind(InstructionKind kind);

/// "all_gather layers.0": of the host's span while it issues the instruction. The root unit is spelt "root".
std::string host_span_name(const Plan& plan, const Instruction& instruction);

/// A segment's label, the kernel's own name, or the kind.
std::string_view work_span_name(const Plan& plan, const Instruction& instruction);

/// The bytes an instruction says, or those of its elements.
Bytes instruction_bytes(const Instruction& instruction);

/// Names of two marks: where iteration `index` begins (the one before has ended), and where the host begins to issue it
/// (earlier, where the host runs ahead), with the id of its first instruction. So a timeline says which spans belong to
/// which iteration, and the same instruction of two iterations can be found.
std::string iteration_mark(std::int32_t index);                         // "iteration 2"
std::string issue_mark(std::int32_t index, InstructionId instruction);  // "issue 2 from 1234"

struct IssueMark {
  std::int32_t index = 0;
  InstructionId first;
};
std::optional<std::int32_t> read_iteration_mark(std::string_view name);
std::optional<IssueMark> read_issue_mark(std::string_view name);

}  // namespace foreshard
