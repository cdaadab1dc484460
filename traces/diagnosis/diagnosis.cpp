#include "traces/diagnosis/diagnosis.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "traces/diagnosis/recording_facts.h"
#include "traces/diagnosis/rules.h"
#include "traces/timeline/iterations.h"

namespace foreshard {
namespace {

constexpr std::array<DiagnosisRule, 6> kRules{find_host_causes,      find_gather_causes, find_device_causes,
                                              find_precision_causes, find_rank_causes,   find_memory_causes};

/// What the second one follows from: mended with it, and told behind it.
struct Consequence {
  std::string_view cause, consequence;
};
constexpr std::array<Consequence, 6> kConsequences{{{"nothing_wrapped", "allocator_retries"},
                                                    {"nothing_wrapped", "fragmentation"},
                                                    {"logits_peak", "allocator_retries"},
                                                    {"logits_peak", "fragmentation"},
                                                    {"optimizer_temporaries", "allocator_retries"},
                                                    {"optimizer_temporaries", "fragmentation"}}};

/// Memory costs nothing until the card is full: where there is room, what costs time stands before what costs memory.
/// Memory that grows ends the run.
void order(std::vector<DiagnosedCause>& findings, bool room) {
  std::stable_sort(findings.begin(), findings.end(), [room](const DiagnosedCause& a, const DiagnosedCause& b) {
    const bool grows_a = a.name == "memory_grows", grows_b = b.name == "memory_grows";
    if (grows_a != grows_b) return grows_a;
    const bool time_a = a.cost > 0, time_b = b.cost > 0;
    return room && time_a != time_b ? time_a : a.share > b.share;
  });
  for (const Consequence& rule : kConsequences) {
    const auto named = [](std::string_view name) {
      return [name](const DiagnosedCause& finding) { return finding.name == name; };
    };
    const auto cause = std::find_if(findings.begin(), findings.end(), named(rule.cause));
    const auto early = std::find_if(findings.begin(), cause, named(rule.consequence));
    if (cause != findings.end() && early != cause) std::rotate(early, early + 1, cause + 1);
  }
}

Error nothing_to_see() {
  Error error;
  error.code = ErrorCode::MissingKey;
  error.place = "recording";
  error.message = "nothing in it can be diagnosed";
  error.expected = "work on a device (kernels, copies), or counters of memory";
  error.got = "neither";
  error.hint = "record with ProfilerActivity.CUDA, or torch.cuda.memory._dump_snapshot";
  return error;
}

Error no_such_rank(const std::vector<std::int32_t>& ranks, std::int32_t wanted) {
  Error error;
  error.code = ErrorCode::OutOfRange;
  error.place = "--rank";
  error.message = "the recording has no such rank";
  for (const std::int32_t rank : ranks) error.expected += (error.expected.empty() ? "" : ", ") + std::to_string(rank);
  error.got = std::to_string(wanted);
  return error;
}

}  // namespace

Result<Diagnosis> diagnose(const Timeline& timeline, const DiagnosisOptions& options) {
  const std::vector<std::int32_t> ranks = ranks_of(timeline);
  if (options.rank && !std::binary_search(ranks.begin(), ranks.end(), *options.rank))
    return fail(no_such_rank(ranks, *options.rank));
  const RecordingFacts facts(timeline, options);
  if (!facts.has_steps() && facts.allocated.empty()) return fail(nothing_to_see());
  Diagnosis diagnosis;
  diagnosis.rank = facts.has_steps() ? facts.own().rank : facts.memory_rank;
  if (facts.has_steps()) {
    diagnosis.steps = static_cast<std::int64_t>(facts.own().accounts.size());
    diagnosis.step = facts.own().mean;
    for (const StepAccount& account : facts.own().accounts) diagnosis.compute += account.of(TimeUse::Compute);
    diagnosis.compute /= std::max<std::int64_t>(1, diagnosis.steps);
  }
  for (const DiagnosisRule rule : kRules) rule(facts, diagnosis);
  order(diagnosis.findings, facts.room_on_card());
  return diagnosis;
}

}  // namespace foreshard
