#include "shadow/differences.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>

namespace foreshard::shadow {
namespace {

constexpr std::size_t kNamed = 4;  // units that a sentence names
constexpr Bytes kFigure = 256;     // less is a number that scripts log, as a loss

const char* word_of(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::Gather: return "gather";
    case CollectiveKind::Reduce: return "reduce";
    case CollectiveKind::AllReduce: return "all-reduce";
    case CollectiveKind::Broadcast: return "broadcast";
    case CollectiveKind::AllToAll: return "all-to-all";
    case CollectiveKind::Other: return "collective";
  }
  return "collective";
}

std::string shown(const std::string& unit) { return unit.empty() ? "outside of units" : unit; }

std::string list_of(const std::vector<std::string>& units) {
  std::vector<std::string> few(units.begin(),
                               units.begin() + static_cast<std::ptrdiff_t>(std::min(units.size(), kNamed)));
  for (std::string& each : few) each = shown(each);
  return fmt::format("{}{}", fmt::join(few, ", "),
                     units.size() > kNamed ? fmt::format(" and {} more", units.size() - kNamed) : "");
}

std::string of_elements(Bytes bytes) {
  if (bytes == 8) return "8 bytes (float64)";
  if (bytes == 4) return "4 bytes (float32)";
  if (bytes == 2) return "2 bytes (bfloat16, float16)";
  return fmt::format("{} bytes", bytes);
}

CollectiveKind kind_of(SpanKind kind) {
  switch (kind) {
    case SpanKind::AllGather: return CollectiveKind::Gather;
    case SpanKind::ReduceScatter: return CollectiveKind::Reduce;
    case SpanKind::AllReduce: return CollectiveKind::AllReduce;
    case SpanKind::SendRecv: return CollectiveKind::AllToAll;
    default: return CollectiveKind::Other;
  }
}

/// Of one unit and kind in one step.
struct Amounts {
  std::int64_t count = 0;
  Bytes bytes = 0;  // of one
  Bytes element = 0;
  bool operator==(const Amounts&) const = default;
};
using Key = std::pair<CollectiveKind, std::string>;
using Table = std::map<Key, Amounts>;

/// A single rank meets nobody: PyTorch's one-rank collectives move nothing.
bool meets(const LoggedCollective& each) { return each.ranks > 1; }

Table table_of(const std::vector<LoggedCollective>& collectives) {
  Table table;
  for (const LoggedCollective& each : collectives) {
    if (!meets(each) || each.kind == CollectiveKind::Other || each.kind == CollectiveKind::AllToAll) continue;
    Amounts& amounts = table[{each.kind, each.unit}];
    ++amounts.count;
    amounts.bytes = std::max(amounts.bytes, each.bytes);
    amounts.element = std::max(amounts.element, each.element);
  }
  return table;
}

std::set<std::string> units_of(const Table& table) {
  std::set<std::string> units;
  for (const auto& [key, amounts] : table) {
    if (key.first == CollectiveKind::Gather || key.first == CollectiveKind::Reduce) units.insert(key.second);
  }
  units.erase("");
  return units;
}

class Comparison {
 public:
  Comparison(const std::vector<LoggedCollective>& script, const Plan& plan, const std::vector<LoggedCollective>* inside)
      : script_(script),
        inside_(inside),
        planned_(planned_collectives(plan)),
        in_script_(table_of(script)),
        in_plan_(table_of(planned_)) {}

  std::vector<Difference> find() {
    units();
    for (const CollectiveKind kind :
         {CollectiveKind::Gather, CollectiveKind::Reduce, CollectiveKind::AllReduce, CollectiveKind::Broadcast})
      counts_and_sizes(kind);
    if (inside_ != nullptr) of_the_program();
    if (found_.empty()) order();
    return std::move(found_);
  }

 private:
  void units() {
    const auto script = units_of(in_script_), plan = units_of(in_plan_);
    missing_ = without(plan, script);
    extra_ = without(script, plan);
    if (!missing_.empty()) {
      found_.push_back({"unit", list_of(missing_), "no unit", "a unit",
                        fmt::format("{} {} not gathered by {} in the script: {} a unit in the plan", list_of(missing_),
                                    missing_.size() == 1 ? "is" : "are", missing_.size() == 1 ? "itself" : "themselves",
                                    missing_.size() == 1 ? "it is" : "each is")});
    }
    if (!extra_.empty()) {
      found_.push_back({"unit", list_of(extra_), "a unit", "no unit",
                        fmt::format("{} {} of the script, not of the plan", list_of(extra_),
                                    extra_.size() == 1 ? "is a unit" : "are units")});
    }
  }

  static std::vector<std::string> without(const std::set<std::string>& a, const std::set<std::string>& b) {
    std::vector<std::string> rest;
    std::set_difference(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(rest));
    return rest;
  }

  /// Units that part in the same way, together.
  void counts_and_sizes(CollectiveKind kind) {
    std::map<std::pair<std::int64_t, std::int64_t>, std::vector<std::string>> counts;
    std::map<std::pair<Bytes, Bytes>, std::vector<std::string>> elements, bytes;
    std::set<std::string> units;
    for (const Table* table : {&in_script_, &in_plan_}) {
      for (const auto& [key, amounts] : *table)
        if (key.first == kind) units.insert(key.second);
    }
    if (inside_ != nullptr) units.erase("");
    for (const std::string& unit : units) {
      const bool one_sided = std::find(missing_.begin(), missing_.end(), unit) != missing_.end() ||
                             std::find(extra_.begin(), extra_.end(), unit) != extra_.end();
      if (one_sided) continue;
      const auto s = in_script_.find({kind, unit}), p = in_plan_.find({kind, unit});
      const Amounts is = s == in_script_.end() ? Amounts{} : s->second,
                    should = p == in_plan_.end() ? Amounts{} : p->second;
      if (is.count != should.count) counts[{is.count, should.count}].push_back(unit);
      if (is.count == 0 || should.count == 0 || unit.empty()) continue;
      if (is.element != should.element) {
        elements[{is.element, should.element}].push_back(unit);
      } else if (is.bytes != should.bytes) {
        bytes[{is.bytes, should.bytes}].push_back(unit);
      }
    }
    const char* word = word_of(kind);
    for (const auto& [pair, where] : counts) {
      found_.push_back({word, list_of(where), std::to_string(pair.first), std::to_string(pair.second),
                        fmt::format("{}: {} {} a step in the script, {} in the plan", list_of(where), pair.first,
                                    fmt::format("{}{}", word, pair.first == 1 ? "" : "s"), pair.second)});
    }
    for (const auto& [pair, where] : elements) {
      found_.push_back({"cast", list_of(where), of_elements(pair.first), of_elements(pair.second),
                        fmt::format("{}: {}s go in elements of {} in the script, of {} in the plan", list_of(where),
                                    word, of_elements(pair.first), of_elements(pair.second))});
    }
    for (const auto& [pair, where] : bytes) {
      found_.push_back({"bytes", list_of(where), std::to_string(pair.first), std::to_string(pair.second),
                        fmt::format("{}: a {} has {} bytes in the script, {} in the plan", list_of(where), word,
                                    pair.first, pair.second)});
    }
  }

  /// By kind and bytes of the whole vector. A ring's sends are none; all-to-alls of given sizes are sends as well.
  void of_the_program() {
    using Met = std::map<std::pair<CollectiveKind, Bytes>, std::int64_t>;
    const auto count = [](const std::vector<LoggedCollective>& all, Met& met) {
      for (const LoggedCollective& each : all) {
        const bool told = each.kind != CollectiveKind::Other && each.kind != CollectiveKind::Broadcast;
        if (told && meets(each) && each.unit.empty() && each.bytes >= kFigure) ++met[{each.kind, each.bytes}];
      }
    };
    Met script, plan;
    count(script_, script);
    count(planned_, plan);
    count(*inside_, plan);
    const bool sends = std::any_of(script_.begin(), script_.end(),
                                   [](const auto& each) { return each.kind == CollectiveKind::Other; });
    Met all = script;
    all.insert(plan.begin(), plan.end());
    for (const auto& [key, unused] : all) {
      const std::int64_t is = script[key], should = plan[key];
      if (is == should || (sends && key.first == CollectiveKind::AllToAll)) continue;
      const std::string word = word_of(key.first);
      found_.push_back({word, shown(""), std::to_string(is), std::to_string(should),
                        fmt::format("{}: {} {}{} of {} bytes a step in the script, {} in the plan", shown(""), is, word,
                                    is == 1 ? "" : "s", key.second, should)});
    }
  }

  void order() {
    const auto of_units = [this](const std::vector<LoggedCollective>& all) {
      std::vector<Key> keys;
      for (const LoggedCollective& each : all) {
        if (inside_ != nullptr && each.unit.empty()) continue;
        if (meets(each) && (each.kind == CollectiveKind::Gather || each.kind == CollectiveKind::Reduce))
          keys.push_back({each.kind, each.unit});
      }
      return keys;
    };
    const auto script = of_units(script_), plan = of_units(planned_);
    const auto [s, p] = std::mismatch(script.begin(), script.end(), plan.begin(), plan.end());
    if (s == script.end() || p == plan.end()) return;
    const std::string is = fmt::format("{} of {}", word_of(s->first), shown(s->second));
    const std::string should = fmt::format("{} of {}", word_of(p->first), shown(p->second));
    found_.push_back(
        {"order", fmt::format("collective {}", s - script.begin() + 1), is, should,
         fmt::format("the order of collectives parts at number {}: {} in the script, {} in the plan (another prefetch)",
                     s - script.begin() + 1, is, should)});
  }

  const std::vector<LoggedCollective>& script_;
  const std::vector<LoggedCollective>* inside_;
  const std::vector<LoggedCollective> planned_;
  const Table in_script_, in_plan_;
  std::vector<std::string> missing_, extra_;
  std::vector<Difference> found_;
};

}  // namespace

std::vector<LoggedCollective> planned_collectives(const Plan& plan) {
  std::vector<LoggedCollective> all;
  if (plan.iterations.empty()) return all;
  for (const Instruction& in : plan.iterations.back().instructions) {
    if (!is_collective(in.kind)) continue;
    LoggedCollective each;
    each.kind = in.kind == InstructionKind::AllGather       ? CollectiveKind::Gather
                : in.kind == InstructionKind::ReduceScatter ? CollectiveKind::Reduce
                : in.kind == InstructionKind::AllReduce     ? CollectiveKind::AllReduce
                : in.kind == InstructionKind::Broadcast     ? CollectiveKind::Broadcast
                                                            : CollectiveKind::Other;
    if (in.unit.valid() && in.phase != Phase::Optimizer) {  // Muon's, and what brings scales together behind a step
      const std::string& name = plan.units[in.unit.index()].name;
      each.unit = name.empty() ? "(root)" : name;
    }
    each.element = itemsize(in.dtype);
    each.bytes = in.numel * each.element;
    each.ranks = plan.group_size(in);
    all.push_back(std::move(each));
  }
  return all;
}

std::vector<LoggedCollective> collectives_inside(const Plan& plan, const Timeline& timeline) {
  std::vector<LoggedCollective> all;
  if (plan.iterations.empty()) return all;
  // Instructions are counted over all iterations played: the plan's last one may have been played several times.
  const std::vector<Instruction>& steady = plan.iterations.back().instructions;
  const auto size = static_cast<std::int64_t>(steady.size());
  std::int64_t before = 0, round = 0;
  for (const PlanIteration& iteration : plan.iterations)
    before += static_cast<std::int64_t>(iteration.instructions.size());
  before -= size;
  std::map<NameId, std::int64_t> ranks;
  for (std::size_t n = 0; n < timeline.names.size(); ++n) {
    for (const PlanCommunicator& each : plan.communicators)
      if (each.name == timeline.names[n]) ranks[NameId(n)] = static_cast<std::int64_t>(each.ranks.size());
  }
  for (const Span& span : timeline.spans) {
    const std::int64_t number = span.instruction.valid() ? span.instruction.value - before : -1;
    const auto group = ranks.find(span.communicator);
    const CollectiveKind kind = kind_of(span.kind);
    if (number < 0 || group == ranks.end() || kind == CollectiveKind::Other) continue;
    if (is_collective(steady[static_cast<std::size_t>(number % size)].kind)) continue;
    if (number / size > round) all.clear(), round = number / size;
    all.push_back({kind, "", span.bytes, 0, group->second});
  }
  return all;
}

std::vector<Difference> schedule_differences(const std::vector<LoggedCollective>& script, const Plan& plan,
                                             const std::vector<LoggedCollective>* inside) {
  return Comparison(script, plan, inside).find();
}

}  // namespace foreshard::shadow
