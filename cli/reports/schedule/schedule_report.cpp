#include "cli/reports/schedule/schedule_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "cli/console/amount_text.h"
#include "sim/schedule/schedule_words.h"

namespace foreshard::cli {
namespace {

/// Rows that say the same, by unit.
bool alike(const ScheduledUnit& a, const ScheduledUnit& b) {
  return a.decided.keep == b.decided.keep && a.decided.activations == b.decided.activations && a.bytes == b.bytes &&
         a.why == b.why;
}

class ScheduleText {
 public:
  ScheduleText(const FoundSchedule& found, const ReportStyle& style) : found_(found), style_(style) {}

  std::string text(const std::string& model, const std::string& profile) {
    line(bold(fmt::format("{} on {}: a schedule for {}", model, profile, bytes_text(found_.budget))));
    proposed();
    if (!found_.fits) {
      line(fmt::format("  no schedule fits; the least budget that does is {}", bytes_text(found_.least_budget)));
      return std::move(out_);
    }
    line(fmt::format("  step {}, {} reserved at the peak", duration_text(found_.step_ns),
                     bytes_text(found_.peak_reserved)));
    rival("fsdp2", found_.fsdp2);
    rival("fsdp1", found_.fsdp1);
    if (found_.bound.ns > 0) {
      const bool host = found_.bound.host_bound();
      const std::string above = percent_text(found_.gap());
      if (host)
        line(fmt::format("  the host alone needs about {}: {} above it", duration_text(found_.bound.free_step_ns),
                         above));
      else
        line(fmt::format("  no schedule of these units is shorter than {} ({}): {} above it",
                         duration_text(found_.bound.ns), decides(found_.bound.side), above));
    }
    if (!found_.advice.empty()) line("  " + found_.advice);
    if (const std::string room = room_advice_of(found_); !room.empty()) line("  " + room);
    line(fmt::format("  {} simulations in {:.1f} s", found_.simulated, found_.seconds));
    units();
    return std::move(out_);
  }

 private:
  static const char* decides(ScheduleBound::Side side) {
    switch (side) {
      case ScheduleBound::Side::Compute: return "compute decides";
      case ScheduleBound::Side::Links: return "the links decide";
      case ScheduleBound::Side::Order: break;
    }
    return "who waits for whom decides";
  }

  void line(const std::string& content) { out_ += content + "\n"; }
  std::string bold(const std::string& content) const {
    return style_.color ? "\x1b[1m" + content + "\x1b[0m" : content;
  }

  /// Where another runtime is the better answer.
  void proposed() {
    const Proposal& one = found_.proposal;
    if (one.runtime != Runtime::Fsdp1) return;
    std::string keys;
    for (const Proposal::Key& key : one.keys)
      keys += fmt::format("{}{} = {}", keys.empty() ? "" : ", ", key.name, key.value);
    line(fmt::format("  proposed: FSDP1, {} a step, {} reserved; with {}", duration_text(one.step_ns),
                     bytes_text(one.reserved), keys));
    line("  the best schedule of fsdp2's layouts:");
  }

  void rival(const char* name, const RivalStep& step) {
    if (step.step_ns <= 0) {
      line(fmt::format("  {} at the same budget: {}", name, step.why_not));
      return;
    }
    line(fmt::format("  {} at the same budget: {} ({:+.1f} %), {} reserved", name, duration_text(step.step_ns),
                     100 * (step.step_ns / found_.step_ns - 1), bytes_text(step.reserved)));
  }

  void units() {
    std::size_t width = 6;
    for (const ScheduledUnit& unit : found_.units) width = std::max(width, shown(unit).size());
    width = std::min<std::size_t>(width + 14, 44);
    line("");
    line(bold(fmt::format("  {:<{}} {:>9}  {:<8} {:<12} {:<18} {:<18} {}", "units", width, "gathered", "params",
                          "activations", "gather fwd at", "gather bwd at", "why")));
    const auto& all = found_.units;
    for (std::size_t k = 0; k < all.size();) {
      std::size_t end = k + 1;
      while (end < all.size() && alike(all[k], all[end]) && same_lead(k, end)) ++end;
      std::string name = shown(all[k]);
      if (end > k + 1) name += fmt::format(" .. {} ({})", shown(all[end - 1]), end - k);
      const UnitSchedule& decided = all[k].decided;
      line(fmt::format("  {:<{}} {:>9}  {:<8} {:<12} {:<18} {:<18} {}", name, width, bytes_text(all[k].bytes),
                       decided.keep, decided.activations, lead_text(k, true), lead_text(k, false), all[k].why));
      k = end;
    }
  }

  static std::string shown(const ScheduledUnit& unit) {
    if (unit.decided.module.empty()) return "(root)";
    return unit.modules.size() > 1 ? fmt::format("{} +{}", unit.modules.front(), unit.modules.size() - 1)
                                   : unit.decided.module;
  }

  /// How many units before the one that needs it its gather starts; -1: it is not gathered.
  int lead(std::size_t unit, bool forward) const {
    const auto& start =
        forward ? found_.units[unit].decided.gather_forward : found_.units[unit].decided.gather_backward;
    if (!start) return -1;
    const auto from = std::find_if(found_.units.begin(), found_.units.end(),
                                   [&](const ScheduledUnit& one) { return one.decided.module == *start; });
    return static_cast<int>(std::abs((from - found_.units.begin()) - static_cast<std::ptrdiff_t>(unit)));
  }
  bool same_lead(std::size_t a, std::size_t b) const {
    return lead(a, true) == lead(b, true) && lead(a, false) == lead(b, false);
  }
  std::string lead_text(std::size_t unit, bool forward) const {
    const int units = lead(unit, forward);
    if (units < 0) return "-";
    return units == 0 ? "its own" : counted(units, "unit") + " ahead";
  }

  const FoundSchedule& found_;
  ReportStyle style_;
  std::string out_;
};

}  // namespace

std::string schedule_report(const FoundSchedule& found, const std::string& model, const std::string& profile,
                            const ReportStyle& style) {
  return ScheduleText(found, style).text(model, profile);
}

}  // namespace foreshard::cli
