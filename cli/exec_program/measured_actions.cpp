#include "cli/exec_program/measured_actions.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "cli/console/amount_text.h"
#include "cli/console/json_text.h"
#include "cli/reports/action_report.h"
#include "core/plan_warnings.h"

namespace foreshard::cli {
namespace {

using exec::ActionReport;
using exec::ActionTensor;
using nlohmann::json;

constexpr std::size_t kMostRanks = 16;    // rows of the table
constexpr std::size_t kLongestName = 60;  // that others are aligned to

/// One tensor as all ranks have it.
struct WholeTensor {
  const ActionTensor* any = nullptr;    // of the first rank that has some of it
  const ActionTensor* begin = nullptr;  // of one that has its first elements
  double norm = 0;
  std::vector<Bytes> bytes;  // by rank
};

std::vector<WholeTensor> whole_tensors(const MeasuredActions& m, std::size_t action) {
  std::vector<WholeTensor> all;
  std::map<std::string, std::size_t> place;
  std::set<std::pair<std::string, Numel>> counted;  // replicas count once
  for (std::size_t r = 0; r < m.ranks.size(); ++r) {
    for (const ActionTensor& tensor : m.ranks[r][action].measured.tensors) {
      const auto [at, fresh] = place.try_emplace(tensor.name, all.size());
      if (fresh) all.push_back({&tensor, nullptr, 0, std::vector<Bytes>(m.ranks.size(), 0)});
      WholeTensor& whole = all[at->second];
      whole.bytes[r] = tensor.bytes;
      if (tensor.bytes == 0 || !counted.emplace(tensor.name, tensor.first_at).second) continue;
      whole.norm += tensor.squares;
      if (tensor.first_at == 0) whole.begin = &tensor;
    }
  }
  for (WholeTensor& whole : all) whole.norm = std::sqrt(whole.norm);
  return all;
}

std::vector<double> first_of(const WholeTensor& whole) {
  return whole.begin == nullptr ? std::vector<double>{} : whole.begin->first;
}

void rank_fields(JsonText& out, std::size_t rank, const ActionOnRank& action) {
  out.begin_object().field("rank", rank).field("time_ns", action.measured.time_ns);
  out.field("before_bytes", action.measured.before)
      .field("peak_bytes", action.measured.peak)
      .field("end_bytes", action.measured.end);
  out.key("predicted");
  if (const auto& predicted = action.predicted) {
    out.begin_object().field("peak_bytes", predicted->peak).field("end_bytes", predicted->end);
    out.field("peak_allocated_bytes", predicted->peak_allocated).end_object();
  } else {
    out.null();
  }
  out.end_object();
}

void tensor_fields(JsonText& out, const WholeTensor& tensor) {
  out.begin_object().field("name", tensor.any->name).field("dtype", tensor.any->dtype).key("shape").begin_array();
  for (const std::int64_t size : tensor.any->shape) out.value(size);
  out.end_array().field("norm", tensor.norm).key("first").begin_array();
  for (const double value : first_of(tensor)) out.value(value);
  out.end_array().key("bytes").begin_array();
  for (const Bytes bytes : tensor.bytes) out.value(bytes);
  out.end_array().end_object();
}

std::int64_t slowest(const MeasuredActions& m, std::size_t action) {
  std::int64_t time = 0;
  for (const auto& rank : m.ranks) time = std::max(time, rank[action].measured.time_ns);
  return time;
}

std::string apart_text(const ActionOnRank& action) {
  if (!action.predicted) return "does not fit the card";
  const auto predicted = static_cast<double>(action.predicted->peak);
  const double apart = predicted == 0 ? 0 : (static_cast<double>(action.measured.peak) - predicted) / predicted;
  return fmt::format("{} ({:+.2f} %)", bytes_text(action.predicted->peak), 100 * apart);
}

std::string ranks_table(const MeasuredActions& m, std::size_t action) {
  std::string text = fmt::format("  {:>4}  {:>10}  {:>10}  {:>22}  {:>10}  {:>8}\n", "rank", "before", "peak",
                                 "predicted peak", "at the end", "time");
  for (std::size_t r = 0; r < std::min(m.ranks.size(), kMostRanks); ++r) {
    const ActionOnRank& rank = m.ranks[r][action];
    text += fmt::format("  {:>4}  {:>10}  {:>10}  {:>22}  {:>10}  {:>8}\n", r, bytes_text(rank.measured.before),
                        bytes_text(rank.measured.peak), apart_text(rank), bytes_text(rank.measured.end),
                        duration_text(static_cast<double>(rank.measured.time_ns)));
  }
  if (m.ranks.size() > kMostRanks) text += fmt::format("  {} more in --json\n", m.ranks.size() - kMostRanks);
  return text;
}

std::string per_rank_text(const std::vector<Bytes>& bytes) {
  const auto [least, most] = std::minmax_element(bytes.begin(), bytes.end());
  if (*least == *most) return bytes_text(*most) + (bytes.size() > 1 ? " a rank" : "");
  if (bytes.size() == 2) return fmt::format("{}, {}", bytes_text(bytes[0]), bytes_text(bytes[1]));
  return fmt::format("{} to {} a rank", bytes_text(*least), bytes_text(*most));
}

std::string tensors_table(const std::vector<WholeTensor>& tensors) {
  std::size_t width = 0;
  for (const WholeTensor& tensor : tensors) width = std::max(width, tensor.any->name.size());
  width = std::min(width, kLongestName);
  std::string text;
  for (const WholeTensor& tensor : tensors) {
    const std::string shape = fmt::format("[{}]", fmt::join(tensor.any->shape, ", "));
    std::string first;
    for (const double value : first_of(tensor)) first += fmt::format(" {:.4g}", value);
    text += fmt::format("  {:<{}}  {:<8} {:<14} norm {:<10.6g} {:<20} {}\n", tensor.any->name, width, tensor.any->dtype,
                        shape, tensor.norm, per_rank_text(tensor.bytes), first.empty() ? "" : "first" + first);
  }
  return text;
}

std::string totals_text(const std::vector<WholeTensor>& tensors, std::size_t ranks) {
  std::vector<Bytes> sums(ranks, 0);
  for (const WholeTensor& tensor : tensors) {
    for (std::size_t r = 0; r < ranks; ++r) sums[r] += tensor.bytes[r];
  }
  return fmt::format("{}, {}", counted(static_cast<std::int64_t>(tensors.size()), "tensor"), per_rank_text(sums));
}

std::string action_name(const Plan& plan, std::size_t action) {
  return fmt::format("{}", fmt::join(plan.iterations[action].actions, " "));
}

}  // namespace

std::string to_json_text(const std::vector<ActionOnRank>& actions) {
  json all = json::array();
  for (const ActionOnRank& action : actions) {
    json one{{"from", action.measured.from},
             {"time", action.measured.time_ns},
             {"measured", {action.measured.before, action.measured.peak, action.measured.end}}};
    if (const auto& p = action.predicted) one["predicted"] = {p->peak, p->end, p->peak_allocated};
    for (const ActionTensor& t : action.measured.tensors) {
      one["tensors"].push_back({t.name, t.dtype, t.shape, t.first_at, t.bytes, t.squares, t.first});
    }
    all.push_back(std::move(one));
  }
  return all.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::vector<ActionOnRank> actions_from_json(const std::string& text) {
  std::vector<ActionOnRank> actions;
  for (const json& one : json::parse(text)) {
    ActionOnRank& action = actions.emplace_back();
    action.measured.from = one["from"];
    action.measured.time_ns = one["time"];
    const json& measured = one["measured"];
    action.measured.before = measured[0], action.measured.peak = measured[1], action.measured.end = measured[2];
    if (one.contains("predicted")) {
      const json& of = one["predicted"];
      action.predicted = PredictedAction{of[0], of[1], of[2]};
    }
    if (!one.contains("tensors")) continue;
    for (const json& t : one["tensors"]) {
      const double squares = t[5].is_null() ? std::nan("") : t[5].get<double>();
      ActionTensor tensor{t[0], t[1], t[2].get<Shape>(), t[3], t[4], squares, {}};
      for (const json& value : t[6]) tensor.first.push_back(value.is_null() ? std::nan("") : value.get<double>());
      action.measured.tensors.push_back(std::move(tensor));
    }
  }
  return actions;
}

std::string actions_json(const MeasuredActions& m) {
  JsonText out(0);
  out.begin_object().field("schema", "foreshard.actions/1").key("job").begin_object().field("model", m.model.name);
  out.field("runtime", runtime_name(m.job.fsdp.runtime)).field("strategy", strategy_name(m.job.fsdp.strategy));
  out.field("world_size", m.plan.world_size).field("backend", "host").field("units", m.plan.units.size()).end_object();
  out.key("actions").begin_array();
  for (std::size_t a = 0; a < m.plan.iterations.size(); ++a) {
    const PlanIteration& iteration = m.plan.iterations[a];
    out.begin_object().field("action", action_name(m.plan, a)).field("from", m.ranks.front()[a].measured.from);
    out.field("instructions", iteration.instructions.size()).field("time_ns", slowest(m, a)).key("ranks").begin_array();
    for (std::size_t r = 0; r < m.ranks.size(); ++r) rank_fields(out, r, m.ranks[r][a]);
    out.end_array().key("tensors").begin_array();
    for (const WholeTensor& tensor : whole_tensors(m, a)) tensor_fields(out, tensor);
    out.end_array().end_object();
  }
  out.end_array().key("warnings").begin_array();
  for (const std::string& warning : m.plan.warnings) out.value(warning);
  out.end_array().end_object();
  return out.take();
}

std::string actions_text(const MeasuredActions& m) {
  std::string text = fmt::format("{}, {}, {} on the host\n", m.model.name, runtime_name(m.job.fsdp.runtime),
                                 counted(m.plan.world_size, "rank"));
  for (std::size_t a = 0; a < m.plan.iterations.size(); ++a) {
    const std::vector<WholeTensor> tensors = whole_tensors(m, a);
    text += fmt::format("\n{}: {}, from {}\n", action_name(m.plan, a), counts_text(m.plan.iterations[a]),
                        m.ranks.front()[a].measured.from);
    text += ranks_table(m, a);
    text += fmt::format("  {}\n", totals_text(tensors, m.ranks.size()));
    text += tensors_table(tensors);
  }
  for (const std::string& warning : m.plan.warnings)
    text += fmt::format("{}: {}\n", said(warning).by, said(warning).text);
  return text;
}

}  // namespace foreshard::cli
