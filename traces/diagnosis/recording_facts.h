// What the rules of a diagnosis look at, found once: the steps of every rank with their time given to uses, gathers by
// unit, memory over time. Private to traces/diagnosis. Keeps references to the recording.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "traces/analysis/step_account.h"
#include "traces/diagnosis/diagnosis.h"

namespace foreshard {

/// The steps of one rank that count: those after the first where there are several.
struct RankSteps {
  std::int32_t rank = 0;
  std::unique_ptr<StepAccountant> accountant;
  std::vector<std::size_t> counted;   // places of the accountant's steps
  std::vector<StepAccount> accounts;  // of the counted ones
  SimDuration mean = 0;
};

/// One all-gather on a stream, in order of time.
struct UnitGather {
  SpanId span;
  std::size_t step = 0;  // place in RankSteps::counted
  bool backward = false;
};

struct MemorySeries {
  std::vector<SimTime> times;
  std::vector<std::int64_t> values;
  bool empty() const { return times.empty(); }
  std::int64_t at(SimTime time) const;  // 0 before the first
  /// Highest in [begin, end), what stands at begin included; and when.
  std::pair<std::int64_t, SimTime> peak(SimTime begin, SimTime end) const;
};

enum class SeenRuntime : std::uint8_t { Unknown, Fsdp1, Fsdp2 };

class RecordingFacts {
 public:
  RecordingFacts(const Timeline& timeline, const DiagnosisOptions& options);

  const Timeline& t;
  const DiagnosisOptions& options;
  std::vector<CollectiveMeeting> meetings;
  std::vector<RankSteps> ranks;  // those with work on a device
  std::size_t judged = 0;        // place in `ranks`
  std::int32_t memory_rank = 0;
  MemorySeries allocated, active, reserved;  // of memory_rank
  Bytes card = 0;                            // memory of the recorded card, where its name says it; 0 = unknown
  SeenRuntime runtime = SeenRuntime::Unknown;

  bool has_steps() const { return !ranks.empty(); }
  /// What a share of memory is a share of: the card's, else the peak.
  double share_of_memory(double bytes) const;
  /// The card is known, and less than 70 % of it is held at the most.
  bool room_on_card() const;
  const RankSteps& own() const { return ranks[judged]; }
  double steps() const { return static_cast<double>(own().accounts.size()); }
  const Span& at(SpanId id) const { return t.spans[id.index()]; }
  SimTime end_of(SpanId id) const { return at(id).start + at(id).duration; }
  std::string unit_of(const Span& span) const;  // "root", "layers.0"; "" = of none
  bool is_root(const Span& span) const;
  /// Of a host's call: it copies much to or from memory that is not pinned, and holds the host while it does.
  bool is_pageable_copy(SpanId call) const { return call.valid() && pageable_calls_.contains(call.value); }
  SimDuration pageable_copying() const { return pageable_copying_; }  // of the judged rank's host, in a mean step
  std::string_view name_of(SpanId id) const { return t.name_of(at(id).name); }

  /// All-gathers of the judged rank's counted steps, by unit.
  std::map<std::int32_t, std::vector<UnitGather>> gathers() const;

 private:
  void find_ranks();
  void find_memory();
  void find_pageable_calls();
  bool issued_in_backward(SpanId work) const;

  std::unordered_set<std::int32_t> pageable_calls_;
  SimDuration pageable_copying_ = 0;
};

/// Stretches of the judged rank's steps that a rule takes for its own, summed to the mean step.
class Collected {
 public:
  using Choice = std::function<bool(const UseStretch&)>;
  using Label = std::function<std::string(const UseStretch&)>;

  Collected(const RecordingFacts& facts, const Choice& choice, const Label& label);

  SimDuration cost() const { return cost_; }
  double share() const;  // of the step
  std::int64_t count() const { return count_; }
  std::vector<std::string> where(std::size_t most = 4) const;  // labels, what costs most first
  std::string first() const { return labels_.empty() ? std::string() : labels_.front().first; }
  std::vector<Evidence> evidence(std::size_t most = 3) const;  // the longest
  DiagnosedCause finding(const char* name) const;              // cost, share, places, evidence
  DiagnosedCause avoidable(const char* name) const;            // ... whose cost would be saved

 private:
  const RecordingFacts& facts_;
  SimDuration cost_ = 0;
  std::int64_t count_ = 0;
  std::vector<std::pair<std::string, SimDuration>> labels_;
  std::vector<Evidence> longest_;
};

/// "NVIDIA H100 80GB HBM3", "Tesla V100-SXM2-32GB", "h100-sxm-80": the gigabytes in a card's name; 0 = it says none.
Bytes card_memory_in(std::string_view hardware);

std::string time_words(double nanoseconds);  // "12.3 ms"
std::string byte_words(double bytes);        // "1.5 GiB"
std::string share_words(double share);       // "12.3 %"

}  // namespace foreshard
