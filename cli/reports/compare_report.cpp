#include "cli/reports/compare_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cli/console/amount_text.h"
#include "cli/console/json_text.h"
#include "cli/console/text_lines.h"
#include "core/plan.h"

namespace foreshard::cli {
namespace {

std::string memory_text(double bytes) { return bytes_text(static_cast<Bytes>(std::llround(bytes))); }

class Text : private TextLines {
 public:
  Text(const Comparison& comparison, const ComparedSides& sides, const ReportStyle& style)
      : c_(comparison), sides_(sides), style_(style) {}

  std::string take() {
    line("A  {}: {}, iteration {}", sides_.a.file, sides_.a.what, c_.iteration_a);
    line("B  {}: {}, iteration {}", sides_.b.file, sides_.b.what, c_.iteration_b);
    line("   {}{} joined, {} only in A, {} only in B", counted(c_.joined, "instruction"),
         c_.ranks.size() > 1 ? fmt::format(" of {} ranks", c_.ranks.size()) : "", c_.only_a, c_.only_b);
    pairs();
    for (const std::string& note : c_.notes) line("   {}", note);
    summary();
    spread("A", c_.spread_a, &Pair::b);
    spread("B", c_.spread_b, &Pair::a);
    changes();
    units();
    causes();
    categories();
    instructions();
    missing();
    return std::move(out_);
  }

 private:
  void title(const std::string& text) { line("\n{}", style_.color ? "\x1b[1m" + text + "\x1b[0m" : text); }
  void head(const std::string& text) {
    title(fmt::format("{:<34}{:>13}{:>13}{:>13}{:>11}", text, "A", "B", "A - B", "of B"));
  }
  template <class F>
  void row(const std::string& label, const Pair& pair, F text) {
    const double difference = pair.difference();
    const std::string sign = difference < 0 ? "-" : difference > 0 ? "+" : "";
    line("  {:<32}{:>13}{:>13}{:>13}{:>11}", label, text(pair.a), text(pair.b), sign + text(std::abs(difference)),
         pair.b != 0 ? signed_percent(pair.error()) : "");
  }
  template <class Rows>
  std::size_t shown(const Rows& rows) const {
    return sides_.top > 0 ? std::min(rows.size(), static_cast<std::size_t>(sides_.top)) : rows.size();
  }
  template <class Rows>
  void rest(const Rows& rows) {
    if (shown(rows) < rows.size()) line("  ... {} more (--top 0 shows all)", rows.size() - shown(rows));
  }

  void summary() {
    head("Step");
    row("step time", c_.step, duration_text);
    row("compute stream busy", c_.compute, duration_text);
    row("communication busy", c_.comm, duration_text);
    row("exposed communication", c_.exposed, duration_text);
    line("  {:<32}{:>50}", "exposed share of the step", fmt::format("{:+.2f} points", c_.exposed_comm_points()));
    if (c_.memory_in_a || c_.memory_in_b) memory_row("peak allocated", c_.peak_memory, c_.memory_in_a, c_.memory_in_b);
    for (const StreamPair& stream : c_.by_stream) row("stream " + stream.stream, stream.busy, duration_text);
  }

  /// One step of a machine that others use says little.
  void spread(const char* side, const std::optional<StepSpread>& steps, double Pair::*other) {
    if (!steps) return;
    title(fmt::format("{:<34}{:>13}{:>13}{:>13}{:>11}", fmt::format("{}'s {} steps", side, steps->iterations), "least",
                      "median", "most", other == &Pair::a ? "A" : "B"));
    const auto one = [&](const char* label, const Spread& spread, const Pair& pair) {
      line("  {:<32}{:>13}{:>13}{:>13}{:>11}", label, duration_text(spread.least), duration_text(spread.median),
           duration_text(spread.most), spread.median != 0 ? signed_percent(pair.*other / spread.median - 1) : "");
    };
    one("step time", steps->step, c_.step);
    one("compute stream busy", steps->compute, c_.compute);
    one("communication busy", steps->comm, c_.comm);
    one("exposed communication", steps->exposed, c_.exposed);
  }

  /// What one of them did not record is no 0.
  void memory_row(const std::string& label, const Pair& pair, bool in_a, bool in_b) {
    if (in_a && in_b) return row(label, pair, memory_text);
    line("  {:<32}{:>13}{:>13}", label, in_a ? memory_text(pair.a) : "not recorded",
         in_b ? memory_text(pair.b) : "not recorded");
  }

  void pairs() {
    if (c_.ranks == c_.ranks_b || c_.ranks.size() != c_.ranks_b.size()) return;
    for (std::size_t i = 0; i < c_.ranks.size(); ++i)
      line("   rank {} of A against rank {} of B", c_.ranks[i], c_.ranks_b[i]);
  }

  void changes() {
    if (c_.changes.empty()) return;
    head("What changed");
    for (std::size_t i = 0; i < shown(c_.changes); ++i)
      row(c_.changes[i].what, Pair{c_.changes[i].a, c_.changes[i].b}, duration_text);
    rest(c_.changes);
    row("all rows, the step", c_.accounted, duration_text);
  }

  void units() {
    head("Busy time by unit");
    for (std::size_t i = 0; i < shown(c_.by_unit); ++i) {
      const UnitPair& unit = c_.by_unit[i];
      row(unit.unit, unit.busy(), duration_text);
      for (const auto& [name, pair] :
           {std::pair{"compute", unit.compute}, {"comm", unit.comm}, {"copies", unit.copies}}) {
        if (pair.a > 0 || pair.b > 0) row(std::string("  ") + name, pair, duration_text);
      }
    }
    rest(c_.by_unit);
  }

  void causes() {
    if (c_.by_cause.empty()) return;
    head("Exposed communication by cause");
    for (const CausePair& cause : c_.by_cause) {
      row(fmt::format("{} ({})", cause.cause, span_kind_name(cause.kind)), cause.time, duration_text);
    }
  }

  void categories() {
    if (c_.by_category.empty()) return;
    head("Peak memory by category");
    for (const CategoryPair& category : c_.by_category) {
      if (category.peak.a > 0 || category.peak.b > 0)
        memory_row(category.category, category.peak, category.in_a, category.in_b);
    }
  }

  std::string label_of(const InstructionPair& i) const {
    std::string label = i.instruction.valid() ? fmt::format("{} {}", i.instruction.value, i.stream) : i.stream;
    if (c_.ranks.size() > 1) label = fmt::format("r{} {}", i.rank, label);
    label += fmt::format(" {} {}", span_kind_name(i.kind), i.unit.empty() ? i.name : i.unit);
    const auto phase = static_cast<Phase>(i.phase);
    if (phase != Phase::None) label += fmt::format(" {}", phase_name(phase));
    return label.size() > 32 ? label.substr(0, 31) + "~" : label;
  }

  void instructions() {
    if (c_.by_instruction.empty()) return;
    head("Instructions by duration");
    for (std::size_t i = 0; i < shown(c_.by_instruction); ++i) {
      row(label_of(c_.by_instruction[i]), c_.by_instruction[i].duration, duration_text);
    }
    rest(c_.by_instruction);
  }

  void missing() {
    if (c_.missing.empty()) return;
    title("In one of them only");
    for (std::size_t i = 0; i < shown(c_.missing); ++i) {
      const InstructionPair& m = c_.missing[i];
      line("  {:<32}{:>13}{:>13}", label_of(m), m.duration.a > 0 ? duration_text(m.duration.a) : "",
           m.duration.b > 0 ? duration_text(m.duration.b) : "");
    }
    rest(c_.missing);
  }

  const Comparison& c_;
  const ComparedSides& sides_;
  ReportStyle style_;
};

void write_pair(JsonText& out, const char* name, const Pair& pair, const char* unit) {
  out.key(name).begin_object();
  out.field(fmt::format("a_{}", unit), std::llround(pair.a)).field(fmt::format("b_{}", unit), std::llround(pair.b));
  out.field("error", pair.error()).end_object();
}

/// null: not recorded there.
void write_memory(JsonText& out, const char* name, const Pair& pair, bool in_a, bool in_b) {
  if (in_a && in_b) return write_pair(out, name, pair, "bytes");
  out.key(name).begin_object().key("a_bytes");
  in_a ? out.value(std::llround(pair.a)) : out.null();
  out.key("b_bytes");
  in_b ? out.value(std::llround(pair.b)) : out.null();
  out.key("error").null().end_object();
}

void write_side(JsonText& out, const char* name, const ComparedSide& side, std::int32_t iteration) {
  out.key(name).begin_object().field("file", side.file).field("what", side.what);
  out.field("plan_digest", side.plan_digest).field("iteration", iteration).end_object();
}

void write_instruction(JsonText& out, const InstructionPair& i) {
  out.begin_object().field("rank", i.rank).field("stream", i.stream).field("instruction", i.instruction.value);
  out.field("kind", span_kind_name(i.kind)).field("name", i.name).field("unit", i.unit);
  out.field("phase", phase_name(static_cast<Phase>(i.phase)));
  write_pair(out, "start", i.start, "ns");
  write_pair(out, "duration", i.duration, "ns");
  out.end_object();
}

/// By unit, cause, category, stream.
void write_tables(JsonText& out, const Comparison& c) {
  out.key("by_unit").begin_array();
  for (const UnitPair& unit : c.by_unit) {
    out.begin_object().field("unit", unit.unit);
    write_pair(out, "busy", unit.busy(), "ns");
    write_pair(out, "compute", unit.compute, "ns");
    write_pair(out, "comm", unit.comm, "ns");
    write_pair(out, "copies", unit.copies, "ns");
    write_pair(out, "host", unit.host, "ns");
    out.end_object();
  }
  out.end_array().key("by_cause").begin_array();
  for (const CausePair& cause : c.by_cause) {
    out.begin_object().field("cause", cause.cause).field("kind", span_kind_name(cause.kind));
    write_pair(out, "exposed", cause.time, "ns");
    out.end_object();
  }
  out.end_array().key("by_category").begin_array();
  for (const CategoryPair& category : c.by_category) {
    out.begin_object().field("category", category.category);
    write_memory(out, "peak", category.peak, category.in_a, category.in_b);
    out.end_object();
  }
  out.end_array().key("by_stream").begin_array();
  for (const StreamPair& stream : c.by_stream) {
    out.begin_object().field("stream", stream.stream);
    write_pair(out, "busy", stream.busy, "ns");
    out.end_object();
  }
  out.end_array();
}

}  // namespace

std::string comparison_report(const Comparison& comparison, const ComparedSides& sides, const ReportStyle& style) {
  return Text(comparison, sides, style).take();
}

namespace {

void write_spread(JsonText& out, std::string_view name, const std::optional<StepSpread>& steps) {
  out.key(name);
  if (!steps) return static_cast<void>(out.null());
  out.begin_object().field("iterations", steps->iterations);
  for (const auto& [what, spread] : {std::pair{"step_time", steps->step},
                                     {"compute", steps->compute},
                                     {"comm", steps->comm},
                                     {"exposed_comm", steps->exposed}}) {
    out.key(what).begin_object().field("least_ns", spread.least).field("median_ns", spread.median);
    out.field("most_ns", spread.most).end_object();
  }
  out.end_object();
}

}  // namespace

std::string comparison_json(const Comparison& c, const ComparedSides& sides) {
  JsonText out;
  out.begin_object().field("schema", "foreshard.comparison/1");
  write_side(out, "a", sides.a, c.iteration_a);
  write_side(out, "b", sides.b, c.iteration_b);
  out.key("ranks").begin_array();
  for (const std::int32_t rank : c.ranks) out.value(rank);
  out.end_array();
  out.field("joined", c.joined).field("only_a", c.only_a).field("only_b", c.only_b);
  out.field("step_error", c.step.error()).field("exposed_comm_points", c.exposed_comm_points());
  out.key("memory_error");
  c.memory_in_a&& c.memory_in_b ? out.value(c.peak_memory.error()) : out.null();
  write_pair(out, "step_time", c.step, "ns");
  write_pair(out, "compute", c.compute, "ns");
  write_pair(out, "comm", c.comm, "ns");
  write_pair(out, "exposed_comm", c.exposed, "ns");
  write_memory(out, "peak_allocated", c.peak_memory, c.memory_in_a, c.memory_in_b);
  write_spread(out, "steps_a", c.spread_a);
  write_spread(out, "steps_b", c.spread_b);
  out.key("ranks_b").begin_array();
  for (const std::int32_t rank : c.ranks_b) out.value(rank);
  out.end_array().key("notes").begin_array();
  for (const std::string& note : c.notes) out.value(note);
  out.end_array();
  write_pair(out, "accounted", c.accounted, "ns");
  out.key("changes").begin_array();
  for (const StepChange& change : c.changes) {
    out.begin_object().field("what", change.what);
    write_pair(out, "time", {change.a, change.b}, "ns");
    out.end_object();
  }
  out.end_array();
  write_tables(out, c);
  out.key("by_instruction").begin_array();
  for (const InstructionPair& i : c.by_instruction) write_instruction(out, i);
  out.end_array().key("missing").begin_array();
  for (const InstructionPair& i : c.missing) write_instruction(out, i);
  out.end_array().end_object();
  return out.take();
}

double worst_difference(const Comparison& c) {
  const double memory = c.memory_in_a && c.memory_in_b ? std::abs(c.peak_memory.error()) : 0;
  return std::max({std::abs(c.step.error()), memory, std::abs(c.exposed_comm_points()) / 100});
}

}  // namespace foreshard::cli
