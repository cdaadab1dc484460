#include "tests/core/fsdp1/fixture.h"

#include <algorithm>
#include <map>
#include <stdexcept>

#include "tests/oracle/fsdp1/fsdp1_row.h"
#include "tests/oracle/kinds/fsdp1_schedules_tokens.h"

namespace foreshard::fsdp1_test {
namespace {

Json linear(const std::string& path, int in, int out, bool trainable) {
  return {{"path", path}, {"class", "Linear"}, {"params", {{"weight", {out, in}, trainable}}}};
}

Json graph(const std::vector<Json>& steps, const std::string& output) {
  return {{"path", ""}, {"class", "Graph"}, {"inputs", {"x"}}, {"steps", steps}, {"outputs", {output}}};
}

Json with_modules(const std::vector<Json>& modules) {
  Json args = Json::array();
  args.push_back({"x", {2, 2}, "fp32", false});
  return {{"name", "test"}, {"dtype", "fp32"}, {"args", args}, {"modules", modules}, {"shared", Json::array()}};
}

Json step(const std::string& out, const std::string& op, const std::string& in) {
  return Json::array({out, op, Json::array({in})});
}

Json row_of(const Scenario& scenario) {
  return {{"id", "test"},
          {"W", scenario.world_size},
          {"rank", scenario.rank},
          {"model", scenario.model},
          {"units", scenario.units},
          {"options", scenario.options.is_null() ? Json::object() : scenario.options},
          {"iterations", scenario.iterations}};
}

template <class T>
T need(Result<T> result) {
  if (!result) throw std::runtime_error(to_text(result.error()));
  return std::move(*result);
}

}  // namespace

Json chain(int blocks, const std::string& op, const std::vector<std::string>& frozen) {
  const auto trains = [&](const std::string& name) {
    return std::find(frozen.begin(), frozen.end(), name) == frozen.end();
  };
  std::vector<Json> steps{step("h0", "call:embed", "x")};
  std::vector<Json> modules{Json(), linear("embed", 2, 10, trains("embed"))};
  for (int i = 0; i < blocks; ++i) {
    const std::string name = "B" + std::to_string(i);
    steps.push_back(step("h" + std::to_string(i + 1), op + ":" + name, "h" + std::to_string(i)));
    modules.push_back(linear(name, 10, 10, trains(name)));
  }
  steps.push_back(step("y", "call:head", "h" + std::to_string(blocks)));
  modules.push_back(linear("head", 10, 2, trains("head")));
  modules.front() = graph(steps, "y");
  return with_modules(modules);
}

Json twice(bool dead) {
  const std::vector<Json> steps{step("h0", "call:embed", "x"), step("h1", "call:B0", "h0"),
                                step("h2", "call:B0", dead ? "h0" : "h1"), step("h3", "call:B1", "h2"),
                                step("y", "call:head", "h3")};
  return with_modules({graph(steps, "y"), linear("embed", 2, 10, true), linear("B0", 10, 10, true),
                       linear("B1", 10, 10, true), linear("head", 10, 2, true)});
}

std::vector<std::vector<std::string>> train(int iterations) {
  return std::vector<std::vector<std::string>>(static_cast<std::size_t>(iterations), {"zero", "fwd", "bwd", "step"});
}

namespace {

Plan build(const Scenario& scenario, bool repeat) {
  const Json row = row_of(scenario);
  const Model model = oracle::model_of_row(row.at("model"));
  Job job = oracle::job_of_row(row);
  job.train.grad_scaler.enabled = scenario.scaler;
  if (repeat) {
    job.train.script.clear();
    job.train.clip_grad_norm = 0;
  }
  const UnitTable table = need(build_units(model, job));
  const Script script = need(script_of(job));
  const ModuleGraph graph = need(build_module_graph(model, {}, {}));
  return need(build_fsdp1_plan({model, job, table, graph, script}));
}

}  // namespace

Plan plan_of(const Scenario& scenario) { return build(scenario, false); }
Plan repeating_plan_of(const Scenario& scenario) { return build(scenario, true); }

namespace {

Json printed(const Scenario& scenario, const Plan& plan, std::size_t iteration) {
  return oracle::schedule_of_plan(plan, oracle::model_of_row(scenario.model))
      .at("iterations")
      .at(iteration)
      .at("lines");
}

bool dropped(const std::string& token) {
  return token.starts_with("note ") || token.starts_with("div ") || token.starts_with("-mp ") || token == "lazy-init" ||
         token == "D<-D" || token == ")";
}

std::string short_form(const std::string& tokens) {
  std::string out;
  for (std::size_t begin = 0; begin < tokens.size();) {
    std::size_t end = tokens.find("; ", begin);
    if (end == std::string::npos) end = tokens.size();
    const std::string token = tokens.substr(begin, end - begin);
    begin = end + 2;
    if (dropped(token)) continue;
    out += (out.empty() || out.ends_with("pf: ") ? "" : "; ") + (token == "pf(" ? std::string("pf: ") : token);
  }
  return out;
}

}  // namespace

std::vector<std::string> lines(const Scenario& scenario, const Plan& plan, std::size_t iteration) {
  std::vector<std::string> out;
  const Json printed_lines = printed(scenario, plan, iteration);
  for (const Json& line : printed_lines) {
    out.push_back(line.at(0).get<std::string>() + " | " + short_form(line.at(1).get<std::string>()));
  }
  return out;
}

std::vector<std::string> live(const Scenario& scenario, const Plan& plan, std::size_t iteration) {
  std::vector<std::string> out;
  const Json printed_lines = printed(scenario, plan, iteration);
  for (const Json& line : printed_lines) out.push_back(line.at(2));
  return out;
}

std::vector<std::string> only(const std::vector<std::string>& all, const std::vector<std::string>& heads) {
  std::vector<std::string> out;
  for (const std::string& line : all) {
    if (std::any_of(heads.begin(), heads.end(), [&](const std::string& head) { return line.starts_with(head); }))
      out.push_back(line);
  }
  return out;
}

int count(const PlanIteration& iteration, InstructionKind kind) {
  return static_cast<int>(std::count_if(iteration.instructions.begin(), iteration.instructions.end(),
                                        [&](const Instruction& i) { return i.kind == kind; }));
}

Numel live_peak(const PlanIteration& iteration, bool in_backward) {
  std::map<UnitId, Numel> alive;
  Numel peak = 0;
  bool backward = false;
  for (const Instruction& i : iteration.instructions) {
    backward = backward || i.phase == Phase::PreBackward;
    if (i.buffer.what != BufferWhat::Full) continue;
    if (i.kind == InstructionKind::Alloc) alive[i.unit] = i.numel;
    if (i.kind == InstructionKind::Free) alive.erase(i.unit);
    Numel sum = 0;
    for (const auto& [unit, numel] : alive) sum += numel;
    if (backward == in_backward) peak = std::max(peak, sum);
  }
  return peak;
}

}  // namespace foreshard::fsdp1_test
