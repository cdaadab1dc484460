#include "traces/analysis/comparison.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>

#include "core/plan.h"
#include "traces/timeline/iterations.h"

namespace foreshard {
namespace {

/// How spans find their partner: by instruction and stream, or by what they are and which one of these.
using JoinKey = std::tuple<std::string, std::int32_t, SpanKind, std::string, std::int32_t, std::int32_t>;

bool on_host(SpanKind kind) { return kind == SpanKind::HostIssue || kind == SpanKind::HostWait; }

/// All spans of one instruction on one stream of one rank.
struct Group {
  Span first;
  std::string stream;
  SimTime start = 0;  // from the iteration's begin
  SimDuration duration = 0;
};

/// One rank's iteration, taken apart.
struct Side {
  const Timeline& timeline;
  TimelineIteration iteration;
  std::map<JoinKey, Group> groups;
  ExposedComm exposed;
  std::map<std::string, Bytes> peaks;  // by counter
  std::vector<std::string> units;      // what they are called on both sides

  std::string unit_of(const Span& span) const {
    return span.unit >= 0 && static_cast<std::size_t>(span.unit) < units.size()
               ? units[static_cast<std::size_t>(span.unit)]
               : std::string();
  }
};

/// "fsdp 3" or "fsdp 3 (TransformerBlock_3)": the third of FSDP1's forwards, in a recording that names no modules.
std::optional<std::size_t> number_in_forward(std::string_view unit) {
  constexpr std::string_view kWord = "fsdp ";
  if (!unit.starts_with(kWord)) return std::nullopt;
  unit.remove_prefix(kWord.size());
  std::size_t number = 0;
  const auto [end, code] = std::from_chars(unit.data(), unit.data() + unit.size(), number);
  if (code != std::errc() || (end != unit.data() + unit.size() && *end != ' ')) return std::nullopt;
  return number;
}

/// Units as their forwards begin.
std::vector<std::int32_t> forward_order(const Timeline& t) {
  std::vector<SimTime> begins(t.units.size(), std::numeric_limits<SimTime>::max());
  for (const Span& span : t.spans) {
    const auto phase = static_cast<Phase>(span.phase);
    const bool forward = phase == Phase::RootPreForward || phase == Phase::PreForward || phase == Phase::Forward;
    if (!forward || span.unit < 0 || static_cast<std::size_t>(span.unit) >= begins.size()) continue;
    SimTime& begin = begins[static_cast<std::size_t>(span.unit)];
    begin = std::min(begin, span.start);
  }
  std::vector<std::int32_t> order;
  for (std::size_t u = 0; u < begins.size(); ++u)
    if (begins[u] < std::numeric_limits<SimTime>::max()) order.push_back(static_cast<std::int32_t>(u));
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t x, std::int32_t y) {
    return begins[static_cast<std::size_t>(x)] < begins[static_cast<std::size_t>(y)];
  });
  return order;
}

/// The names of a side's units; of a recording that only numbers them, those of the other side in order of forward.
std::vector<std::string> unit_names(const Timeline& t, const Timeline& other) {
  std::vector<std::string> names = t.units;
  for (std::string& name : names)
    if (name.empty()) name = "root";
  const auto numbered = [](const std::string& name) { return number_in_forward(name).has_value(); };
  if (!std::any_of(t.units.begin(), t.units.end(), numbered) ||
      std::any_of(other.units.begin(), other.units.end(), numbered))
    return names;
  const std::vector<std::int32_t> order = forward_order(other);
  for (std::string& name : names) {
    const auto number = number_in_forward(name);
    if (!number || *number >= order.size()) continue;
    const std::string& real = other.units[static_cast<std::size_t>(order[*number])];
    name = real.empty() ? "root" : real;
  }
  return names;
}

/// How spans of the two sides find each other.
enum class JoinRule {
  Instructions,  // by id and stream; what has none by kind, unit and phase on its stream
  Roles,         // only one side has ids: by kind, unit and phase, whatever the stream
  Kinds,         // and one side knows no units: by kind alone
};

/// One side may show kernels where the other shows segments, so only collectives are counted one by one.
JoinKey role_of(const Side& side, const Span& span, JoinRule rule, std::map<JoinKey, std::int32_t>& seen) {
  const bool kinds = rule == JoinRule::Kinds;
  const bool computes = span.kind == SpanKind::Other || span.kind == SpanKind::Cast || span.kind == SpanKind::Copy ||
                        span.kind == SpanKind::Memset;
  JoinKey key{"", -2, computes ? SpanKind::Compute : span.kind, kinds ? "" : side.unit_of(span), kinds ? 0 : span.phase,
              0};
  if (is_collective(span.kind)) std::get<5>(key) = seen[key]++;
  return key;
}

void group_spans(Side& side, JoinRule rule) {
  const Timeline& t = side.timeline;
  std::map<JoinKey, std::int32_t> seen;  // of those without ids: how many of a kind
  for (const SpanId id : side.iteration.spans) {
    const Span& span = t.spans[id.index()];
    const std::string& stream = t.lanes[span.lane.index()].stream;
    if (!span.instruction.valid() && (span.kind == SpanKind::Annotation || span.kind == SpanKind::Wait)) continue;
    JoinKey key;
    if (rule != JoinRule::Instructions) {
      if (on_host(span.kind)) continue;
      key = role_of(side, span, rule, seen);
    } else if (span.instruction.valid()) {
      const std::int32_t first = side.iteration.first.valid() ? side.iteration.first.value : 0;
      key = {stream, span.instruction.value - first, SpanKind::Other, "", 0, 0};
    } else if (on_host(span.kind)) {
      continue;  // a wait outside the plan belongs to the loop
    } else {
      key = {stream, -1, span.kind, side.unit_of(span), span.phase, 0};
      std::get<5>(key) = seen[key]++;
    }
    const auto [found, fresh] = side.groups.try_emplace(key);
    Group& group = found->second;
    const SimTime start = span.start - side.iteration.begin;
    if (fresh) group = {span, stream, start, 0};
    group.start = std::min(group.start, start);
    group.duration += span.duration;
  }
}

/// Highest value of each counter while the host issues the iteration; a counter stands still between samples.
void find_peaks(Side& side, std::int32_t rank, SimTime until) {
  const Timeline& t = side.timeline;
  std::size_t at = 0;
  for (std::size_t c = 0; c < t.counters.size(); ++c) {
    const CounterId id(c);
    while (at < t.samples.size() && t.samples[at].counter < id) ++at;
    std::int64_t before = 0, peak = 0;
    for (; at < t.samples.size() && t.samples[at].counter == id; ++at) {
      if (t.samples[at].time < side.iteration.issue)
        before = t.samples[at].value;
      else if (t.samples[at].time < until)
        peak = std::max(peak, t.samples[at].value);
    }
    if (t.counters[c].rank == rank) side.peaks[t.counters[c].name] = std::max(before, peak);
  }
}

Result<Side> take_apart(const Timeline& t, std::int32_t rank, const CompareOptions& options, JoinRule rule,
                        const Timeline& other, const char* which) {
  const std::vector<TimelineIteration> iterations = iterations_of(t, rank);
  Error error;
  error.place = std::string("timeline ") + which;
  if (iterations.empty()) {
    error.message = "the timeline has no spans of rank " + std::to_string(rank);
    return fail(std::move(error));
  }
  const TimelineIteration* chosen = &steady_iteration(t, iterations);
  if (options.iteration) {
    const auto found = std::find_if(iterations.begin(), iterations.end(),
                                    [&](const TimelineIteration& i) { return i.index == *options.iteration; });
    if (found == iterations.end()) {
      error.code = ErrorCode::OutOfRange;
      error.message = "the timeline has no such iteration";
      error.expected = std::to_string(iterations.front().index) + " to " + std::to_string(iterations.back().index);
      error.got = std::to_string(*options.iteration);
      return fail(std::move(error));
    }
    chosen = &*found;
  }
  Side side{t, *chosen, {}, {}, {}, unit_names(t, other)};
  group_spans(side, rule);
  side.exposed = find_exposed_comm(t, side.iteration);
  const bool last = chosen == &iterations.back();
  find_peaks(side, rank, last ? std::numeric_limits<SimTime>::max() : (chosen + 1)->issue);
  return side;
}

/// What a span is done for: decides the column of its unit.
Pair UnitPair::*column_of(SpanKind kind) {
  if (on_host(kind)) return &UnitPair::host;
  if (is_collective(kind)) return &UnitPair::comm;
  if (kind == SpanKind::Compute || kind == SpanKind::Optimizer || kind == SpanKind::Other) return &UnitPair::compute;
  return &UnitPair::copies;
}

template <class Row, class Size>
void sort_by_difference(std::vector<Row>& rows, Size size) {
  std::stable_sort(rows.begin(), rows.end(),
                   [&](const Row& x, const Row& y) { return std::abs(size(x)) > std::abs(size(y)); });
}

/// Adds up ranks; at the end everything is divided by their number.
class Joiner {
 public:
  void add(const Side& a, const Side& b, std::int32_t rank) {
    Comparison& c = comparison_;
    c.iteration_a = a.iteration.index, c.iteration_b = b.iteration.index;
    c.ranks.push_back(rank);
    add_pair(c.step, length(a), length(b));
    add_pair(c.compute, static_cast<double>(a.exposed.busy), static_cast<double>(b.exposed.busy));
    add_pair(c.comm, static_cast<double>(a.exposed.comm), static_cast<double>(b.exposed.comm));
    add_pair(c.exposed, static_cast<double>(a.exposed.exposed), static_cast<double>(b.exposed.exposed));
    for (const CauseTime& cause : a.exposed.causes)
      causes_[{cause.cause, cause.kind}].a += static_cast<double>(cause.time);
    for (const CauseTime& cause : b.exposed.causes)
      causes_[{cause.cause, cause.kind}].b += static_cast<double>(cause.time);
    for (const auto& [counter, bytes] : a.peaks) peaks_[counter].a += static_cast<double>(bytes);
    for (const auto& [counter, bytes] : b.peaks) peaks_[counter].b += static_cast<double>(bytes);
    join(a, b, rank);
  }

  Comparison finish() {
    Comparison& c = comparison_;
    const auto ranks = static_cast<double>(c.ranks.size());
    const auto mean = [&](Pair& pair) { pair.a /= ranks, pair.b /= ranks; };
    for (Pair* pair : {&c.step, &c.compute, &c.comm, &c.exposed}) mean(*pair);
    for (auto& [name, unit] : units_) {
      unit.unit = name;
      for (Pair* pair : {&unit.compute, &unit.comm, &unit.copies, &unit.host}) mean(*pair);
      c.by_unit.push_back(unit);
    }
    for (auto& [key, pair] : causes_) {
      mean(pair);
      c.by_cause.push_back({key.first, key.second, pair});
    }
    for (auto& [stream, pair] : streams_) {
      mean(pair);
      c.by_stream.push_back({stream, pair});
    }
    constexpr std::string_view kCategory = "category:";
    for (auto& [counter, pair] : peaks_) {
      mean(pair);
      if (counter == "allocated") c.peak_memory = pair;
      if (counter.starts_with(kCategory)) c.by_category.push_back({counter.substr(kCategory.size()), pair});
    }
    sort_by_difference(c.by_unit, [](const UnitPair& u) { return u.busy().difference(); });
    sort_by_difference(c.by_cause, [](const CausePair& p) { return p.time.difference(); });
    sort_by_difference(c.by_category, [](const CategoryPair& p) { return p.peak.difference(); });
    sort_by_difference(c.by_stream, [](const StreamPair& p) { return p.busy.difference(); });
    sort_by_difference(c.by_instruction, [](const InstructionPair& i) { return i.duration.difference(); });
    return std::move(c);
  }

 private:
  static void add_pair(Pair& pair, double a, double b) { pair.a += a, pair.b += b; }
  static double length(const Side& side) { return static_cast<double>(side.iteration.end - side.iteration.begin); }

  static InstructionPair described(const Side& side, const Group& group, std::int32_t rank) {
    InstructionPair pair;
    pair.rank = rank;
    pair.stream = group.stream;
    pair.instruction = group.first.instruction;
    pair.kind = group.first.kind;
    pair.name = std::string(side.timeline.name_of(group.first.name));
    pair.unit = side.unit_of(group.first);
    pair.phase = group.first.phase;
    return pair;
  }

  void join(const Side& a, const Side& b, std::int32_t rank) {
    for (const auto& [key, group] : a.groups) {
      const auto partner = b.groups.find(key);
      count(a, &group, partner == b.groups.end() ? nullptr : &partner->second, rank);
    }
    for (const auto& [key, group] : b.groups) {
      if (!a.groups.contains(key)) count(b, nullptr, &group, rank);
    }
  }

  /// The host's spans without a partner are no difference: a simulated host has none where it costs nothing.
  void count(const Side& side, const Group* a, const Group* b, std::int32_t rank) {
    InstructionPair pair = described(side, a != nullptr ? *a : *b, rank);
    if (a != nullptr) pair.start.a = static_cast<double>(a->start), pair.duration.a = static_cast<double>(a->duration);
    if (b != nullptr) pair.start.b = static_cast<double>(b->start), pair.duration.b = static_cast<double>(b->duration);
    Pair& column = units_[pair.unit.empty() ? "none" : pair.unit].*column_of(pair.kind);
    add_pair(column, pair.duration.a, pair.duration.b);
    add_pair(streams_[pair.stream], pair.duration.a, pair.duration.b);
    if (a != nullptr && b != nullptr) {
      ++comparison_.joined;
      if (!on_host(pair.kind)) comparison_.by_instruction.push_back(std::move(pair));
      return;
    }
    if (on_host(pair.kind)) return;
    ++(a != nullptr ? comparison_.only_a : comparison_.only_b);
    comparison_.missing.push_back(std::move(pair));
  }

  Comparison comparison_;
  std::map<std::string, UnitPair> units_;
  std::map<std::string, Pair> streams_, peaks_;
  std::map<std::pair<std::string, SpanKind>, Pair> causes_;
};

JoinRule join_rule(const Timeline& a, const Timeline& b) {
  const auto any = [](const Timeline& t, auto what) {
    return std::any_of(t.spans.begin(), t.spans.end(), [&](const Span& s) { return !on_host(s.kind) && what(s); });
  };
  const auto has_ids = [](const Span& s) { return s.instruction.valid(); };
  const auto has_units = [](const Span& s) { return s.unit >= 0; };
  if (any(a, has_ids) == any(b, has_ids)) return JoinRule::Instructions;
  return any(a, has_units) && any(b, has_units) ? JoinRule::Roles : JoinRule::Kinds;
}

std::optional<Error> different_plans(const Timeline& a, const Timeline& b) {
  const std::string &one = a.provenance.plan_digest, &other = b.provenance.plan_digest;
  if (one.empty() || other.empty() || one == other) return std::nullopt;
  Error error;
  error.message = "the two timelines stem from different plans";
  error.place = "plan_digest";
  error.expected = one;
  error.got = other;
  error.hint = "--force compares them all the same: instructions join by their numbers, which may mean other things";
  return error;
}

}  // namespace

double Pair::error() const {
  if (b != 0) return (a - b) / b;
  return a == 0 ? 0 : std::copysign(1.0, a);
}

std::string signed_percent(double share) {
  const double percent = std::round(share * 1000) / 10;
  return fmt::format("{:+.1f} %", percent == 0 ? 0.0 : percent);  // no "-0.0"
}

double Comparison::exposed_comm_points() const {
  const double of_a = step.a > 0 ? exposed.a / step.a : 0, of_b = step.b > 0 ? exposed.b / step.b : 0;
  return 100 * (of_a - of_b);
}

Result<Comparison> compare_timelines(const Timeline& a, const Timeline& b, const CompareOptions& options) {
  if (!options.force) {
    if (auto error = different_plans(a, b)) return fail(std::move(*error));
  }
  const std::vector<std::int32_t> ranks_a = ranks_of(a), ranks_b = ranks_of(b);
  std::vector<std::int32_t> ranks;
  std::set_intersection(ranks_a.begin(), ranks_a.end(), ranks_b.begin(), ranks_b.end(), std::back_inserter(ranks));
  if (options.rank) std::erase_if(ranks, [&](std::int32_t rank) { return rank != *options.rank; });
  if (ranks.empty()) {
    Error error;
    error.message = options.rank ? "rank " + std::to_string(*options.rank) + " is not in both timelines"
                                 : "the timelines have no rank in common";
    error.place = "ranks";
    error.expected = "a rank that both timelines have";
    error.got = fmt::format("A: {}; B: {}", fmt::join(ranks_a, ", "), fmt::join(ranks_b, ", "));
    error.hint = "set cluster.rank of a job to the rank that was recorded";
    return fail(std::move(error));
  }
  Joiner joiner;
  const JoinRule rule = join_rule(a, b);
  for (const std::int32_t rank : ranks) {
    const auto side_a = take_apart(a, rank, options, rule, b, "A");
    if (!side_a) return fail(side_a.error());
    const auto side_b = take_apart(b, rank, options, rule, a, "B");
    if (!side_b) return fail(side_b.error());
    joiner.add(*side_a, *side_b, rank);
  }
  return joiner.finish();
}

}  // namespace foreshard
