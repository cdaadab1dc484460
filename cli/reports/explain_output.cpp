#include "cli/reports/explain_output.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "cli/console/amount_text.h"

namespace foreshard::cli {
namespace {

constexpr std::size_t kMostRows = 12;

std::string shown(const std::string& unit) { return unit.empty() ? std::string("-") : unit; }

class ExplanationText {
 public:
  ExplanationText(const Simulation& simulation, const ReportStyle& style)
      : e_(*simulation.explanation), style_(style) {}

  std::string text() {
    holders();
    exposed();
    changes();
    findings();
    return std::move(out_);
  }

 private:
  void line(const std::string& content) { out_ += content + "\n"; }
  void title(const std::string& content) { line("\n" + (style_.color ? "\x1b[1m" + content + "\x1b[0m" : content)); }
  void rest(std::size_t all) {
    if (all > kMostRows) line(fmt::format("  and {} more; --json has all", all - kMostRows));
  }

  void holders() {
    if (e_.holders.empty()) return;
    title("At the peak, by who made it");
    for (std::size_t k = 0; k < std::min(kMostRows, e_.holders.size()); ++k) {
      const MemoryHolder& h = e_.holders[k];
      const std::string where =
          h.instruction.valid() ? fmt::format("{}, instruction {}", h.phase, h.instruction.value) : h.phase;
      line(fmt::format("  {:>9}  {:<16} {:<28} {} ({})", bytes_text(h.bytes), h.category, shown(h.unit), where,
                       counted(h.blocks, "block")));
    }
    rest(e_.holders.size());
  }

  void exposed() {
    if (e_.exposed.empty()) return;
    title(fmt::format("Exposed communication: {} of a step of {}", duration_text(static_cast<double>(e_.exposed_time)),
                      duration_text(static_cast<double>(e_.step_time))));
    for (std::size_t k = 0; k < std::min(kMostRows, e_.exposed.size()); ++k) {
      const ExposedCollective& c = e_.exposed[k];
      line(fmt::format("  {:>9}  {:<15} {:<28} {} ({})", duration_text(static_cast<double>(c.exposed)), c.kind,
                       shown(c.unit), c.phase, counted(c.count, "call")));
    }
    rest(e_.exposed.size());
  }

  void changes() {
    if (e_.step_time <= 0) return;
    title("What would change it (each simulated)");
    if (e_.changes.empty()) line("  no change that was tried makes a step shorter");
    for (const ChangeEffect& c : e_.changes) {
      std::string sets;
      for (const std::string& set : c.set) sets += " --set " + set;
      line(fmt::format("  {:>9} less ({} exposed)  {:<13} {}: {} reserved{}",
                       duration_text(static_cast<double>(c.removed_time)),
                       duration_text(static_cast<double>(c.removed_exposed)), exposure_cause_name(c.cause), c.text,
                       bytes_text(c.peak_reserved), c.set.empty() ? " (no setting does this)" : sets));
    }
    for (const std::string& text : e_.not_tried) line("  not tried  " + text);
  }

  void findings() {
    if (e_.findings.empty()) return;
    title("To know");
    for (const Finding& f : e_.findings) {
      std::string sets;
      for (const std::string& set : f.set) sets += " --set " + set;
      line(fmt::format("  {}{}{}", f.trap > 0 ? fmt::format("trap {}, ", f.trap) : std::string(), f.text,
                       sets.empty() ? "" : " ->" + sets));
    }
  }

  const Explanation& e_;
  ReportStyle style_;
  std::string out_;
};

void write_texts(JsonText& out, const char* name, const std::vector<std::string>& texts) {
  out.key(name).begin_array();
  for (const std::string& text : texts) out.value(text);
  out.end_array();
}

}  // namespace

std::string explanation_report(const Simulation& simulation, const ReportStyle& style) {
  return simulation.explanation ? ExplanationText(simulation, style).text() : std::string();
}

void write_explanation(JsonText& out, const Explanation& e) {
  out.key("explain").begin_object().key("holders").begin_array();
  for (const MemoryHolder& h : e.holders) {
    out.begin_object().field("bytes", h.bytes).field("category", h.category).field("unit", h.unit);
    out.field("phase", h.phase).field("instruction", h.instruction.value).field("iteration", h.iteration);
    out.field("blocks", h.blocks).end_object();
  }
  out.end_array().key("exposed").begin_array();
  for (const ExposedCollective& c : e.exposed) {
    out.begin_object().field("kind", c.kind).field("unit", c.unit).field("phase", c.phase);
    out.field("count", c.count).field("exposed_ns", c.exposed).end_object();
  }
  out.end_array().key("changes").begin_array();
  for (const ChangeEffect& c : e.changes) {
    out.begin_object().field("text", c.text).field("cause", exposure_cause_name(c.cause));
    write_texts(out, "set", c.set);
    out.field("step_time_ns", c.step_time).field("removed_ns", c.removed_time);
    out.field("removed_exposed_ns", c.removed_exposed).field("peak_reserved_bytes", c.peak_reserved).end_object();
  }
  out.end_array();
  write_texts(out, "not_tried", e.not_tried);
  out.key("findings").begin_array();
  for (const Finding& f : e.findings) {
    out.begin_object().field("need", f.need).field("trap", f.trap).field("text", f.text);
    write_texts(out, "set", f.set);
    out.end_object();
  }
  out.end_array().end_object();
}

}  // namespace foreshard::cli
