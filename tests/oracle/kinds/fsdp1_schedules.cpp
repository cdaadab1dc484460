// fsdp1-schedules: the plan's instructions, printed in the recordings' tokens, against traces of FSDP1 2.11.
#include <algorithm>
#include <set>
#include <stdexcept>

#include "core/plan/build_plan.h"
#include "tests/oracle/fsdp1/fsdp1_row.h"
#include "tests/oracle/kinds/fsdp1_schedules_tokens.h"
#include "tests/oracle/oracle.h"

namespace foreshard::oracle {
namespace {

template <class T>
T need(Result<T> result) {
  if (!result) throw std::runtime_error(to_text(result.error()));
  return std::move(*result);
}

Plan plan_of(const Model& model, const Job& job) {
  const UnitTable table = need(build_units(model, job));
  const Script script = need(script_of(job));
  std::vector<bool> boundary(model.modules.size(), true);
  const std::vector<CheckpointKind> none(model.modules.size(), CheckpointKind::None);
  const ModuleGraph graph = need(build_module_graph(model, boundary, none));
  return need(build_fsdp1_plan({model, job, table, graph, script}));
}

/// Lines with their numbers, where they differ, for people.
std::string lines_diff(const Json& expected, const Json& got) {
  std::string text;
  for (std::size_t i = 0; i < std::max(expected.size(), got.size()); ++i) {
    const std::string e = i < expected.size() ? expected[i].dump() : "-", g = i < got.size() ? got[i].dump() : "-";
    text += e == g ? "      " + e + "\n" : "  exp " + e + "\n  got " + g + "\n";
  }
  return text;
}

bool differ(RowResult& result, const std::string& place, const Json& expected, const Json& got) {
  // Key order does not matter.
  if (nlohmann::json(expected) == nlohmann::json(got)) return false;
  if (expected.is_object() && got.is_object()) {
    for (const auto& [key, value] : expected.items()) {
      if (differ(result, place + "." + key, value, got.value(key, Json()))) return true;
    }
  }
  if (expected.is_array() && got.is_array()) {
    for (std::size_t i = 0; i < std::min(expected.size(), got.size()); ++i) {
      if (differ(result, place + "[" + std::to_string(i) + "]", expected[i], got[i])) return true;
    }
  }
  result.verdict = Verdict::Fail;
  result.place = place;
  result.expected = expected.dump();
  result.got = got.dump();
  return true;
}

/// Every buffer is allocated once before it is freed once; pieces of gradients are allocated inside their segments.
std::string memory_error(const Plan& plan) {
  std::set<std::string> alive;
  for (const PlanIteration& iteration : plan.iterations) {
    for (std::size_t n = 0; n < iteration.instructions.size(); ++n) {
      const Instruction& i = iteration.instructions[n];
      if (i.buffer.what == BufferWhat::GradPiece && i.buffer.param.valid()) continue;
      const std::string name = buffer_name(plan, i.buffer);
      const std::string where =
          " in iteration " + std::to_string(iteration.index) + ", instruction " + std::to_string(n);
      if (i.kind == InstructionKind::Alloc && !alive.insert(name).second) return name + " allocated twice" + where;
      if (i.kind == InstructionKind::Free && alive.erase(name) == 0) return name + " freed without allocation" + where;
      const bool used = i.kind != InstructionKind::Alloc && i.kind != InstructionKind::Free &&
                        i.kind != InstructionKind::UseFull && i.kind != InstructionKind::CopyOut &&
                        i.buffer.what != BufferWhat::None;
      if (used && !alive.contains(name) && i.buffer.what != BufferWhat::Grad)
        return name + " used while not allocated" + where;
    }
  }
  return {};
}

/// A row whose model PyTorch refused to wrap: there is no plan either.
RowResult compare_refusal(const Json& row, const Json& error) {
  RowResult result;
  try {
    plan_of(model_of_row(row.at("model")), job_of_row(row));
  } catch (const std::exception&) {
    return result;
  }
  differ(result, "result.error", error, Json("a plan"));
  return result;
}

RowResult compare(const Json& row) {
  const Json& recorded = row.at("result");
  if (!recorded.contains("iterations")) return compare_refusal(row, recorded.value("error", Json()));
  const Model model = model_of_row(row.at("model"));
  const Job job = job_of_row(row);
  const Plan plan = plan_of(model, job);
  if (const std::string error = memory_error(plan); !error.empty()) {
    return {.id = {},
            .verdict = Verdict::Fail,
            .place = "memory",
            .expected = "allocations and frees that balance",
            .got = error,
            .detail = {}};
  }
  Json got = schedule_of_plan(plan, model);
  Json expected = row.at("result");
  for (Json& iteration : expected.at("iterations")) {
    if (iteration.contains("error")) iteration["error"].erase(2);  // texts are ours
  }
  RowResult result;
  const Json& want = expected.at("iterations");
  const Json& have = got.at("iterations");
  for (std::size_t i = 0; i < std::min(want.size(), have.size()); ++i) {
    for (const auto& [key, value] : want[i].items()) {
      if (!have[i].contains(key) && differ(result, "iterations[" + std::to_string(i) + "]." + key, value, Json()))
        return result;
    }
    for (const char* key :
         {"lines", "error", "pre_order", "post_order", "pre_index", "post_index", "queue", "actions"}) {
      // What the row does not state is not compared, but an error that it does not state is one.
      if (!want[i].contains(key) && std::string(key) != "error") continue;
      if (differ(result, "iterations[" + std::to_string(i) + "]." + key, want[i].value(key, Json()),
                 have[i].value(key, Json()))) {
        if (std::string(key) == "lines") result.detail = lines_diff(want[i].at("lines"), have[i].at("lines"));
        return result;
      }
    }
  }
  for (const auto& [key, value] : expected.items()) {
    if (key != "iterations" && differ(result, key, value, got.value(key, Json()))) return result;
  }
  differ(result, "iterations", want.size(), have.size());
  return result;
}

Report run(const std::vector<std::string>& files, const Options& options) {
  return for_each_row(files, options, compare);
}

ORACLE_KIND("fsdp1-schedules", run);

}  // namespace
}  // namespace foreshard::oracle
