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
#include <set>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "core/plan.h"
#include "traces/analysis/collective_meetings.h"
#include "traces/analysis/kernel_table.h"
#include "traces/analysis/step_account.h"
#include "traces/timeline/intervals.h"
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
  std::map<std::string, Bytes> peaks;       // by counter
  std::map<std::string, SimDuration> busy;  // by stream
  std::vector<std::string> units;           // what they are called on both sides

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

/// What a recording without ids calls its work: the operator that launched it, else the kernel, which another card may
/// have under another name.
class Operators {
 public:
  Operators(const Timeline& timeline, std::int32_t rank) : t_(timeline), threads_(timeline, rank) {
    for (const Flow& flow : t_.flows) {
      if (flow.from.valid() && flow.to.valid()) call_of_[flow.to.value] = flow.from;
    }
  }

  std::string of(SpanId id) const {
    const Span& span = t_.spans[id.index()];
    if (is_collective(span.kind)) return fmt::format("{} bytes", span.bytes);
    const auto call = call_of_.find(id.value);
    for (SpanId outer = call == call_of_.end() ? SpanId() : threads_.parent(call->second); outer.valid();
         outer = threads_.parent(outer)) {
      const Span& around = t_.spans[outer.index()];
      if (around.kind != SpanKind::Annotation) return std::string(t_.name_of(around.name));
    }
    return folded_kernel_name(t_.name_of(span.name));
  }

 private:
  const Timeline& t_;
  HostThreads threads_;
  std::unordered_map<std::int32_t, SpanId> call_of_;
};

/// By stream, time that its spans share once; waiting is not busy.
void find_busy(Side& side) {
  std::map<std::string, std::vector<Interval>> times;
  for (const SpanId id : side.iteration.spans) {
    const Span& span = side.timeline.spans[id.index()];
    if (span.kind == SpanKind::Annotation || span.kind == SpanKind::Wait || span.kind == SpanKind::HostWait) continue;
    times[side.timeline.lanes[span.lane.index()].stream].push_back({span.start, span.start + span.duration});
  }
  for (auto& [stream, intervals] : times) side.busy[stream] = length_of(merge_intervals(std::move(intervals)));
}

void group_spans(Side& side, JoinRule rule, std::int32_t rank) {
  const Timeline& t = side.timeline;
  const bool ids = std::any_of(side.iteration.spans.begin(), side.iteration.spans.end(),
                               [&](SpanId id) { return t.spans[id.index()].instruction.valid(); });
  std::optional<Operators> operators;
  if (rule == JoinRule::Instructions && !ids) operators.emplace(t, rank);
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
      key = {operators ? operators->of(id) : stream, -1, span.kind, side.unit_of(span), span.phase, 0};
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
  const auto& own = *which == 'A' ? options.iteration_a : options.iteration_b;
  const std::optional<std::int32_t> wanted = own ? own : options.iteration;
  if (wanted) {
    const auto found = std::find_if(iterations.begin(), iterations.end(),
                                    [&](const TimelineIteration& i) { return i.index == *wanted; });
    if (found == iterations.end()) {
      error.code = ErrorCode::OutOfRange;
      error.message = "the timeline has no such iteration";
      error.expected = std::to_string(iterations.front().index) + " to " + std::to_string(iterations.back().index);
      error.got = std::to_string(*wanted);
      return fail(std::move(error));
    }
    chosen = &*found;
  }
  Side side{t, *chosen, {}, {}, {}, {}, unit_names(t, other)};
  group_spans(side, rule, rank);
  find_busy(side);
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
  void add(const Side& a, const Side& b, std::int32_t rank, std::int32_t rank_b) {
    Comparison& c = comparison_;
    c.iteration_a = a.iteration.index, c.iteration_b = b.iteration.index;
    c.ranks.push_back(rank);
    c.ranks_b.push_back(rank_b);
    add_pair(c.step, length(a), length(b));
    add_pair(c.compute, static_cast<double>(a.exposed.busy), static_cast<double>(b.exposed.busy));
    add_pair(c.comm, static_cast<double>(a.exposed.comm), static_cast<double>(b.exposed.comm));
    add_pair(c.exposed, static_cast<double>(a.exposed.exposed), static_cast<double>(b.exposed.exposed));
    for (const CauseTime& cause : a.exposed.causes)
      causes_[{cause.cause, cause.kind}].a += static_cast<double>(cause.time);
    for (const CauseTime& cause : b.exposed.causes)
      causes_[{cause.cause, cause.kind}].b += static_cast<double>(cause.time);
    for (const auto& [counter, bytes] : a.peaks) {
      peaks_[counter].peak.a += static_cast<double>(bytes);
      peaks_[counter].in_a = true;
    }
    for (const auto& [counter, bytes] : b.peaks) {
      peaks_[counter].peak.b += static_cast<double>(bytes);
      peaks_[counter].in_b = true;
    }
    for (const auto& [stream, time] : a.busy) streams_[stream].a += static_cast<double>(time);
    for (const auto& [stream, time] : b.busy) streams_[stream].b += static_cast<double>(time);
    join(a, b, rank);
  }

  void add_changes(const std::vector<StepChange>& changes) {
    for (const StepChange& change : changes) {
      StepChange& row = changes_[change.what];
      row.what = change.what;
      row.a += change.a, row.b += change.b;
      add_pair(comparison_.accounted, change.a, change.b);
    }
  }

  Comparison finish() {
    Comparison& c = comparison_;
    const auto ranks = static_cast<double>(c.ranks.size());
    const auto mean = [&](Pair& pair) { pair.a /= ranks, pair.b /= ranks; };
    for (Pair* pair : {&c.step, &c.compute, &c.comm, &c.exposed, &c.accounted}) mean(*pair);
    for (auto& [what, change] : changes_) {
      change.a /= ranks, change.b /= ranks;
      c.changes.push_back(change);
    }
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
    c.memory_in_a = c.memory_in_b = false;
    for (auto& [counter, peak] : peaks_) {
      mean(peak.peak);
      if (counter == "allocated") {
        c.peak_memory = peak.peak;
        c.memory_in_a = peak.in_a, c.memory_in_b = peak.in_b;
      }
      if (!counter.starts_with(kCategory)) continue;
      c.by_category.push_back({counter.substr(kCategory.size()), peak.peak, peak.in_a, peak.in_b});
    }
    tell_thin_join();
    sort_by_difference(c.by_unit, [](const UnitPair& u) { return u.busy().difference(); });
    sort_by_difference(c.by_cause, [](const CausePair& p) { return p.time.difference(); });
    sort_by_difference(c.by_category, [](const CategoryPair& p) { return p.peak.difference(); });
    sort_by_difference(c.by_stream, [](const StreamPair& p) { return p.busy.difference(); });
    sort_by_difference(c.by_instruction, [](const InstructionPair& i) { return i.duration.difference(); });
    sort_by_difference(c.changes, [](const StepChange& change) { return change.difference(); });
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
    if (!on_host(pair.kind)) {
      add_pair(work_, pair.duration.a, pair.duration.b);
      if (a != nullptr && b != nullptr) add_pair(joined_work_, pair.duration.a, pair.duration.b);
      if (!pair.unit.empty()) (a != nullptr ? units_a_ : units_b_).insert(pair.unit);
      if (!pair.unit.empty() && a != nullptr && b != nullptr) units_b_.insert(pair.unit);
    }
    if (a != nullptr && b != nullptr) {
      ++comparison_.joined;
      if (!on_host(pair.kind)) comparison_.by_instruction.push_back(std::move(pair));
      return;
    }
    if (on_host(pair.kind)) return;
    ++(a != nullptr ? comparison_.only_a : comparison_.only_b);
    comparison_.missing.push_back(std::move(pair));
  }

  /// A table of rows that are each in one of them only looks like a comparison, and is none.
  void tell_thin_join() {
    constexpr double kThin = 0.1;
    const double of_a = work_.a > 0 ? joined_work_.a / work_.a : 0, of_b = work_.b > 0 ? joined_work_.b / work_.b : 0;
    if (of_a >= kThin && of_b >= kThin) return;
    std::string why = "their operators, phases or sizes are not the same";
    if (work_.a <= 0 || work_.b <= 0)
      why = fmt::format("{} has no work on a device in this iteration", work_.a <= 0 ? "A" : "B");
    else if (units_a_.empty() != units_b_.empty())
      why = fmt::format("{} knows no units: its recording has no FSDP ranges", units_a_.empty() ? "A" : "B");
    else if (!units_a_.empty() && std::none_of(units_a_.begin(), units_a_.end(),
                                               [&](const std::string& unit) { return units_b_.contains(unit); }))
      why = fmt::format("no unit has the same name in both (A: {}, ...; B: {}, ...)", *units_a_.begin(),
                        *units_b_.begin());
    comparison_.notes.push_back(
        fmt::format("{:.0f} % of A's work and {:.0f} % of B's were joined: {}", 100 * of_a, 100 * of_b, why));
  }

  Comparison comparison_;
  Pair work_, joined_work_;  // durations on streams
  std::set<std::string> units_a_, units_b_;
  std::map<std::string, StepChange> changes_;
  std::map<std::string, UnitPair> units_;
  std::map<std::string, Pair> streams_;
  struct Peak {
    Pair peak;
    bool in_a = false, in_b = false;
  };
  std::map<std::string, Peak> peaks_;  // by counter
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

using RankPairs = std::vector<std::pair<std::int32_t, std::int32_t>>;

Error no_rank_to_compare(const std::vector<std::int32_t>& a, const std::vector<std::int32_t>& b, std::string message) {
  Error error;
  error.message = std::move(message);
  error.place = "ranks";
  error.expected = "a rank that both timelines have";
  error.got = fmt::format("A: {}; B: {}", fmt::join(a, ", "), fmt::join(b, ", "));
  error.hint =
      "--a-rank and --b-rank pair ranks that are not the same; of a job cluster.rank is the one that is simulated";
  return error;
}

Result<RankPairs> paired_ranks(const std::vector<std::int32_t>& a, const std::vector<std::int32_t>& b,
                               const CompareOptions& options) {
  const auto has = [](const std::vector<std::int32_t>& ranks, std::int32_t rank) {
    return std::binary_search(ranks.begin(), ranks.end(), rank);
  };
  if (options.rank_a || options.rank_b) {
    const std::optional<std::int32_t> one = options.rank_a ? options.rank_a
                                            : options.rank ? options.rank
                                                           : options.rank_b,
                                      other = options.rank_b ? options.rank_b
                                              : options.rank ? options.rank
                                                             : options.rank_a;
    if (!has(a, *one)) return fail(no_rank_to_compare(a, b, "rank " + std::to_string(*one) + " is not in A"));
    if (!has(b, *other)) return fail(no_rank_to_compare(a, b, "rank " + std::to_string(*other) + " is not in B"));
    return RankPairs{{*one, *other}};
  }
  RankPairs pairs;
  for (const std::int32_t rank : a) {
    if (has(b, rank) && (!options.rank || rank == *options.rank)) pairs.emplace_back(rank, rank);
  }
  if (!pairs.empty()) return pairs;
  return fail(no_rank_to_compare(a, b,
                                 options.rank ? "rank " + std::to_string(*options.rank) + " is not in both timelines"
                                              : "the timelines have no rank in common"));
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
  const auto pairs = paired_ranks(ranks_of(a), ranks_of(b), options);
  if (!pairs) return fail(pairs.error());
  Joiner joiner;
  const JoinRule rule = join_rule(a, b);
  const std::vector<CollectiveMeeting> meetings_a = find_meetings(a), meetings_b = find_meetings(b);
  for (const auto& [rank_a, rank_b] : *pairs) {
    const auto side_a = take_apart(a, rank_a, options, rule, b, "A");
    if (!side_a) return fail(side_a.error());
    const auto side_b = take_apart(b, rank_b, options, rule, a, "B");
    if (!side_b) return fail(side_b.error());
    joiner.add(*side_a, *side_b, rank_a, rank_b);
    const auto step_a = account_of_iteration(StepAccountant(a, rank_a, meetings_a), side_a->iteration.index);
    const auto step_b = account_of_iteration(StepAccountant(b, rank_b, meetings_b), side_b->iteration.index);
    if (step_a && step_b) joiner.add_changes(what_changed({a, *step_a}, {b, *step_b}));
  }
  Comparison comparison = joiner.finish();
  comparison.spread_a = spread_of_steps(a, comparison.ranks);
  comparison.spread_b = spread_of_steps(b, comparison.ranks_b);
  return comparison;
}

}  // namespace foreshard
