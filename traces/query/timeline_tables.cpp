#include "traces/query/timeline_tables.h"

#include "core/plan.h"

namespace foreshard {
namespace {

using Of = QueriedTimeline;

QueryValue integer(std::int64_t value) { return value; }
QueryValue text_or_null(std::string_view text) { return text.empty() ? QueryValue() : QueryValue(text); }
const Span& span(const Of& of, std::size_t row) { return of.t.spans[row]; }
const Lane* lane_of(const Of& of, const Span& s) { return s.lane.valid() ? &of.t.lanes[s.lane.index()] : nullptr; }

QueryValue unit_of(const Of& of, std::int32_t unit) {
  if (unit < 0 || static_cast<std::size_t>(unit) >= of.t.units.size()) return {};
  const std::string& name = of.t.units[static_cast<std::size_t>(unit)];
  return std::string_view(name.empty() ? "root" : std::string_view(name));
}

QueryTable spans_table() {
  return {"spans",
          {{"id", "INTEGER", [](const Of&, std::size_t r) { return integer(static_cast<std::int64_t>(r)); }},
           {"rank", "INTEGER",
            [](const Of& of, std::size_t r) {
              const Lane* lane = lane_of(of, span(of, r));
              return lane != nullptr ? integer(lane->rank) : QueryValue();
            }},
           {"lane", "INTEGER", [](const Of& of, std::size_t r) { return integer(span(of, r).lane.value); }},
           {"stream", "TEXT",
            [](const Of& of, std::size_t r) {
              const Lane* lane = lane_of(of, span(of, r));
              return lane != nullptr ? QueryValue(std::string_view(lane->stream)) : QueryValue();
            }},
           {"kind", "TEXT", [](const Of& of, std::size_t r) { return QueryValue(span_kind_name(span(of, r).kind)); }},
           {"name", "TEXT", [](const Of& of, std::size_t r) { return text_or_null(of.t.name_of(span(of, r).name)); }},
           {"start_ns", "INTEGER", [](const Of& of, std::size_t r) { return integer(span(of, r).start); }},
           {"duration_ns", "INTEGER", [](const Of& of, std::size_t r) { return integer(span(of, r).duration); }},
           {"end_ns", "INTEGER",
            [](const Of& of, std::size_t r) { return integer(span(of, r).start + span(of, r).duration); }},
           {"unit", "TEXT", [](const Of& of, std::size_t r) { return unit_of(of, span(of, r).unit); }},
           {"phase", "TEXT",
            [](const Of& of, std::size_t r) {
              const std::int32_t phase = span(of, r).phase;
              const bool known = phase > 0 && phase <= static_cast<std::int32_t>(Phase::Load);
              return known ? QueryValue(phase_name(static_cast<Phase>(phase))) : QueryValue();
            }},
           {"communicator", "TEXT",
            [](const Of& of, std::size_t r) { return text_or_null(of.t.name_of(span(of, r).communicator)); }},
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
