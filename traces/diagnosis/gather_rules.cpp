// All-gathers and reductions that stand alone: which, why, and what would hide or spare them.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "core/plan.h"
#include "traces/diagnosis/rules.h"

namespace foreshard {
namespace {

constexpr double kBandwidth = 0.10;      // in a run that is limited by its network some always stands out
constexpr double kHugeRoot = 2.0;        // times the largest other unit
constexpr Bytes kSmallGather = 4 << 20;  // below, latency is most of a collective's time
constexpr Bytes kFewBytes = 64 << 10;    // a norm, a loss: waited for wherever it runs
constexpr std::size_t kManyUnits = 24;

std::string unit_label(const RecordingFacts& facts, const UseStretch& s) {
  const std::string unit = facts.unit_of(facts.at(s.span));
  const std::string_view kind = span_kind_name(facts.at(s.span).kind);
  return unit.empty() ? std::string(kind) : fmt::format("{} ({})", unit, kind);
}

std::string cost_words(const Collected& found) {
  return fmt::format("{} of a step ({})", time_words(static_cast<double>(found.cost())), share_words(found.share()));
}

/// What the rules share: the gathers of the steps, by unit.
struct Gathers {
  const RecordingFacts& facts;
  std::map<std::int32_t, std::vector<UnitGather>> by_unit;

  explicit Gathers(const RecordingFacts& f) : facts(f), by_unit(f.gathers()) {}
  Collected alone(const std::set<std::int32_t>& spans) const {
    return Collected(
        facts,
        [&](const UseStretch& s) {
          return is_exposed_comm(s.use) && s.use != TimeUse::Straggler && spans.contains(s.span.value);
        },
        [this](const UseStretch& s) { return unit_label(facts, s); });
  }
  Bytes largest(std::int32_t unit) const {
    Bytes most = 0;
    for (const UnitGather& gather : by_unit.at(unit)) most = std::max(most, facts.at(gather.span).bytes);
    return most;
  }
  bool is_root(std::int32_t unit) const { return facts.is_root(facts.at(by_unit.at(unit).front().span)); }
};

void find_missing_prefetch(const RecordingFacts& facts, Diagnosis& diagnosis) {
  const Collected found(
      facts, [](const UseStretch& s) { return s.use == TimeUse::NotPrefetched; },
      [&](const UseStretch& s) { return unit_label(facts, s); });
  if (found.share() < facts.options.least_share) return;
  DiagnosedCause finding = found.avoidable("missing_prefetch");
  finding.cause = fmt::format(
      "all-gathers are issued by their own unit, behind the reduction of the unit before, and stand alone for {}",
      cost_words(found));
  const bool one = facts.runtime != SeenRuntime::Fsdp2;
  finding.remedy = one ? "FSDP(backward_prefetch=BackwardPrefetch.BACKWARD_PRE)"
                       : "module.set_modules_to_backward_prefetch([...]): FSDP2's own order was changed";
  finding.set = {one ? "fsdp.backward_prefetch=BACKWARD_PRE" : "fsdp.prefetch.backward_depth=1"};
  diagnosis.findings.push_back(std::move(finding));
}

/// Trap 13 of the specification; 12 where the root is all there is.
void find_root(const Gathers& gathers, Diagnosis& diagnosis) {
  const RecordingFacts& facts = gathers.facts;
  std::set<std::int32_t> root_spans;
  Bytes root = 0, other = 0, all = 0;
  std::size_t others = 0;
  for (const auto& [unit, list] : gathers.by_unit) {
    if (unit < 0) continue;
    const Bytes most = gathers.largest(unit);
    all += most;
    if (gathers.is_root(unit)) {
      root = std::max(root, most);
      for (const UnitGather& gather : list) root_spans.insert(gather.span.value);
    } else {
      other = std::max(other, most);
      ++others;
    }
  }
  if (root == 0) return;
  for (const SpanId id : facts.own().accountant->work()) {
    const Span& span = facts.at(id);
    if (span.kind == SpanKind::ReduceScatter && facts.is_root(span)) root_spans.insert(id.value);
  }
  const bool nothing_wrapped = others == 0;
  if (!nothing_wrapped && static_cast<double>(root) < kHugeRoot * static_cast<double>(other)) return;
  const Collected found = gathers.alone(root_spans);
  const Bytes spare = nothing_wrapped ? root : root - other;
  const double of_memory = facts.share_of_memory(static_cast<double>(spare));
  if (found.share() < facts.options.least_share && of_memory < 0.05) return;
  DiagnosedCause finding = found.avoidable(nothing_wrapped ? "nothing_wrapped" : "huge_root_unit");
  finding.cost_bytes = spare;
  finding.saving_bytes = spare;
  finding.saving.reset();
  if (found.cost() > 0) finding.saving = found.cost();
  finding.share = std::max(found.share(), of_memory);
  finding.cause =
      nothing_wrapped
          ? fmt::format(
                "the whole model is one unit of {}: it is gathered before anything is computed, and memory does "
                "not fall with the number of ranks (trap 12); alone for {}",
                byte_words(static_cast<double>(root)), cost_words(found))
          : fmt::format(
                "the root unit gathers {}, {:.1f} times the largest other unit ({}), keeps it through forward "
                "and backward (trap 13), and its communication stands alone for {}",
                byte_words(static_cast<double>(root)), static_cast<double>(root) / static_cast<double>(other),
                byte_words(static_cast<double>(other)), cost_words(found));
  finding.remedy = nothing_wrapped
                       ? "fully_shard(block) for every block before fully_shard(model), or an auto_wrap_policy"
                       : "units of their own for embedding and head: fully_shard(model.embed_tokens), "
                         "fully_shard(model.lm_head)";
  finding.set = {nothing_wrapped ? "fsdp.wrap.policy=module_class" : "fsdp.wrap.policy=auto"};
  finding.where = {"root"};
  if (finding.evidence.empty()) {
    const SpanId first(*root_spans.begin());
    finding.evidence.push_back({facts.own().rank, {facts.at(first).start, facts.end_of(first)}, "root"});
  }
  diagnosis.findings.push_back(std::move(finding));
}

/// Gathers of a unit that follow each other in one backward; those of a forward count only where the other units do
/// not do the same (then it is a second forward).
std::set<std::int32_t> repeated_gathers(const Gathers& gathers) {
  std::set<std::int32_t> forward, backward;
  std::size_t units = 0, with_forward = 0;
  for (const auto& [unit, list] : gathers.by_unit) {
    if (unit < 0) continue;
    ++units;
    bool again = false;
    for (std::size_t i = 1; i < list.size(); ++i) {
      if (list[i].step != list[i - 1].step || list[i].backward != list[i - 1].backward) continue;
      (list[i].backward ? backward : forward).insert(list[i].span.value);
      again = again || !list[i].backward;
    }
    with_forward += again ? 1 : 0;
  }
  if (2 * with_forward < units) backward.insert(forward.begin(), forward.end());
  return backward;
}

void find_duplicates(const Gathers& gathers, Diagnosis& diagnosis) {
  const RecordingFacts& facts = gathers.facts;
  const std::set<std::int32_t> repeated = repeated_gathers(gathers);
  if (repeated.empty()) return;
  const Collected found = gathers.alone(repeated);
  SimDuration all = 0, again = 0;
  for (const auto& [unit, list] : gathers.by_unit) {
    for (const UnitGather& gather : list) {
      all += facts.at(gather.span).duration;
      again += repeated.contains(gather.span.value) ? facts.at(gather.span).duration : 0;
    }
  }
  // Hidden ones cost the network, which others may wait for.
  if (found.share() < facts.options.least_share && again * 5 < all) return;
  DiagnosedCause finding = found.avoidable("duplicate_gathers");
  finding.share = std::max(found.share(), facts.options.least_share);
  if (found.share() < facts.options.least_share)  // what the network does for nothing
    finding.cost = static_cast<SimDuration>(static_cast<double>(again) / facts.steps());
  finding.cause = fmt::format(
      "units are gathered again in the same backward: {} of {} spent gathering ({}), alone for {}",
      time_words(static_cast<double>(again) / facts.steps()), time_words(static_cast<double>(all) / facts.steps()),
      share_words(static_cast<double>(again) / static_cast<double>(std::max<SimDuration>(1, all))), cost_words(found));
  finding.remedy =
      "checkpoint inside the unit: fully_shard(checkpoint_wrapper(block)), not "
      "checkpoint_wrapper(fully_shard(block)), which gathers for the recomputation and again for backward";
  finding.set = {"checkpointing.placement=inside"};
  if (finding.evidence.empty()) {
    const SpanId first(*repeated.begin());
    finding.where = {facts.unit_of(facts.at(first))};
    finding.evidence.push_back(
        {facts.own().rank, {facts.at(first).start, facts.end_of(first)}, facts.unit_of(facts.at(first))});
  }
  diagnosis.findings.push_back(std::move(finding));
}

void find_small_units(const Gathers& gathers, Diagnosis& diagnosis) {
  const RecordingFacts& facts = gathers.facts;
  std::vector<Bytes> sizes;
  for (const auto& [unit, list] : gathers.by_unit) {
    if (unit >= 0 && gathers.largest(unit) > 0) sizes.push_back(gathers.largest(unit));
  }
  if (sizes.size() < kManyUnits) return;
  std::nth_element(sizes.begin(), sizes.begin() + static_cast<std::ptrdiff_t>(sizes.size() / 2), sizes.end());
  const Bytes middle = sizes[sizes.size() / 2];
  const Collected found(
      facts, [](const UseStretch& s) { return is_exposed_comm(s.use) && s.use != TimeUse::Straggler; },
      [&](const UseStretch& s) { return unit_label(facts, s); });
  if (middle >= kSmallGather || found.share() < kBandwidth) return;
  DiagnosedCause finding = found.avoidable("small_units");
  finding.cause = fmt::format("{} units, half of them below {}: collectives are mostly latency, and stand alone for {}",
                              sizes.size(), byte_words(static_cast<double>(middle)), cost_words(found));
  finding.remedy = "larger units: fully_shard on blocks (or several of them in a list), not on every layer";
  finding.set = {"fsdp.wrap.policy=module_class"};
  diagnosis.findings.push_back(std::move(finding));
}

void find_slow_network(const RecordingFacts& facts, Diagnosis& diagnosis) {
  const Collected found(
      facts, [](const UseStretch& s) { return s.use == TimeUse::Bandwidth; },
      [&](const UseStretch& s) { return unit_label(facts, s); });
  if (found.share() < kBandwidth) return;
  for (const DiagnosedCause& other : diagnosis.findings) {
    if (other.name == "small_units" || other.name == "duplicate_gathers") return;  // the reason for it
  }
  DiagnosedCause finding = found.avoidable("communication_longer_than_compute");
  finding.cause = fmt::format(
      "collectives are issued in time and take longer than the computing beside them: alone for {}", cost_words(found));
  finding.remedy =
      "more computing for each collective: a larger micro-batch or sequence, no resharding after forward; "
      "hybrid sharding where nodes are joined by a slower network; gathers in bfloat16 or float8";
  diagnosis.findings.push_back(std::move(finding));
}

void find_on_compute_stream(const RecordingFacts& facts, Diagnosis& diagnosis) {
  const Collected found(
      facts,
      [&](const UseStretch& s) {
        const Bytes bytes = facts.at(s.span).bytes;  // 0: not recorded
        return s.use == TimeUse::ComputeStream && (bytes <= 0 || bytes >= kFewBytes);
      },
      [&](const UseStretch& s) { return unit_label(facts, s); });
  if (found.share() < facts.options.least_share) return;
  DiagnosedCause finding = found.avoidable("collective_on_compute_stream");
  finding.cause =
      fmt::format("collectives run on the stream that computes, so nothing can overlap: {}", cost_words(found));
  finding.remedy = "async_op=True and wait() where the result is needed; a stream of its own for communication";
  diagnosis.findings.push_back(std::move(finding));
}

}  // namespace

void find_gather_causes(const RecordingFacts& facts, Diagnosis& diagnosis) {
  if (!facts.has_steps()) return;
  find_missing_prefetch(facts, diagnosis);
  find_on_compute_stream(facts, diagnosis);
  const Gathers gathers(facts);
  bool units = false;
  for (const auto& [unit, list] : gathers.by_unit) units = units || unit >= 0;
  if (units) {
    find_root(gathers, diagnosis);
    find_duplicates(gathers, diagnosis);
    find_small_units(gathers, diagnosis);
  } else {
    diagnosis.not_looked_at.emplace_back("units: no FSDP ranges around the gathers (record with CPU activities)");
  }
  find_slow_network(facts, diagnosis);
}

}  // namespace foreshard
