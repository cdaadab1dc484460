// What stands at the peak of the memory that need not: logits, the optimizer's temporaries, memory that the allocator
// holds and cannot use, and caches that are emptied in the middle of a run.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <set>
#include <tuple>

#include "core/plan.h"
#include "traces/diagnosis/rules.h"
#include "traces/timeline/iterations.h"
#include "traces/timeline/trace_names.h"

namespace foreshard {
namespace {

constexpr double kOfPeak = 0.05, kLogits = 0.10, kUnused = 0.15, kFullCard = 0.7;
constexpr double kGrowth = 0.01, kEven = 0.5;     // of the peak in a step; the least growth beside the largest
constexpr Bytes kLeastUnused = Bytes{64} << 20U;  // below, it is the allocator's rounding
constexpr SimTime kAlways = std::numeric_limits<SimTime>::max();

bool names_loss(std::string_view name) {
  constexpr std::array<std::string_view, 7> kLoss{"log_softmax", "LogSoftMax", "cross_entropy", "nll_loss",
                                                  "lm_head",     "logits",     "CrossEntropy"};
  return std::any_of(kLoss.begin(), kLoss.end(), [&](std::string_view word) { return contains(name, word); });
}

bool names_optimizer(std::string_view name) {
  constexpr std::array<std::string_view, 6> kFiles{"adamw.py",     "adam.py",    "sgd.py",
                                                   "optimizer.py", "adagrad.py", "_foreach"};
  return std::any_of(kFiles.begin(), kFiles.end(), [&](std::string_view word) { return contains(name, word); });
}

/// The memory's own story: peak, and what stood there.
class MemoryStory {
 public:
  MemoryStory(const RecordingFacts& facts, Diagnosis& diagnosis) : f_(facts), d_(diagnosis) {
    std::tie(peak_, at_) = f_.allocated.peak(f_.allocated.times.front(), kAlways);
    for (const Span& span : f_.t.spans) last_ = std::max(last_, span.start + span.duration);
    d_.peak = peak_;
  }

  void tell() {
    if (peak_ <= 0) return;
    logits();
    optimizer();
    fragments();
    emptied_cache();
    growth();
  }

 private:
  double of_peak(double bytes) const { return bytes / static_cast<double>(peak_); }
  bool own(const Span& span) const { return span.lane.valid() && f_.t.lanes[span.lane.index()].rank == f_.memory_rank; }
  bool is_allocation(const Span& span) const {
    return own(span) && f_.t.lanes[span.lane.index()].stream == "allocations" && span.bytes > 0;
  }
  bool is_host(const Span& span) const { return own(span) && f_.t.lanes[span.lane.index()].stream.starts_with("host"); }

  DiagnosedCause about(const char* name, double bytes, Interval time, std::string what) const {
    DiagnosedCause finding;
    finding.name = name;
    finding.cost_bytes = static_cast<Bytes>(bytes);
    finding.saving_bytes = static_cast<Bytes>(bytes);
    finding.share = f_.share_of_memory(bytes);
    finding.evidence.push_back({f_.memory_rank, time, std::move(what)});
    return finding;
  }

  struct Held {
    double bytes = 0;
    std::vector<std::string> where;
    Interval time;
  };

  /// Of a snapshot: allocations alive at the peak whose frame the choice takes.
  template <class Choice>
  Held held_at_peak(const Choice& choice) const {
    Held held;
    std::map<std::string, Bytes> places;
    for (const Span& span : f_.t.spans) {
      if (!is_allocation(span) || span.start > at_ || span.start + span.duration <= at_) continue;
      if (!choice(span)) continue;
      const bool first = held.bytes == 0;
      held.bytes += static_cast<double>(span.bytes);
      held.time = {first ? span.start : std::min(held.time.begin, span.start), at_};
      places[std::string(f_.t.name_of(span.name))] += span.bytes;
    }
    std::vector<std::pair<std::string, Bytes>> sorted(places.begin(), places.end());
    std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
    for (std::size_t i = 0; i < std::min<std::size_t>(4, sorted.size()); ++i) held.where.push_back(sorted[i].first);
    return held;
  }

  /// Of counters: what stands at the peak above the moment before the loss began, where the peak lies in the loss.
  Held loss_by_time() const {
    Held held;
    Interval loss{kAlways, 0};
    std::string name;
    SimTime loss_before = 0;
    for (const Interval& time : loss_times()) {
      if (time.begin > at_) break;
      // Operators of one loss follow each other; another step's are far from them.
      if (loss.begin == kAlways || time.begin - loss_before > kMillisecond) loss = time;
      loss.end = std::max(loss.end, time.end);
      loss_before = time.end;
    }
    if (loss.begin == kAlways || at_ > loss.end) return held;
    const std::int64_t before = f_.allocated.at(loss.begin - 1);
    held.bytes = static_cast<double>(peak_ - before);
    held.where = {"loss"};
    held.time = {loss.begin, loss.end};
    return held;
  }

  /// Of our own timelines the host's spans are named for instructions: those whose work is the loss's.
  std::set<std::int32_t> loss_instructions() const {
    std::set<std::int32_t> found;
    for (const Span& span : f_.t.spans) {
      if (own(span) && !is_host(span) && span.instruction.valid() && names_loss(f_.t.name_of(span.name)))
        found.insert(span.instruction.value);
    }
    return found;
  }

  std::vector<Interval> loss_times() const {
    const std::set<std::int32_t> instructions = loss_instructions();
    std::vector<Interval> times;
    for (const Span& span : f_.t.spans) {
      const bool of_loss = span.instruction.valid() ? instructions.contains(span.instruction.value)
                                                    : names_loss(f_.t.name_of(span.name));
      if (is_host(span) && of_loss) times.push_back({span.start, std::max(span.start + span.duration, span.start + 1)});
    }
    // Calls have the driver's names: what they launch says whose they are.
    for (const Flow& flow : f_.t.flows) {
      const Span& call = f_.at(flow.from);
      if (is_host(call) && names_loss(f_.name_of(flow.to))) times.push_back({call.start, call.start + call.duration});
    }
    return merge_intervals(std::move(times));
  }

  void logits() {
    Held held = held_at_peak([&](const Span& span) { return names_loss(f_.t.name_of(span.name)); });
    if (held.bytes <= 0) held = loss_by_time();
    if (of_peak(held.bytes) < kLogits) return;
    DiagnosedCause finding = about("logits_peak", held.bytes, held.time, "the loss");
    finding.cause = fmt::format(
        "the peak of the memory lies in the loss: {} of {} ({}) are logits and what the loss "
        "makes of them",
        byte_words(held.bytes), byte_words(static_cast<double>(peak_)), share_words(of_peak(held.bytes)));
    finding.where = held.where;
    finding.remedy =
        "the loss in pieces of the sequence, so that logits are never whole: chunked cross entropy, or a "
        "fused linear cross entropy kernel";
    finding.set = {"model.loss=chunked_cross_entropy"};
    d_.findings.push_back(std::move(finding));
  }

  /// Times of the optimizer on the host, one a step.
  std::vector<Interval> optimizer_times() const {
    std::vector<Interval> times;
    for (const Span& span : f_.t.spans) {
      if (is_host(span) && span.phase == static_cast<std::int32_t>(Phase::Optimizer))
        times.push_back({span.start, span.start + span.duration + 1});
    }
    std::vector<Interval> steps;
    for (const Interval& time : merge_intervals(std::move(times))) {
      if (!steps.empty() && time.begin - steps.back().end < kMillisecond / 10)
        steps.back().end = time.end;
      else
        steps.push_back(time);
    }
    return steps;
  }

  void optimizer() {
    Held held = held_at_peak([&](const Span& span) {
      return names_optimizer(f_.t.name_of(span.name)) && span.start + span.duration < last_;  // state stays
    });
    double over = held.bytes;
    if (held.bytes <= 0) {
      const std::vector<Interval> times = optimizer_times();
      const auto inside =
          std::find_if(times.begin(), times.end(), [&](const Interval& t) { return t.begin <= at_ && at_ < t.end; });
      if (inside == times.end()) return;
      // State that the first step makes stays; temporaries go before the optimizer ends.
      held.bytes = static_cast<double>(peak_ - f_.allocated.at(inside->end));
      held.time = *inside;
      held.where = {"optimizer"};
      std::int64_t elsewhere = 0;
      SimTime from = f_.allocated.times.front();
      for (const Interval& time : times) {
        elsewhere = std::max(elsewhere, f_.allocated.peak(from, time.begin).first);
        from = time.end;
      }
      elsewhere = std::max(elsewhere, f_.allocated.peak(from, kAlways).first);
      over = std::min(held.bytes, static_cast<double>(peak_ - elsewhere));
    }
    if (of_peak(over) < kOfPeak) return;
    DiagnosedCause finding = about("optimizer_temporaries", over, held.time, "the optimizer's step");
    finding.cause = fmt::format("the peak of the memory lies in the optimizer's step: its temporaries are {} of {}",
                                byte_words(held.bytes), byte_words(static_cast<double>(peak_)));
    finding.where = held.where;
    finding.remedy =
        "torch.optim.AdamW(..., fused=True) makes none; foreach=False makes those of one parameter at a time";
    finding.set = {"train.optimizer.impl=fused"};
    d_.findings.push_back(std::move(finding));
  }

  void fragments() {
    if (f_.reserved.empty()) return;
    const MemorySeries& used = f_.active.empty() ? f_.allocated : f_.active;
    const auto [reserved, time] = f_.reserved.peak(f_.reserved.times.front(), kAlways);
    const std::int64_t needed = used.peak(used.times.front(), kAlways).first;
    const auto unused = static_cast<double>(reserved - needed);
    if (unused < static_cast<double>(kLeastUnused) || unused < kUnused * static_cast<double>(reserved)) return;
    // On a card with room for it, memory that is cached costs nothing.
    if (f_.card > 0 && static_cast<double>(reserved) < kFullCard * static_cast<double>(f_.card)) return;
    DiagnosedCause finding = about("fragmentation", unused, {time, time + 1}, "the cache grows to its largest");
    finding.cause = fmt::format(
        "the allocator holds {} and never more than {} are in use: {} ({}) lie in pieces that nothing fits into",
        byte_words(static_cast<double>(reserved)), byte_words(static_cast<double>(needed)), byte_words(unused),
        share_words(unused / static_cast<double>(reserved)));
    finding.where = {"the allocator's cache"};
    finding.remedy = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True";
    finding.set = {"allocator.expandable_segments=true"};
    d_.findings.push_back(std::move(finding));
  }

  /// The cache falls and grows again: cudaMalloc failed, and was tried again with an empty cache.
  void emptied_cache() {
    if (f_.reserved.empty()) return;
    std::int64_t times = 0;
    double freed = 0, falling = 0;
    SimTime fell = 0;
    SimDuration lasted = 0;
    std::vector<Evidence> evidence;
    const auto& values = f_.reserved.values;
    for (std::size_t i = 1; i < values.size(); ++i) {
      const auto change = static_cast<double>(values[i] - values[i - 1]);
      if (change < 0) {
        if (falling == 0) fell = f_.reserved.times[i - 1];
        falling -= change;
      } else if (change > 0) {
        if (falling >= kOfPeak * static_cast<double>(peak_)) {
          ++times;
          freed += falling;
          lasted += f_.reserved.times[i] - f_.reserved.times[i - 1];
          evidence.push_back(
              {f_.memory_rank, {fell, f_.reserved.times[i] + 1}, fmt::format("{} given back", byte_words(falling))});
        }
        falling = 0;
      }
    }
    const bool known = std::any_of(d_.findings.begin(), d_.findings.end(),
                                   [](const DiagnosedCause& f) { return f.name == "allocator_retries"; });
    if (times == 0 || known) return;
    tell_retries(times, freed / static_cast<double>(times), lasted, std::move(evidence));
  }

  void tell_retries(std::int64_t times, double freed, SimDuration lasted, std::vector<Evidence> evidence) {
    DiagnosedCause finding;
    finding.name = "allocator_retries";
    finding.cost = lasted / std::max<std::int64_t>(1, d_.steps);
    const double of_step = d_.step > 0 ? static_cast<double>(finding.cost) / static_cast<double>(d_.step) : 0;
    finding.share = std::max(f_.options.least_share, of_step);  // it waits for the device too, and is near to no memory
    finding.saving = finding.cost;
    finding.where = {"the allocator's cache"};
    if (evidence.size() > 3) evidence.resize(3);
    finding.evidence = std::move(evidence);
    finding.cause = fmt::format(
        "the allocator gave its cache back and asked the driver again {} (num_alloc_retries; {} on average): each time "
        "waits for the device",
        times == 1 ? "once" : fmt::format("{} times", times), byte_words(freed));
    finding.remedy =
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, and less memory at the peak; no "
        "torch.cuda.empty_cache() in the step";
    finding.set = {"allocator.expandable_segments=true"};
    d_.findings.push_back(std::move(finding));
  }

  /// What is held when the host begins a step: those after the first, which makes the optimizer's state.
  std::vector<std::pair<SimTime, std::int64_t>> held_between_steps() const {
    std::vector<std::pair<SimTime, std::int64_t>> held;
    for (const TimelineIteration& iteration : iterations_of(f_.t, f_.memory_rank))
      held.emplace_back(iteration.issue, 0);
    if (!held.empty()) held.erase(held.begin());
    for (auto& [time, bytes] : held) bytes = f_.allocated.at(time);
    return held;
  }

  /// Every step leaves as much behind as the one before.
  void growth() {
    const auto held = held_between_steps();
    if (held.size() < 3) return;
    double least = static_cast<double>(peak_), most = 0;
    for (std::size_t i = 1; i < held.size(); ++i) {
      const auto grown = static_cast<double>(held[i].second - held[i - 1].second);
      least = std::min(least, grown);
      most = std::max(most, grown);
    }
    if (least < kGrowth * static_cast<double>(peak_) || least < kEven * most) return;
    const auto all = static_cast<double>(held.back().second - held.front().second);
    DiagnosedCause finding =
        about("memory_grows", all, {held.front().first, held.back().first}, "more is held at every step's beginning");
    finding.cause = fmt::format("each step leaves {} more behind than the one before, which nothing gives back",
                                byte_words(all / static_cast<double>(held.size() - 1)));
    if (f_.card > peak_) {
      const double left = static_cast<double>(f_.card - peak_) * static_cast<double>(held.size() - 1) / all;
      finding.cause += fmt::format(": the card is full in {:.0f} steps", left);
    }
    finding.where = {fmt::format("{} steps", held.size() - 1)};
    finding.remedy =
        "keep numbers, not tensors, between steps: loss.item() every few steps, .detach() on what must stay; outputs "
        "and losses in a list hold their graph and its activations";
    d_.findings.push_back(std::move(finding));
  }

  const RecordingFacts& f_;
  Diagnosis& d_;
  std::int64_t peak_ = 0;
  SimTime at_ = 0, last_ = 0;
};

}  // namespace

void find_memory_causes(const RecordingFacts& facts, Diagnosis& diagnosis) {
  if (facts.allocated.empty()) {
    diagnosis.not_looked_at.emplace_back(
        "memory: no counters in the recording (profile_memory=True, or a memory snapshot)");
    return;
  }
  MemoryStory(facts, diagnosis).tell();
}

}  // namespace foreshard
