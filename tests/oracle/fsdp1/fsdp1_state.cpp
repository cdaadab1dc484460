#include "tests/oracle/fsdp1/fsdp1_state.h"

#include <fmt/format.h>

#include <cstdlib>
#include <map>
#include <set>
#include <stdexcept>

#include "core/plan/actions/build_actions.h"
#include "core/plan/actions/state_dict.h"
#include "core/plan/build_plan.h"
#include "tests/oracle/fsdp1/fsdp1_row.h"

namespace foreshard::oracle {
namespace {

struct RankOfRow {
  RankOfRow(const Json& row, std::size_t rank) : model(model_of_row(row.at("model"))) {
    Json whole = row;
    whole["rank"] = rank;
    if (!whole.contains("iterations")) whole["iterations"] = Json::array();
    job = job_of_row(whole);
    auto made = build_units(model, job);
    if (!made) throw std::runtime_error(to_text(made.error()));
    table = std::move(*made);
  }
  Model model;
  Job job;
  UnitTable table;
};

void differ(RowResult& result, const std::string& place, const std::string& expected, const std::string& got) {
  if (expected == got) return;
  result.detail += fmt::format("  {}: expected {}, got {}\n", place, expected, got);
  if (result.verdict == Verdict::Fail) return;
  result.verdict = Verdict::Fail;
  result.place = place;
  result.expected = expected;
  result.got = got;
}

/// What the row states beside these is read by nobody.
void only_keys(RowResult& result, const std::string& place, const Json& object, const std::set<std::string>& read) {
  for (const auto& [key, value] : object.items()) {
    if (!read.contains(key)) differ(result, place + "." + key, value.dump(), "nothing");
  }
}

std::string type_text(DType dtype) {
  switch (dtype) {
    case DType::Float32: return "fp32";
    case DType::BFloat16: return "bf16";
    case DType::Float16: return "fp16";
    case DType::Float64: return "fp64";
    default: return std::string(dtype_name(dtype));
  }
}

Json shown(const StateEntry& entry) {
  if (!entry.sharded) return Json::array({"tensor", entry.shape, type_text(entry.dtype)});
  Json shards = Json::array();
  if (entry.held) shards.push_back(Json::array({entry.offset, entry.local}));
  return Json::array({"sharded", entry.shape, shards});
}

/// "FULL rank0_only optimizer"
ActionRequest request_of(const std::string& kind) {
  if (!kind.starts_with("FULL") && !kind.starts_with("SHARDED") && !kind.starts_with("LOCAL"))
    throw std::runtime_error("an unknown kind of state dict: " + kind);
  ActionRequest request;
  request.action = PlanAction::Save;
  request.kind = kind.starts_with("FULL")      ? StateKind::Full
                 : kind.starts_with("SHARDED") ? StateKind::Sharded
                                               : StateKind::Local;
  request.rank0_only = kind.find("rank0_only") != std::string::npos;
  return request;
}

/// By key, and for an optimizer by key and tensor. Order is the dict's own business.
using Entries = std::map<std::string, std::string>;

Entries planned(const StateSource& source, const std::string& kind) {
  Entries entries;
  const ActionRequest request = request_of(kind);
  if (kind.find("optimizer") == std::string::npos) {
    for (const StateEntry& entry : model_state(source, request)) entries[entry.key] = shown(entry).dump();
    return entries;
  }
  for (const StateEntry& entry : optimizer_state(source, request)) {
    for (const OptimizerTensor& tensor : optimizer_tensors(source.job.train.optimizer)) {
      const Json scalar = Json::array({"tensor", Json::array(), "fp32"});
      entries[entry.key + "/" + tensor.name] = (tensor.scalar ? scalar : shown(entry)).dump();
    }
  }
  return entries;
}

Entries recorded(const Json& dict, const std::string& kind) {
  Entries entries;
  if (kind.find("optimizer") == std::string::npos) {
    for (const auto& [key, value] : dict.items()) entries[key] = value.dump();
    return entries;
  }
  for (const auto& [key, value] : dict.items()) {
    if (key != "state" && key != "param_groups") entries[key] = value.dump();
  }
  if (!dict.contains("state")) return entries;
  for (const auto& [key, tensors] : dict.at("state").items()) {
    for (const auto& [name, value] : tensors.items()) entries[key + "/" + name] = value.dump();
  }
  return entries;
}

void compare_events(const std::string& place, const Json& expected, const std::vector<std::int64_t>& got,
                    RowResult& result) {
  differ(result, place, expected.dump(), Json(got).dump());
}

/// Allocations as + and frees as -, from instruction `begin` on, of what `wanted` lets through. Gradients of single
/// parameters come to be inside the segment that computes them.
template <class F>
std::vector<std::int64_t> events_of(const Model& model, const Plan& plan, const PlanIteration& iteration,
                                    std::size_t begin, F&& wanted) {
  std::map<ParamId, Bytes> pieces;
  for (const Instruction& in : iteration.instructions) {
    if (in.kind == InstructionKind::Free && in.buffer.what == BufferWhat::GradPiece) {
      const ParamInfo& param = model.params[in.buffer.param.index()];
      pieces[in.buffer.param] = numel_of(param.shape) * itemsize(param.dtype);
    }
  }
  std::vector<std::int64_t> events;
  std::vector<std::pair<BufferName, Bytes>> held;
  const auto note = [&](std::size_t i, const BufferName& buffer, Bytes change) {
    if (i >= begin && wanted(buffer, std::abs(change))) events.push_back(change);
  };
  for (std::size_t i = 0; i < iteration.instructions.size(); ++i) {
    const Instruction& in = iteration.instructions[i];
    if (in.kind == InstructionKind::Alloc) {
      held.emplace_back(in.buffer, in.bytes);
      note(i, in.buffer, in.bytes);
    } else if (in.kind == InstructionKind::Backward) {
      for (const ParamId param : plan.segments[in.segment.index()].params) {
        if (pieces.contains(param)) note(i, {}, pieces.at(param));
      }
    } else if (in.kind == InstructionKind::Free && in.buffer.what == BufferWhat::GradPiece) {
      note(i, in.buffer, -pieces.at(in.buffer.param));
    } else if (in.kind == InstructionKind::Free) {
      for (const auto& [name, bytes] : held) {
        if (name == in.buffer) note(i, in.buffer, -bytes);
      }
    }
  }
  return events;
}

}  // namespace

RowResult compare_state_dicts(const Json& row) {
  RowResult result;
  differ(result, "result (ranks)", row.at("W").dump(), std::to_string(row.at("result").size()));
  for (std::size_t rank = 0; rank < row.at("result").size(); ++rank) {
    const RankOfRow at(row, rank);
    const StateSource source{at.model, at.job, at.table};
    for (const auto& [kind, dict] : row.at("result")[rank].items()) {
      const Entries want = recorded(dict, kind), got = planned(source, kind);
      std::set<std::string> keys;
      for (const Entries* side : {&want, &got}) {
        for (const auto& [key, value] : *side) keys.insert(key);
      }
      const auto text_of = [](const Entries& entries, const std::string& key) {
        const auto found = entries.find(key);
        return found == entries.end() ? std::string("no such key") : found->second;
      };
      for (const std::string& key : keys) {
        differ(result, fmt::format("[{}].{}.{}", rank, kind, key), text_of(want, key), text_of(got, key));
      }
    }
  }
  return result;
}

RowResult compare_bytes(const Json& row) {
  RowResult result;
  const RankOfRow at(row, 0);
  ActionRequest init;
  const Result<Plan> plan = build_action_plan(at.model, at.job, at.table, {init});
  if (!plan) throw std::runtime_error(to_text(plan.error()));
  const PlanIteration& wrapping = plan->iterations.at(0);
  Bytes original = 0;
  Numel elements = 0;
  for (const ParamInfo& param : at.model.params) {
    elements += param.shares.valid() ? 0 : numel_of(param.shape);
    original += param.shares.valid() ? 0 : numel_of(param.shape) * itemsize(param.dtype);
  }
  differ(result, "n", row.at("result").at("n").dump(), std::to_string(elements));
  differ(result, "original_bytes", row.at("result").at("original_bytes").dump(), std::to_string(original));
  only_keys(result, "result", row.at("result"), {"n", "original_bytes", "construction", "backward"});
  only_keys(result, "construction", row.at("result").at("construction"), {"peak", "end", "large_events"});
  only_keys(result, "backward", row.at("result").at("backward"),
            {"peak_above_start", "end_above_start", "large_events"});
  const Json& construction = row.at("result").at("construction");
  const ActionMemory memory = action_memory(wrapping);
  differ(result, "construction.peak", construction.at("peak").dump(), std::to_string(memory.device_peak));
  differ(result, "construction.end", construction.at("end").dump(), std::to_string(memory.device_end));
  compare_events("construction.large_events", construction.at("large_events"),
                 events_of(at.model, *plan, wrapping, 0, [](const BufferName&, Bytes) { return true; }), result);

  Json with_script = row;
  with_script["iterations"] = Json::array({Json::array({"zero", "fwd", "bwd"})});
  const Result<Plan> training = build_plan(at.model, job_of_row(with_script));
  if (!training) throw std::runtime_error(to_text(training.error()));
  const PlanUnit& unit = training->units.at(0);
  const Bytes large = unit.shard_numel * itemsize(unit.orig_dtype) / 2;
  const Json& backward = row.at("result").at("backward");
  const PlanIteration& iteration = training->iterations.at(0);
  std::size_t begin = 0;
  while (iteration.instructions.at(begin).kind != InstructionKind::Backward) ++begin;
  const std::vector<std::int64_t> events =
      events_of(at.model, *training, iteration, begin, [&](const BufferName& buffer, Bytes bytes) {
        return bytes > large && buffer.what != BufferWhat::Full;  // the recording looks at gradients
      });
  compare_events("backward.large_events", backward.at("large_events"), events, result);
  Bytes now = 0, peak = 0;
  for (const std::int64_t change : events) peak = std::max<Bytes>(peak, now += change);
  differ(result, "backward.end_above_start", backward.at("end_above_start").dump(), std::to_string(now));
  // The recording's peak has the loss' gradient, four bytes, beside the large ones.
  differ(result, "backward.peak_above_start", backward.at("peak_above_start").dump(),
         std::to_string(peak + itemsize(DType::Float32)));
  return result;
}

}  // namespace foreshard::oracle
