#include "cli/reports/schedule/schedule_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "cli/console/amount_text.h"
#include "sim/schedule/schedule_words.h"

namespace foreshard::cli {
namespace {

using Lead = std::optional<int> ScheduledUnit::*;  // how many units before the one that needs it a gather starts

/// Rows that say the same, by unit, but for when gathers start.
bool alike(const ScheduledUnit& a, const ScheduledUnit& b) {
  return a.decided.keep == b.decided.keep && a.decided.activations == b.decided.activations && a.bytes == b.bytes &&
         a.why == b.why && a.ahead_backward.has_value() == b.ahead_backward.has_value();
}

class ScheduleText {
 public:
  ScheduleText(const FoundSchedule& found, const ReportStyle& style) : found_(found), style_(style) {}

  std::string text(const std::string& model, const std::string& profile) {
    line(bold(fmt::format("{} on {}: a schedule for {}", model, profile, bytes_text(found_.budget))));
    proposed();
    if (!found_.fits) {
      line(fmt::format("  no schedule fits; the least budget that does is {}", least_in_words(found_.least_budget)));
      return std::move(out_);
    }
    line(fmt::format("  step {}, {} reserved at the peak", duration_text(found_.step_ns),
                     bytes_text(found_.peak_reserved)));
    if (found_.limit < found_.budget)
      line(fmt::format("  the allocator held to {} (schedule.budget): with all of it, it asks the driver more often",
                       bytes_text(found_.limit)));
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
    if (found_.stays_on_device)
      line("  activations stay on the device: leave checkpointing.offload_activations, and the script's hooks, away");
    if (!found_.advice.empty()) line("  " + found_.advice);
    if (const std::string shards = shard_advice_of(found_); !shards.empty()) line("  " + shards);
    if (const std::string room = room_advice_of(found_); !room.empty()) line("  " + room);
    line(fmt::format("  {} simulations in {:.1f} s{}", found_.simulated, found_.seconds,
                     found_.out_of_time ? ": --seconds ended the search" : ""));
    units();
    return std::move(out_);
  }

 private:
  static const char* decides(ScheduleBound::Side side) {
    switch (side) {
      case ScheduleBound::Side::Compute: return "compute decides";
      case ScheduleBound::Side::Links: return "the links decide";
      case ScheduleBound::Side::Copies: return "the copies of activations to the host and back decide";
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
    const auto& all = found_.units;
    struct Row {
      std::string name;
      std::size_t first, end;
    };
    std::vector<Row> rows;
    std::size_t width = 10;
    for (std::size_t k = 0; k < all.size();) {
      std::size_t end = k + 1;
      while (end < all.size() && alike(all[k], all[end])) ++end;
      rows.push_back({shown(k, end), k, end});
      width = std::max(width, rows.back().name.size());
      k = end;
    }
    line("");
    line(bold(fmt::format("  {:<{}} {:>9}  {:<8} {:<12} {:<13} {:<13} {}", "units", width, "gathered", "params",
                          "activations", "gather fwd", "gather bwd", "why")));
    for (const Row& row : rows) {
      const ScheduledUnit& unit = all[row.first];
      line(fmt::format("  {:<{}} {:>9}  {:<8} {:<12} {:<13} {:<13} {}", row.name, width, bytes_text(unit.bytes),
                       unit.decided.keep, unit.decided.activations,
                       lead_text(row.first, row.end, &ScheduledUnit::ahead_forward),
                       lead_text(row.first, row.end, &ScheduledUnit::ahead_backward), unit.why));
    }
  }

  static std::string shown(const ScheduledUnit& unit) {
    if (unit.decided.module.empty()) return "(root)";
    return unit.modules.size() > 1 ? fmt::format("{} +{}", unit.modules.front(), unit.modules.size() - 1)
                                   : unit.decided.module;
  }
  /// Units from the first up to the last but one; what their names have in common is said once.
  std::string shown(std::size_t first, std::size_t end) const {
    const std::string from = shown(found_.units[first]), to = shown(found_.units[end - 1]);
    if (end == first + 1) return from;
    const std::size_t differ =
        static_cast<std::size_t>(std::mismatch(from.begin(), from.end(), to.begin(), to.end()).first - from.begin());
    const std::size_t dot = differ == 0 ? std::string::npos : from.rfind('.', differ - 1);
    return fmt::format("{} .. {} ({})", from, dot == std::string::npos ? to : to.substr(dot + 1), end - first);
  }

  std::string lead_text(std::size_t first, std::size_t end, Lead lead) const {
    if (!(found_.units[first].*lead)) return "-";
    int least = *(found_.units[first].*lead), most = least;
    for (std::size_t k = first; k < end; ++k) {
      least = std::min(least, (found_.units[k].*lead).value_or(least));
      most = std::max(most, (found_.units[k].*lead).value_or(most));
    }
    if (most == 0) return "its own";
    return least == most ? counted(most, "unit") + " ahead" : fmt::format("{} to {} ahead", least, most);
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
