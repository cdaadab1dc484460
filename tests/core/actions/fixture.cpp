#include "tests/core/actions/fixture.h"

#include <zlib.h>

#include <stdexcept>

#include "tests/oracle/fsdp1/fsdp1_row.h"

namespace foreshard::actions_test {
namespace {

Json linear(const std::string& path, int in, int out) {
  return {{"path", path}, {"class", "Linear"}, {"params", {{"weight", {out, in}, true}}}};
}

Subject sequence(const std::vector<Json>& layers, const std::vector<std::string>& units, std::int64_t world_size) {
  Json steps = Json::array(), modules = Json::array();
  std::string last = "x";
  modules.push_back(Json());
  for (const Json& layer : layers) {
    const std::string path = layer.at("path");
    steps.push_back({"h" + path, "call:" + path, Json::array({last})});
    last = "h" + path;
    modules.push_back(layer);
  }
  modules[0] = {
      {"path", ""}, {"class", "Graph"}, {"inputs", {"x"}}, {"steps", steps}, {"outputs", Json::array({last})}};
  Json args = Json::array();
  args.push_back({"x", {2, 2}, "fp32", false});
  const Json row = {
      {"id", "test"},
      {"W", world_size},
      {"model", {{"name", "test"}, {"dtype", "fp32"}, {"args", args}, {"modules", modules}, {"shared", Json::array()}}},
      {"units", units},
      {"options", {{"strategy", "FULL_SHARD"}, {"use_orig_params", false}}}};
  return of_row(row, 0);
}

}  // namespace

Subject chain() {
  return sequence(
      {linear("embed", 2, 10), linear("B0", 10, 10), linear("B1", 10, 10), linear("B2", 10, 10), linear("head", 10, 2)},
      {"B0", "B1", "B2"}, 4);
}

Subject uneven(std::int64_t world_size) { return sequence({linear("a", 3, 5), linear("b", 5, 3)}, {}, world_size); }

Subject of_row(const Json& row, std::int64_t rank) {
  Json whole = row;
  whole["rank"] = rank;
  if (!whole.contains("iterations")) whole["iterations"] = Json::array();
  return {oracle::model_of_row(whole.at("model")), oracle::job_of_row(whole)};
}

std::vector<Json> recorded_rows() {
  const std::string path = FORESHARD_TEST_DATA "/actions/numerics.jsonl.gz";
  gzFile file = gzopen(path.c_str(), "rb");
  if (file == nullptr) throw std::runtime_error("cannot read " + path);
  std::string text;
  char buffer[65536];
  for (int n = 0; (n = gzread(file, buffer, sizeof buffer)) > 0;) text.append(buffer, static_cast<std::size_t>(n));
  gzclose(file);
  std::vector<Json> rows;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    rows.push_back(Json::parse(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  return rows;
}

UnitTable units_of(const Subject& subject) {
  Result<UnitTable> table = build_units(subject.model, subject.job);
  if (!table) throw std::runtime_error(to_text(table.error()));
  return std::move(*table);
}

namespace {

Result<Plan> try_plan(const Subject& subject, const std::string& actions) {
  const Result<std::vector<ActionRequest>> requests = parse_actions(actions);
  if (!requests) return tl::unexpected(requests.error());
  return build_action_plan(subject.model, subject.job, units_of(subject), *requests);
}

}  // namespace

Plan plan_of(const Subject& subject, const std::string& actions) {
  Result<Plan> plan = try_plan(subject, actions);
  if (!plan) throw std::runtime_error(to_text(plan.error()));
  return std::move(*plan);
}

std::string error_of(const Subject& subject, const std::string& actions) {
  const Result<Plan> plan = try_plan(subject, actions);
  return plan ? std::string() : plan.error().message;
}

int count(const PlanIteration& iteration, InstructionKind kind) {
  int n = 0;
  for (const Instruction& i : iteration.instructions) n += i.kind == kind ? 1 : 0;
  return n;
}

namespace {

std::string event_text(const Plan& plan, const Instruction& i) {
  std::string text;
  switch (i.kind) {
    case InstructionKind::Alloc: text = "+"; break;
    case InstructionKind::Free: text = "-"; break;
    case InstructionKind::AllGather:
    case InstructionKind::Broadcast:
    case InstructionKind::H2d:
    case InstructionKind::D2h: text = std::string(instruction_kind_name(i.kind)) + " "; break;
    default: return text;
  }
  text += buffer_name(plan, i.buffer);
  if (i.arg > 0) text += "/" + std::to_string(i.arg);
  if (i.bytes > 0) text += " " + std::to_string(i.bytes);
  return i.stream == Stream::Host ? "[" + text + "]" : text;
}

}  // namespace

std::vector<std::string> events(const Plan& plan, std::size_t iteration) {
  std::vector<std::string> texts;
  for (const Instruction& i : plan.iterations.at(iteration).instructions) {
    std::string text = event_text(plan, i);
    if (!text.empty()) texts.push_back(std::move(text));
  }
  return texts;
}

std::vector<std::string> events_of(const Plan& plan, std::size_t iteration, const std::string& unit) {
  std::vector<std::string> texts;
  const UnitId id = plan.find_unit(unit);
  for (const Instruction& i : plan.iterations.at(iteration).instructions) {
    if (i.unit != id && i.buffer.unit != id) continue;
    std::string text = event_text(plan, i);
    if (!text.empty()) texts.push_back(std::move(text));
  }
  return texts;
}

}  // namespace foreshard::actions_test
