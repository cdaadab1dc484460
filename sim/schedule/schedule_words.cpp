#include "sim/schedule/schedule_words.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "sim/schedule/unit_collectives.h"

namespace foreshard {
namespace {

std::string time_in_words(double ns) {
  return ns < 1e6 ? fmt::format("{:.0f} us", ns / 1e3) : fmt::format("{:.2f} ms", ns / 1e6);
}

std::string why_kept(const UnitFrame& frame, std::size_t unit, bool kept, bool always, Bytes left, double gather_ns) {
  const Bytes bytes = frame.bytes[unit];
  const std::string size = bytes_in_words(bytes);
  const bool over = kept && frame.backward_at[unit] < 0 && always;
  if (frame.backward_at[unit] < 0 && !over)
    return kept ? fmt::format("holds {}, which backward does not need", size) : "backward does not need it";
  const bool copies = gather_ns <= 0;  // one rank has it all
  if (kept)
    return copies ? fmt::format("holds {} and saves a copy", size)
                  : fmt::format("holds {} and saves a gather of {}", size, time_in_words(gather_ns));
  const std::string again =
      copies ? std::string("copied again") : fmt::format("gathered again in {}", time_in_words(gather_ns));
  if (frame.job.schedule.objective == "memory") return fmt::format("gives {} back, {}", size, again);
  return left < bytes ? fmt::format("no room for {}, {}", size, again)
                      : fmt::format("{}: no shorter step was found with it kept", again);
}

}  // namespace

std::string bytes_in_words(Bytes bytes) {
  const auto value = static_cast<double>(bytes);
  if (bytes < kMiB)
    return bytes < kKiB ? fmt::format("{} B", bytes) : fmt::format("{:.0f} KiB", value / static_cast<double>(kKiB));
  return bytes < kGiB ? fmt::format("{:.0f} MiB", value / static_cast<double>(kMiB))
                      : fmt::format("{:.2f} GiB", value / static_cast<double>(kGiB));
}

std::string least_in_words(Bytes bytes) {
  const Bytes part = bytes < kGiB ? kMiB : kGiB / 100;  // of what is written out
  return bytes_in_words(bytes % part == 0 || bytes < kMiB ? bytes : (bytes / part + 1) * part);
}

std::vector<ScheduledUnit> scheduled_units(const UnitFrame& frame, const Candidate& candidate, const Model& model,
                                           const HardwareProfile& profile, Bytes left) {
  const std::vector<std::string> recomputed = recomputed_modules(frame, candidate);
  std::vector<ScheduledUnit> rows;
  for (std::size_t place = 0; place < frame.forward.size(); ++place) {
    const auto u = static_cast<std::size_t>(frame.forward[place]);
    const UnitChoice& choice = candidate.units[u];
    const auto number = static_cast<int>(u);
    ScheduledUnit& row = rows.emplace_back();
    row.decided.module = frame.names[u];
    row.bytes = frame.bytes[u];
    row.bucket = static_cast<std::int64_t>(place);
    for (const ModuleId module : frame.plan->units[u].modules) row.modules.push_back(model.modules[module.index()].fqn);
    const bool kept = keeps_params(frame, candidate, number);
    row.decided.keep = !kept ? "reshard" : choice.params == KeepParams::Always ? "always" : "keep";
    const bool again = meets_unit(frame, number, recomputed);
    const bool has_block = std::any_of(frame.blocks.begin(), frame.blocks.end(), [&](const ScheduledBlock& block) {
      return meets_unit(frame, number, block.modules);
    });
    const bool travels = frame.job.checkpointing.offload_activations;
    row.decided.activations = again ? "recompute" : travels ? "offload" : "keep";
    const auto name = [&](const std::vector<int>& order, int at) {
      return frame.names[static_cast<std::size_t>(order[static_cast<std::size_t>(at)])];
    };
    row.decided.gather_forward = name(frame.forward, choice.forward);
    row.ahead_forward = frame.forward_at[u] - choice.forward;
    if (!kept && frame.backward_at[u] >= 0) {
      row.decided.gather_backward = name(frame.backward, choice.backward);
      row.ahead_backward = frame.backward_at[u] - choice.backward;
    }
    if (frame.plan->units[u].requires_grad) row.decided.reduce = frame.names[u];
    row.why = why_kept(frame, u, kept, choice.params == KeepParams::Always, left,
                       unit_collective_ns(frame, profile, CollectiveKind::AllGather, number));
    if (has_block)
      row.why += again     ? "; recomputes to make room"
                 : travels ? "; activations go to the host: no second forward"
                           : "; keeps activations: no second forward";
  }
  return rows;
}

std::string schedule_sentence(const FoundSchedule& found) {
  if (!found.fits) {
    return fmt::format("no schedule fits {}: the least that does is {}", bytes_in_words(found.budget),
                       least_in_words(found.least_budget));
  }
  std::size_t kept = 0, recomputed = 0;
  for (const ScheduledUnit& unit : found.units) {
    kept += unit.decided.keep != "reshard" ? 1 : 0;
    recomputed += unit.decided.activations == "recompute" ? 1 : 0;
  }
  std::string text =
      fmt::format("schedule: {} of {} units stay gathered, {} recompute, {} of {} used", kept, found.units.size(),
                  recomputed, bytes_in_words(found.peak_reserved), bytes_in_words(found.budget));
  if (found.fsdp2.step_ns > 0)
    text += fmt::format("; {:.1f} % shorter than fsdp2's step", 100 * (1 - found.step_ns / found.fsdp2.step_ns));
  return text + fmt::format("; {} simulations{}", found.simulated, found.out_of_time ? ", ended by its time" : "");
}

std::string room_advice_of(const FoundSchedule& found) {
  if (found.driver_allocs <= 0) {
    if (found.first_retries <= 0) return {};
    return fmt::format(
        "in the first steps, until its blocks fit, the allocator gives its cache back to the driver and asks again: {} "
        "{} in all, and no longer then",
        found.first_retries, found.first_retries == 1 ? "time" : "times");
  }
  const std::string flushes =
      found.alloc_retries > 0 ? fmt::format(", {} times behind giving all its cache back", found.alloc_retries) : "";
  std::string text = fmt::format("the card is full: {} times a step the allocator asks the driver for memory{}",
                                 found.driver_allocs, flushes);
  if (found.roomy.step_ns > 0)
    text += fmt::format("; with a budget of {} it would not, and a step would take {}",
                        bytes_in_words(found.roomy.reserved), time_in_words(found.roomy.step_ns));
  if (found.expandable.step_ns > 0)
    text += fmt::format("; with allocator.expandable_segments = true this schedule would take {} in the same budget",
                        time_in_words(found.expandable.step_ns));
  return text;
}

std::string shard_advice_of(const FoundSchedule& found) {
  if (found.unpadded.step_ns <= 0) return {};
  constexpr std::size_t kMostNames = 4;
  const auto& all = found.sharded_otherwise;
  const auto end = all.begin() + static_cast<std::ptrdiff_t>(std::min(all.size(), kMostNames));
  return fmt::format(
      "{:.0f} % of what is gathered is padding: with shard_dim in fsdp.overrides ({}{}) this schedule would take {}, "
      "if "
      "checkpoints of other shards will do",
      100 * found.padding, fmt::join(all.begin(), end, ", "), all.size() > kMostNames ? ", ..." : "",
      time_in_words(found.unpadded.step_ns));
}

std::string advice_of(const FoundSchedule& found) {
  const double fsdp1 = found.fsdp1.step_ns;
  if (!found.fits && fsdp1 > 0)
    return fmt::format("fsdp1 fits: {} in {}; fsdp.runtime = \"fsdp1\" if its checkpoints and sums will do",
                       bytes_in_words(found.fsdp1.reserved), bytes_in_words(found.budget));
  if (!found.fits || fsdp1 <= 0 || fsdp1 >= found.step_ns) return {};
  constexpr double kMuchPadding = 0.05;
  // Of the difference, what its compute stream does not do; the rest is issued faster or waits less.
  const double computes_less = found.compute_ns - found.fsdp1.compute_ns;
  const bool copies = 2 * computes_less > found.step_ns - fsdp1;
  const std::string why =
      found.padding > kMuchPadding
          ? fmt::format(
                "are not padded, and {:.0f} % of what fsdp2 gathers is padding (shard_dim in fsdp.overrides "
                "shards along another dimension)",
                100 * found.padding)
      : copies
          ? std::string("take fewer copies and kernels, which no schedule of fsdp2's layout has")
          : std::string("take fewer calls of the host and fewer messages, which no schedule of fsdp2's layout has");
  return fmt::format(
      "fsdp1 is {:.1f} % shorter: its flat parameters {}; fsdp.runtime = \"fsdp1\" if its checkpoints and sums will do",
      100 * (1 - fsdp1 / found.step_ns), why);
}

}  // namespace foreshard
