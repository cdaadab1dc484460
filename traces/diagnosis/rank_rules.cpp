// Ranks that others wait for.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "traces/diagnosis/rules.h"

namespace foreshard {
namespace {

struct Waiting {
  SimDuration cost = 0;  // of a mean step, the mean over the ranks that waited
  double share = 0;
};

/// What the ranks other than `late` lost to arrivals; all of them if it is -1.
Waiting waiting_besides(const RecordingFacts& facts, std::int32_t late) {
  double lost = 0, step = 0;
  std::size_t count = 0;
  for (const RankSteps& rank : facts.ranks) {
    if (rank.rank == late) continue;
    for (const StepAccount& account : rank.accounts) {
      lost += static_cast<double>(account.of(TimeUse::Straggler)) / static_cast<double>(rank.accounts.size());
      step += static_cast<double>(account.length()) / static_cast<double>(rank.accounts.size());
    }
    ++count;
  }
  if (count == 0 || step <= 0) return {};
  return {static_cast<SimDuration>(lost / static_cast<double>(count)), lost / step};
}

SimDuration compute_of(const RankSteps& rank) {
  SimDuration sum = 0;
  for (const StepAccount& account : rank.accounts) sum += account.of(TimeUse::Compute);
  return sum / static_cast<SimDuration>(std::max<std::size_t>(1, rank.accounts.size()));
}

/// How much longer than the median rank this one computes.
double excess_compute(const RecordingFacts& facts, std::int32_t late) {
  std::vector<SimDuration> others;
  SimDuration own = 0;
  for (const RankSteps& rank : facts.ranks) {
    if (rank.rank == late)
      own = compute_of(rank);
    else
      others.push_back(compute_of(rank));
  }
  if (others.empty()) return 0;
  std::sort(others.begin(), others.end());
  const SimDuration middle = others[(others.size() - 1) / 2];
  return middle > 0 ? static_cast<double>(own) / static_cast<double>(middle) - 1 : 0;
}

/// Whether `late` is waited for more than the others are, beyond what steps differ from each other by chance: the mean
/// over the steps is more than two of its own standard errors.
bool beyond_chance(const RecordingFacts& facts, std::int32_t late) {
  std::map<std::int32_t, double> net;  // by step
  for (const CollectiveMeeting& meeting : facts.meetings) {
    const bool own = meeting.members.back().rank == late;
    net[meeting.iteration] += (own ? 1 : -1) * static_cast<double>(meeting.waited);
  }
  const auto steps = static_cast<double>(net.size());
  if (steps < 3) return true;  // nothing says how much steps differ
  double sum = 0, squares = 0;
  for (const auto& [step, waited] : net) sum += waited;
  const double mean = sum / steps;
  for (const auto& [step, waited] : net) squares += (waited - mean) * (waited - mean);
  return mean > 2 * std::sqrt(squares / (steps - 1) / steps);
}

std::string why_late(const RecordingFacts& facts, std::int32_t late) {
  const double excess = excess_compute(facts, late);
  if (excess >= 0.03) return fmt::format("it computes {} longer than the others", share_words(excess));
  for (const RankSteps& rank : facts.ranks) {
    if (rank.rank != late) continue;
    SimDuration host = 0, length = 0;
    for (const StepAccount& account : rank.accounts) {
      for (const TimeUse use :
           {TimeUse::Data, TimeUse::Synchronise, TimeUse::Allocator, TimeUse::Host, TimeUse::LateIssue})
        host += account.of(use);
      length += account.length();
    }
    if (host * 20 >= length) return "its device waits for its own host";
  }
  return "its device computes no longer than the others'";
}

/// The simulator lets a collective begin when all are there: then the longest computing shows who is waited for.
void find_slow_rank(const RecordingFacts& facts, Diagnosis& diagnosis) {
  const RankSteps* slowest = &facts.ranks.front();
  for (const RankSteps& rank : facts.ranks) {
    if (compute_of(rank) > compute_of(*slowest)) slowest = &rank;
  }
  const double excess = excess_compute(facts, slowest->rank);
  const auto own = static_cast<double>(compute_of(*slowest));
  const SimDuration cost = excess > 0 ? static_cast<SimDuration>(own - own / (1 + excess)) : 0;
  const double share = static_cast<double>(cost) / static_cast<double>(std::max<SimDuration>(1, slowest->mean));
  if (excess < 0.03 || share < facts.options.least_share) return;
  DiagnosedCause finding;
  finding.name = "straggler";
  finding.cost = cost;
  finding.saving = cost;
  finding.share = share;
  finding.cause =
      fmt::format("rank {} computes {} longer than the others, who wait for it", slowest->rank, share_words(excess));
  finding.where = {fmt::format("rank {}", slowest->rank)};
  finding.remedy =
      "a slower card or another load: clocks, temperature and batches of that rank; equal work for all ranks";
  finding.evidence.push_back({slowest->rank, slowest->accounts.front().time, "a step of it"});
  diagnosis.findings.push_back(std::move(finding));
}

}  // namespace

void find_rank_causes(const RecordingFacts& facts, Diagnosis& diagnosis) {
  if (!facts.has_steps()) return;
  if (facts.ranks.size() < 2) {
    diagnosis.not_looked_at.emplace_back("stragglers: the recording holds one rank (give those of the others as well)");
    return;
  }
  const std::vector<StragglerRow> table = straggler_table(facts.meetings);
  SimDuration all = 0;
  std::map<std::int32_t, SimDuration> by_rank;
  for (const StragglerRow& row : table) by_rank[row.rank] += row.waited, all += row.waited;
  const auto worst = std::max_element(by_rank.begin(), by_rank.end(),
                                      [](const auto& a, const auto& b) { return a.second < b.second; });
  const bool one = worst != by_rank.end() && worst->second * 10 >= all * 6 && beyond_chance(facts, worst->first);
  const Waiting waiting = waiting_besides(facts, one ? worst->first : -1);
  // Now this one, now that one: a little of it is in every run.
  if (waiting.share < (one ? 1 : 2) * facts.options.least_share) return find_slow_rank(facts, diagnosis);
  DiagnosedCause finding;
  finding.name = one ? "straggler" : "ranks_out_of_step";
  finding.cost = waiting.cost;
  finding.saving = waiting.cost;
  finding.share = waiting.share;
  if (one) {
    finding.cause = fmt::format("rank {} comes last to collectives, and the others wait for it {} of a step ({}); {}",
                                worst->first, time_words(static_cast<double>(waiting.cost)), share_words(waiting.share),
                                why_late(facts, worst->first));
    finding.where = {fmt::format("rank {}", worst->first)};
    finding.remedy = "a slower card or another load: clocks, temperature, data loader and batches of that rank";
  } else {
    finding.cause = fmt::format("ranks wait for each other {} of a step ({}), and no single rank is the late one",
                                time_words(static_cast<double>(waiting.cost)), share_words(waiting.share));
    for (const StragglerRow& row : table) {
      const std::string place = fmt::format("rank {}", row.rank);
      const bool told = std::find(finding.where.begin(), finding.where.end(), place) != finding.where.end();
      if (!told && finding.where.size() < 4) finding.where.push_back(place);
    }
    finding.remedy =
        "equal work for all ranks: sequences packed to one length, experts balanced, the garbage collector "
        "called at the same step everywhere (gc.disable(), gc.collect() every N steps)";
  }
  std::vector<const CollectiveMeeting*> latest;
  for (const CollectiveMeeting& meeting : facts.meetings) latest.push_back(&meeting);
  std::stable_sort(latest.begin(), latest.end(), [](const auto* a, const auto* b) { return a->waited > b->waited; });
  for (std::size_t i = 0; i < std::min<std::size_t>(3, latest.size()); ++i) {
    finding.evidence.push_back(
        {latest[i]->members.front().rank,
         {latest[i]->first, latest[i]->last},
         fmt::format("{} waits for rank {}", span_kind_name(latest[i]->kind), latest[i]->members.back().rank)});
  }
  diagnosis.findings.push_back(std::move(finding));
}

}  // namespace foreshard
