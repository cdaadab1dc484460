#include "gui/view/paint/report.h"

#include <fmt/format.h>

#include <QFile>
#include <QRegularExpression>
#include <algorithm>
#include <iterator>
#include <map>

#include "core/output_file.h"
#include "gui/models/open_input.h"
#include "gui/models/slice_facts.h"
#include "gui/models/timeline/amounts.h"
#include "gui/view/paint/pareto_painter.h"
#include "gui/view/paint/picture.h"
#include "traces/analysis/comparison.h"
#include "traces/timeline/exposed_comm.h"

namespace foreshard::gui {
namespace {

constexpr const char* kStyle =
    "body{font:15px/1.5 system-ui,'DejaVu Sans',sans-serif;max-width:1280px;margin:2rem auto;padding:0 "
    "1.5rem;color:#1c2430;"
    "background:#fff}h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2.2rem}svg{width:100%;height:auto;border:1px "
    "solid "
    "#d6dbe1;border-radius:6px}table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}th,td{text-"
    "align:"
    "right;padding:.25rem .6rem;border-bottom:1px solid "
    "#e6e9ed}th:first-child,td:first-child{text-align:left}td,h1{overflow-wrap:anywhere}th{color:#66707d;"
    "font-weight:500}.caption{color:#66707d;margin:.2rem 0 .6rem}.note{background:#fff6df;border-left:4px solid "
    "#f0a202;padding:.4rem .8rem;margin:.4rem 0}"
    "footer{color:#66707d;margin-top:3rem;font-size:.85rem}@media print{body{max-width:none;margin:0}}";

std::string escaped(const std::string& text) { return QString::fromStdString(text).toHtmlEscaped().toStdString(); }

class Html {
 public:
  void title(const std::string& text) { body_ += "<h1>" + escaped(text) + "</h1>\n"; }
  void heading(const std::string& text) { body_ += "<h2>" + escaped(text) + "</h2>\n"; }
  void caption(const std::string& text) { body_ += "<p class=\"caption\">" + escaped(text) + "</p>\n"; }
  void note(const std::string& text) { body_ += "<p class=\"note\">" + escaped(text) + "</p>\n"; }

  void picture(const Picture& picture) {
    QString svg = QString::fromUtf8(picture_svg(picture));
    svg = svg.mid(std::max<qsizetype>(0, svg.indexOf("<svg")));
    // Sizes in millimetres would fix the width; the view box alone lets it follow the page.
    static const QRegularExpression kSize("<svg width=\"[^\"]*\" height=\"[^\"]*\"");
    svg.replace(kSize, QString("<svg role=\"img\" aria-label=\"%1\"").arg(text_of(picture.title).toHtmlEscaped()));
    body_ += svg.toStdString() + "\n";
  }

  void table(const std::vector<std::string>& head, const std::vector<std::vector<std::string>>& rows) {
    body_ += "<table><thead><tr>";
    for (const std::string& cell : head) body_ += "<th scope=\"col\">" + escaped(cell) + "</th>";
    body_ += "</tr></thead><tbody>\n";
    for (const auto& row : rows) {
      body_ += "<tr>";
      for (const std::string& cell : row) body_ += "<td>" + escaped(cell) + "</td>";
      body_ += "</tr>\n";
    }
    body_ += "</tbody></table>\n";
  }

  std::string document(const std::string& title) const {
    return fmt::format(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{}</title>"
        "<meta name=\"viewport\" content=\"width=device-width\"><style>{}</style></head><body>\n{}"
        "<footer>Made by foreshard report.</footer></body></html>\n",
        escaped(title), kStyle, body_);
  }

 private:
  std::string body_;
};

std::string words(double nanoseconds) { return duration_words(nanoseconds); }

std::vector<std::string> pair_row(std::string name, const Pair& pair, std::string (*text)(double)) {
  return {std::move(name), text(pair.a), text(pair.b), text(pair.difference()), signed_percent(pair.error())};
}

void add_range(Html& html, const Scene& scene, TimeRange range) {
  html.heading("Streams");
  html.caption("How long each lane was busy in this step, overlaps of its own slices counted once.");
  std::vector<std::vector<std::string>> rows;
  for (const RangeRow& row : range_table(scene, range))
    if (row.slices > 0)
      rows.push_back(
          {row.lane, words(static_cast<double>(row.busy)), percent_words(row.share), fmt::format("{}", row.slices)});
  html.table({"lane", "busy", "share", "slices"}, rows);
}

/// Units that are written alike are one row: the layers of a model mostly are.
std::vector<std::vector<std::string>> folded_rows(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::pair<std::vector<std::string>, std::vector<std::string>>> groups;  // what is written, by whom
  for (const std::vector<std::string>& row : rows) {
    const std::vector<std::string> written(row.begin() + 1, row.end());
    const auto same = std::find_if(groups.begin(), groups.end(), [&](const auto& g) { return g.first == written; });
    if (same != groups.end())
      same->second.push_back(row.front());
    else
      groups.push_back({written, {row.front()}});
  }
  std::vector<std::vector<std::string>> folded;
  for (auto& [written, names] : groups) {
    std::sort(names.begin(), names.end(), [](const std::string& a, const std::string& b) {  // layers.2 before layers.10
      return a.size() != b.size() ? a.size() < b.size() : a < b;
    });
    std::vector<std::string> row{names.front()};
    if (names.size() == 2) row.front() += ", " + names.back();
    if (names.size() > 2)
      row.front() = fmt::format("{} … {}, {} units, each", names.front(), names.back(), names.size());
    row.insert(row.end(), written.begin(), written.end());
    folded.push_back(std::move(row));
  }
  return folded;
}

/// Busy time by unit of the compute and communication lanes.
void add_units(Html& html, const TimelineModel& model, TimeRange range) {
  struct Sums {
    SimDuration compute = 0, comm = 0;
  };
  std::map<std::string, Sums> units;
  for (const Span& span : model.timeline.spans) {
    if (span.unit < 0 || span.start < range.begin || span.start >= range.end) continue;
    Sums& sums = units[unit_label(model.timeline, span.unit)];
    if (is_collective(span.kind))
      sums.comm += span.duration;
    else if (span.kind == SpanKind::Compute)
      sums.compute += span.duration;
  }
  if (units.empty()) return;
  html.heading("Units");
  std::vector<std::pair<std::string, Sums>> sorted(units.begin(), units.end());
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
    return a.second.compute + a.second.comm > b.second.compute + b.second.comm;
  });
  std::vector<std::vector<std::string>> rows;
  for (const auto& [name, sums] : sorted)
    rows.push_back({name, words(static_cast<double>(sums.compute)), words(static_cast<double>(sums.comm))});
  html.caption("Time of the unit's own slices in this step, all ranks; units with the same numbers share a row.");
  html.table({"unit", "compute", "communication"}, folded_rows(rows));
}

void add_provenance(Html& html, const Provenance& provenance) {
  html.heading("Where it comes from");
  std::vector<std::vector<std::string>> rows;
  const auto tell = [&](const char* what, const std::string& value) {
    if (!value.empty()) rows.push_back({what, value});
  };
  tell("source", provenance.source);
  tell("written by", provenance.software);
  tell("machine", provenance.hardware);
  tell("clock", provenance.clock);
  tell("plan", provenance.plan_digest);
  if (provenance.dropped_records > 0) tell("records lost", fmt::format("{}", provenance.dropped_records));
  html.table({"", ""}, rows);
}

void add_timeline(Html& html, std::shared_ptr<const TimelineModel> model) {
  const TimeRange step = steady_range(*model);
  html.heading("The step");
  html.picture(scene_picture(timeline_scene(model), {}));
  Scene scene = timeline_scene(model);
  scene.sides.front().origin = step.begin;
  html.heading("Where the time goes");
  html.caption(
      "Exposed is communication during which nothing computes; the critical path is the chain that ends with the last "
      "work.");
  std::vector<std::vector<std::string>> facts;
  for (const Fact& fact : range_facts(scene, {0, step.length()})) facts.push_back({fact.name, fact.value});
  html.table({"", ""}, facts);
  add_range(html, scene, {0, step.length()});
  if (const MemoryTracks* memory = model->ranks.empty() ? nullptr : model->memory_of(model->ranks.front().rank);
      memory != nullptr && memory->allocated) {
    const ValueRange peak = memory->allocated->range(step.begin, step.end);
    html.heading("Memory at the peak");
    html.caption("What was allocated at the highest moment of this step, on the lowest rank.");
    std::vector<std::vector<std::string>> rows;
    for (const auto& [name, track] : memory->categories) {
      const auto bytes = static_cast<double>(value_beside(track, *memory->allocated, peak));
      if (bytes > 0) rows.push_back({name, bytes_words(bytes), percent_words(bytes / static_cast<double>(peak.high))});
    }
    rows.push_back({"allocated", bytes_words(static_cast<double>(peak.high)), "100 %"});
    html.table({"category", "bytes", "share"}, rows);
  }
  add_units(html, *model, step);
  add_provenance(html, model->timeline.provenance);
}

void add_comparison(Html& html, const std::shared_ptr<const ComparisonModel>& model) {
  const Comparison& c = model->numbers;
  html.heading("Side by side");
  html.caption("The same instruction is joined by a band; red where A takes longer, blue where B does.");
  html.picture(scene_picture(comparison_scene(model), {}));
  const std::vector<std::string> head{"", "A", "B", "A - B", "(A - B) / B"};
  html.heading("Step");
  html.table(head, {pair_row("step", c.step, duration_words), pair_row("compute", c.compute, duration_words),
                    pair_row("communication", c.comm, duration_words),
                    pair_row("exposed communication", c.exposed, duration_words),
                    pair_row("peak allocated", c.peak_memory, bytes_words)});
  const auto section = [&](const char* title, const auto& list, const auto& row) {
    constexpr std::size_t kMostRows = 25;
    std::vector<std::vector<std::string>> rows;
    for (std::size_t k = 0; k < std::min(kMostRows, list.size()); ++k) rows.push_back(row(list[k]));
    if (rows.empty()) return;
    html.heading(title);
    html.table(head, rows);
  };
  section("Units", c.by_unit,
          [](const UnitPair& u) { return pair_row(u.unit.empty() ? "none" : u.unit, u.busy(), duration_words); });
  section("Exposed communication by cause", c.by_cause,
          [](const CausePair& p) { return pair_row(p.cause, p.time, duration_words); });
  section("Peak memory by category", c.by_category,
          [](const CategoryPair& p) { return pair_row(p.category, p.peak, bytes_words); });
  section("Instructions, largest difference first", c.by_instruction, [](const InstructionPair& i) {
    return pair_row(i.stream + "  " + i.name + (i.unit.empty() ? "" : " · " + i.unit), i.duration, duration_words);
  });
}

void add_sweep(Html& html, const SweepPoints& sweep) {
  PictureOptions options;
  options.width = 1200;
  html.picture(pareto_picture(sweep, options));
  html.heading("The front");
  std::vector<std::vector<std::string>> rows;
  for (const std::size_t k : sweep.front()) {
    const ParetoPoint& point = sweep.points[k];
    rows.push_back({fmt::format("{}", fmt::join(point.set, ", ")), duration_words(point.time_ns),
                    bytes_words(static_cast<double>(point.memory)), point.reason});
  }
  html.table({"job", sweep.time_name, "peak reserved", "why"}, rows);
}

}  // namespace

Result<std::vector<std::string>> write_report(const ViewerArguments& arguments) {
  const OpenInputOptions options{arguments.sets, {}};
  auto first =
      arguments.files.size() == 2 ? open_input(arguments.files[0], options) : open_inputs(arguments.files, options);
  if (!first) return fail(first.error());
  std::vector<std::string> notes = first->notes;
  Html html;
  std::string title;
  if (arguments.files.size() == 2) {
    auto second = open_input(arguments.files[1], options);
    if (!second) return fail(second.error());
    std::copy(second->notes.begin(), second->notes.end(), std::back_inserter(notes));
    if (!first->timeline || !second->timeline)
      return fail({.code = ErrorCode::Usage,
                   .message = "a sweep cannot be compared",
                   .place = "FILES",
                   .expected = "two recordings or jobs"});
    CompareOptions compare;
    compare.rank = arguments.rank;
    compare.force = arguments.force;
    const auto comparison = make_comparison_model(first->timeline, second->timeline, compare);
    if (!comparison) return fail(comparison.error());
    title = first->timeline->name + " against " + second->timeline->name;
    html.title(title);
    for (const std::string& note : notes) html.note(note);
    add_comparison(html, *comparison);
  } else {
    title = first->sweep ? "Sweep of " + first->sweep->name
                         : first->timeline->name + ": " + describe_source(*first->timeline);
    html.title(title);
    for (const std::string& note : notes) html.note(note);
    if (first->sweep)
      add_sweep(html, *first->sweep);
    else
      add_timeline(html, first->timeline);
  }
  if (auto written = write_whole_file(arguments.report, html.document(title)); !written) return fail(written.error());
  return notes;
}

}  // namespace foreshard::gui
