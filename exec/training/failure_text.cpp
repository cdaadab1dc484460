#include "exec/training/failure_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string_view>

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

std::string unit_name(const Plan& plan, const Instruction& instruction) {
  const UnitId unit = unit_of(plan, instruction);
  if (!unit.valid()) return "";
  const std::string& name = plan.units[unit.index()].name;
  return name.empty() ? "root" : name;
}

/// The step is a turn of the last iteration, but for the first ones.
std::size_t iteration_of(const Plan& plan, std::int64_t step) {
  const auto last = static_cast<std::int64_t>(plan.iterations.size()) - 1;
  return static_cast<std::size_t>(std::clamp<std::int64_t>(step - 1, 0, last));
}

std::optional<int> number_behind(std::string_view text, std::string_view words) {
  const std::size_t at = text.find(words);
  if (at == std::string_view::npos) return std::nullopt;
  text.remove_prefix(at + words.size());
  int number = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  return code == std::errc() ? std::optional(number) : std::nullopt;
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

FailureAccount account_of(const Plan& plan, std::int64_t step, const Failure& failure) {
  FailureAccount account;
  account.text = failure_text(plan, step, failure);
  account.seen_by = plan.rank;
  account.rank = blamed_rank(failure.text).value_or(plan.rank);
  account.step = step;
  account.cause = failure.text;
  if (const Instruction* instruction = find_instruction(plan, failure.instruction)) {
    account.instruction = failure.instruction.value;
    account.unit = unit_name(plan, *instruction);
  }
  return account;
}

FailureAccount account_between(const Plan& plan, std::int64_t step, bool begun, const std::string& doing,
                               const std::string& cause) {
  FailureAccount account;
  account.seen_by = plan.rank;
  account.rank = blamed_rank(cause).value_or(plan.rank);
  account.step = step;
  account.cause = cause;
  const std::size_t iteration = iteration_of(plan, step);
  std::size_t first = 0;  // ids count over all iterations
  for (std::size_t i = 0; i < iteration; ++i) first += plan.iterations[i].instructions.size();
  const auto& instructions = plan.iterations[iteration].instructions;
  std::string where = "before instruction 0";
  if (!instructions.empty()) {
    const Instruction& nearest = begun ? instructions.back() : instructions.front();
    account.instruction = static_cast<std::int64_t>(begun ? first + instructions.size() - 1 : first);
    account.unit = unit_name(plan, nearest);
    where = fmt::format("{} instruction {}, {}{}", begun ? "behind" : "before", account.instruction,
                        instruction_kind_name(nearest.kind), unit_text(plan, nearest));
  }
  account.text = fmt::format("rank {}, step {}: {} ({}) failed: {}", plan.rank, step, doing, where, cause);
  return account;
}

std::optional<int> blamed_rank(const std::string& cause) {
  if (const auto lost = number_behind(cause, "lost rank ")) return lost;
  // The word that the launcher or another rank has left comes last.
  const std::size_t word = cause.rfind("; rank ");
  if (word != std::string::npos) return number_behind(cause.substr(word), "; rank ");
  return std::nullopt;
}

std::string account_json(const FailureAccount& account) {
  const nlohmann::json json = {{"text", account.text},  {"rank", account.rank}, {"seen_by", account.seen_by},
                               {"step", account.step},  {"unit", account.unit}, {"instruction", account.instruction},
                               {"cause", account.cause}};
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::optional<FailureAccount> account_from_json(const std::string& text) {
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return std::nullopt;
  try {
    return FailureAccount{json.at("text"),        json.at("rank"), json.at("seen_by"), json.at("step"),
                          json.at("instruction"), json.at("unit"), json.at("cause")};
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

}  // namespace foreshard::exec
