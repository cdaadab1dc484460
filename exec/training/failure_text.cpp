#include "exec/training/failure_text.h"

#include <fmt/format.h>

#include <cstddef>

namespace foreshard::exec {
namespace {

const Instruction* find_instruction(const Plan& plan, InstructionId id) {
  if (!id.valid()) return nullptr;
  std::size_t index = id.index();  // counts over all iterations
  for (const PlanIteration& iteration : plan.iterations) {
    if (index < iteration.instructions.size()) return &iteration.instructions[index];
    index -= iteration.instructions.size();
  }
  return nullptr;
}

/// The unit of an instruction: its own, its buffer's, or its segment's.
UnitId unit_of(const Plan& plan, const Instruction& instruction) {
  if (instruction.unit.valid()) return instruction.unit;
  if (instruction.buffer.unit.valid()) return instruction.buffer.unit;
  if (instruction.segment.valid()) return plan.segments[instruction.segment.index()].unit;
  return {};
}

std::string unit_text(const Plan& plan, const Instruction& instruction) {
  const UnitId unit = unit_of(plan, instruction);
  if (!unit.valid()) return "";
  const std::string& name = plan.units[unit.index()].name;
  return name.empty() ? " of the root unit" : " of unit " + name;
}

}  // namespace

std::string instruction_text(const Plan& plan, const Failure& failure) {
  const Instruction* instruction = find_instruction(plan, failure.instruction);
  if (instruction == nullptr) return "stream " + failure.stream;
  return fmt::format("{}{} (instruction {}, stream {})", instruction_kind_name(instruction->kind),
                     unit_text(plan, *instruction), failure.instruction.value, failure.stream);
}

std::string failure_text(const Plan& plan, std::int64_t step, const Failure& failure) {
  return fmt::format("rank {}, step {}: {} failed: {}", plan.rank, step, instruction_text(plan, failure), failure.text);
}

}  // namespace foreshard::exec
