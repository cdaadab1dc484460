#include "cli/reports/ranks_output.h"

#include <fmt/format.h>

#include "cli/console/amount_text.h"

namespace foreshard::cli {

Result<RanksPrediction> predict_ranks(const SimulateFlags& flags, const Job& job) {
  RanksOptions options;
  options.jitter = flags.jitter;
  options.seed = flags.seed;
  for (const std::string& text : flags.slow_ranks) {
    auto trait = parse_slow_ranks(text);
    if (!trait) {
      trait.error().place = "--slow-rank";
      return fail(trait.error());
    }
    options.traits.push_back(std::move(*trait));
  }
  for (const std::string& text : flags.rank_profiles) {
    auto trait = parse_rank_profiles(text);
    if (!trait) {
      trait.error().place = "--rank-profile";
      return fail(trait.error());
    }
    options.traits.push_back(std::move(*trait));
  }
  return simulate_ranks(job, options);
}

std::string ranks_report(const Simulation& s, const ReportStyle& style) {
  if (!s.ranks) return {};
  const RanksPrediction& ranks = *s.ranks;
  const std::string heading = "Ranks, waiting for each other";
  std::string out = "\n" + (style.color ? "\x1b[1m" + heading + "\x1b[0m" : heading) + "\n";
  const double alike = s.prediction.step_time_ns.value;
  out += fmt::format("  step {} instead of {} with all ranks alike", duration_text(ranks.step_time_ns.value),
                     duration_text(alike));
  if (alike > 0) out += fmt::format(" ({} more)", percent_text(ranks.step_time_ns.value / alike - 1));
  out += "\n";
  for (std::size_t c = 0; c < ranks.classes.size(); ++c) {
    const RankClass& one = ranks.classes[c];
    const Prediction& p = ranks.predictions[c];
    const IterationResult* steady = steady_iteration(p);
    const std::string who = one.members == 1
                                ? fmt::format("rank {}", one.representative)
                                : fmt::format("{} ranks as {}", grouped_text(one.members), one.representative);
    if (steady == nullptr || !p.fits) {
      out += fmt::format("  {:<24} does not fit\n", who);
      continue;
    }
    out += fmt::format("  {:<24} compute {:>8}, idle {:>8}, {:>9} reserved{}{}\n", who,
                       duration_text(static_cast<double>(steady->compute)),
                       duration_text(static_cast<double>(steady->idle)), bytes_text(p.memory.reserved),
                       one.profile.empty() ? "" : ", " + one.profile,
                       c == ranks.slowest && ranks.classes.size() > 1 ? "  <- the others wait for it" : "");
  }
  return out;
}

void write_ranks(JsonText& out, const RanksPrediction& ranks) {
  out.key("ranks").begin_object().key("step_time_ns").begin_object();
  out.field("value", ranks.step_time_ns.value).field("low", ranks.step_time_ns.low);
  out.field("high", ranks.step_time_ns.high).end_object().field("fits", ranks.fits).field("slowest", ranks.slowest);
  out.key("classes").begin_array();
  for (std::size_t c = 0; c < ranks.classes.size(); ++c) {
    const RankClass& one = ranks.classes[c];
    const Prediction& p = ranks.predictions[c];
    const IterationResult* steady = steady_iteration(p);
    out.begin_object().field("representative", one.representative).field("members", one.members);
    out.field("slow", one.slow).field("profile", one.profile).field("fits", p.fits);
    out.field("step_time_ns", steady != nullptr ? steady->step_time : 0);
    out.field("compute_ns", steady != nullptr ? steady->compute : 0);
    out.field("idle_ns", steady != nullptr ? steady->idle : 0);
    out.field("peak_reserved_bytes", p.memory.reserved).end_object();
  }
  out.end_array().end_object();
}

}  // namespace foreshard::cli
