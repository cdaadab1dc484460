#include "traces/query/timeline_tables.h"

#include "core/plan.h"

namespace foreshard {
namespace {

using Of = QueriedTimeline;

QueryValue integer(std::int64_t value) { return value; }
QueryValue text_or_null(std::string_view text) { return text.empty() ? QueryValue() : QueryValue(text); }
const Span& span(const Of& of, std::size_t row) { return of.t.spans[row]; }
const Lane* lane_of(const Of& of, const Span& s) { return s.lane.valid() ? &of.t.lanes[s.lane.index()] : nullptr; }

constexpr std::int32_t kPhases = static_cast<std::int32_t>(Phase::Load) + 1;

std::int32_t code_if(std::int32_t code, std::size_t count) {
  return code >= 0 && static_cast<std::size_t>(code) < count ? code : -1;
}

/// A column of texts that a timeline holds once each.
template <class Code, class Codes, class Text>
QueryColumn texts(std::string_view name, Code, Codes, Text) {
  return {name,
          "TEXT",
          [](const Of& of, std::size_t r) {
            const std::int32_t code = Code()(of, r);
            return code < 0 ? QueryValue() : QueryValue(Text()(of, static_cast<std::size_t>(code)));
          },
          Code(),
          Codes(),
          Text()};
}

QueryColumn names(std::string_view name, std::int32_t (*code)(const Of&, std::size_t),
                  QueryValue (*value)(const Of&, std::size_t)) {
  return {name,
          "TEXT",
          value,
          code,
          [](const Of& of) { return of.t.names.size(); },
          [](const Of& of, std::size_t c) { return std::string_view(of.t.names[c]); }};
}

/// An empty name is no name.
std::int32_t name_code(const Of& of, NameId name) {
  const std::int32_t code = code_if(name.value, of.t.names.size());
  return code >= 0 && of.t.names[static_cast<std::size_t>(code)].empty() ? -1 : code;
}

QueryTable spans_table() {
  const auto lane_code = [](const Of& of, std::size_t r) { return code_if(span(of, r).lane.value, of.t.lanes.size()); };
  const auto lanes = [](const Of& of) { return of.t.lanes.size(); };
  const auto stream = [](const Of& of, std::size_t c) { return std::string_view(of.t.lanes[c].stream); };
  const auto kind_code = [](const Of& of, std::size_t r) { return static_cast<std::int32_t>(span(of, r).kind); };
  const auto kinds = [](const Of&) { return static_cast<std::size_t>(kLastSpanKind) + 1; };
  const auto kind = [](const Of&, std::size_t c) { return span_kind_name(static_cast<SpanKind>(c)); };
  const auto unit_code = [](const Of& of, std::size_t r) { return code_if(span(of, r).unit, of.t.units.size()); };
  const auto units = [](const Of& of) { return of.t.units.size(); };
  const auto unit = [](const Of& of, std::size_t c) {
    return of.t.units[c].empty() ? std::string_view("root") : std::string_view(of.t.units[c]);
  };
  const auto phase_code = [](const Of& of, std::size_t r) {
    return span(of, r).phase > 0 && span(of, r).phase < kPhases ? span(of, r).phase : -1;
  };
  const auto phases = [](const Of&) { return static_cast<std::size_t>(kPhases); };
  const auto phase = [](const Of&, std::size_t c) { return phase_name(static_cast<Phase>(c)); };
  return {"spans",
          {{"id", "INTEGER", [](const Of&, std::size_t r) { return integer(static_cast<std::int64_t>(r)); }},
           {"rank", "INTEGER",
            [](const Of& of, std::size_t r) {
              const Lane* lane = lane_of(of, span(of, r));
              return lane != nullptr ? integer(lane->rank) : QueryValue();
            }},
           {"lane", "INTEGER", [](const Of& of, std::size_t r) { return integer(span(of, r).lane.value); }},
           texts("stream", lane_code, lanes, stream),
           texts("kind", kind_code, kinds, kind),
           names(
               "name", [](const Of& of, std::size_t r) { return name_code(of, span(of, r).name); },
               [](const Of& of, std::size_t r) { return text_or_null(of.t.name_of(span(of, r).name)); }),
           {"start_ns", "INTEGER", [](const Of& of, std::size_t r) { return integer(span(of, r).start); }},
           {"duration_ns", "INTEGER", [](const Of& of, std::size_t r) { return integer(span(of, r).duration); }},
           {"end_ns", "INTEGER",
            [](const Of& of, std::size_t r) { return integer(span(of, r).start + span(of, r).duration); }},
           texts("unit", unit_code, units, unit),
           texts("phase", phase_code, phases, phase),
           names(
               "communicator", [](const Of& of, std::size_t r) { return name_code(of, span(of, r).communicator); },
               [](const Of& of, std::size_t r) { return text_or_null(of.t.name_of(span(of, r).communicator)); }),
           {"bytes", "INTEGER", [](const Of& of, std::size_t r) { return integer(span(of, r).bytes); }},
           {"instruction", "INTEGER",
            [](const Of& of, std::size_t r) {
              const InstructionId id = span(of, r).instruction;
              return id.valid() ? integer(id.value) : QueryValue();
            }},
           {"op", "INTEGER",
            [](const Of& of, std::size_t r) { return span(of, r).op >= 0 ? integer(span(of, r).op) : QueryValue(); }}},
          [](const Of& of) { return of.t.spans.size(); }};
}

QueryTable lanes_table() {
  return {"lanes",
          {{"id", "INTEGER", [](const Of&, std::size_t r) { return integer(static_cast<std::int64_t>(r)); }},
           {"rank", "INTEGER", [](const Of& of, std::size_t r) { return integer(of.t.lanes[r].rank); }},
           {"stream", "TEXT",
            [](const Of& of, std::size_t r) { return QueryValue(std::string_view(of.t.lanes[r].stream)); }},
           {"priority", "INTEGER", [](const Of& of, std::size_t r) { return integer(of.t.lanes[r].priority); }},
           {"label", "TEXT", [](const Of& of, std::size_t r) { return text_or_null(of.t.lanes[r].label); }}},
          [](const Of& of) { return of.t.lanes.size(); }};
}

QueryTable flows_table() {
  return {"flows",
          {{"from_span", "INTEGER", [](const Of& of, std::size_t r) { return integer(of.t.flows[r].from.value); }},
           {"to_span", "INTEGER", [](const Of& of, std::size_t r) { return integer(of.t.flows[r].to.value); }}},
          [](const Of& of) { return of.t.flows.size(); }};
}

QueryTable counters_table() {
  return {"counters",
          {{"id", "INTEGER", [](const Of&, std::size_t r) { return integer(static_cast<std::int64_t>(r)); }},
           {"rank", "INTEGER", [](const Of& of, std::size_t r) { return integer(of.t.counters[r].rank); }},
           {"name", "TEXT",
            [](const Of& of, std::size_t r) { return QueryValue(std::string_view(of.t.counters[r].name)); }},
           {"unit", "TEXT", [](const Of& of, std::size_t r) { return text_or_null(of.t.counters[r].unit); }}},
          [](const Of& of) { return of.t.counters.size(); }};
}

QueryTable samples_table() {
  return {"samples",
          {{"counter", "INTEGER", [](const Of& of, std::size_t r) { return integer(of.t.samples[r].counter.value); }},
           {"time_ns", "INTEGER", [](const Of& of, std::size_t r) { return integer(of.t.samples[r].time); }},
           {"value", "INTEGER", [](const Of& of, std::size_t r) { return integer(of.t.samples[r].value); }}},
          [](const Of& of) { return of.t.samples.size(); }};
}

QueryTable marks_table() {
  return {
      "marks",
      {{"time_ns", "INTEGER", [](const Of& of, std::size_t r) { return integer(of.t.marks[r].time); }},
       {"rank", "INTEGER", [](const Of& of, std::size_t r) { return integer(of.t.marks[r].rank); }},
       {"name", "TEXT", [](const Of& of, std::size_t r) { return text_or_null(of.t.name_of(of.t.marks[r].name)); }}},
      [](const Of& of) { return of.t.marks.size(); }};
}

QueryTable iterations_table() {
  return {"iterations",
          {{"rank", "INTEGER", [](const Of& of, std::size_t r) { return integer(of.iterations[r].first); }},
           {"iteration", "INTEGER", [](const Of& of, std::size_t r) { return integer(of.iterations[r].second.index); }},
           {"begin_ns", "INTEGER", [](const Of& of, std::size_t r) { return integer(of.iterations[r].second.begin); }},
           {"end_ns", "INTEGER", [](const Of& of, std::size_t r) { return integer(of.iterations[r].second.end); }}},
          [](const Of& of) { return of.iterations.size(); }};
}

}  // namespace

QueriedTimeline::QueriedTimeline(const Timeline& timeline) : t(timeline) {
  if (t.marks.empty()) return;  // the whole is one, which nobody needs a table for
  for (const std::int32_t rank : ranks_of(t)) {
    for (TimelineIteration& iteration : iterations_of(t, rank)) {
      iteration.spans = {};
      iterations.emplace_back(rank, std::move(iteration));
    }
  }
}

const std::vector<QueryTable>& timeline_tables() {
  static const std::vector<QueryTable> tables{spans_table(),   lanes_table(), flows_table(),     counters_table(),
                                              samples_table(), marks_table(), iterations_table()};
  return tables;
}

}  // namespace foreshard
