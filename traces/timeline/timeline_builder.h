// What readers of foreign recordings share: spans in any order, with the recording's own correlation numbers, become a
// Timeline: sorted, from time 0, with flows. Findings are counted, so that a million bad slices are one warning.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "core/timeline.h"
#include "traces/timeline/opened_trace.h"

namespace foreshard {

/// What a lane of a foreign recording is; decides what its spans mean and what it is called.
enum class LaneRole : std::uint8_t {
  Host,          // a thread: operators, runtime calls, ranges, nested
  HostPython,    // its Python frames
  Device,        // a stream
  DeviceRanges,  // named ranges around a stream's work
  Other,         // the profiler's own rows, synchronisation without a stream
};

class TimelineBuilder {
 public:
  struct LaneAbout {
    LaneRole role = LaneRole::Other;
    std::int64_t process = 0, thread = 0;  // device and stream on the device
    bool operator==(const LaneAbout&) const = default;
  };

  LaneId lane(const LaneAbout& about);
  NameId name(std::string_view text);
  std::int32_t unit(std::string_view text);
  CounterId counter(std::int32_t rank, std::string_view name, std::string_view unit);

  /// correlation: same number on the host's call and on the device's work; -1 = none. A span that has one is of no
  /// operator of ours: until finish() its `op` keeps the number, so that reading needs no room beside the spans.
  void add(const Span& span, std::int64_t correlation = -1, std::uint32_t arguments = kNoArguments);
  static constexpr std::uint32_t kNoArguments = ~std::uint32_t{0};

  /// Findings of one kind become one warning: "12 slices ... (first: NAME)".
  void count(std::string_view finding, std::string_view example = {});
  std::vector<TraceWarning> warnings(const std::string& place) const;

  std::uint64_t bytes() const;  // estimate of what finish() returns

  /// Spans whose time lies more than a day from the others' cannot be shown on one axis with them: left out, counted.
  /// Then sorts, makes flows from correlations, and moves everything so that the first thing is at 0. Returns by how
  /// much the time was moved.
  SimTime finish();

  /// By span, after finish(): the row of its arguments. Empty if no span has any.
  std::vector<std::uint32_t> argument_rows;

  Timeline timeline;  // lanes and spans grow through add(); the rest is free to be filled before finish()
  std::vector<LaneAbout> lanes;

 private:
  struct LaneHash {
    std::size_t operator()(const LaneAbout& about) const;
  };
  void leave_out_strays();
  void sort_spans();
  void make_flows();
  std::int32_t correlation_key(std::int64_t number);
  SimTime move_to_zero();

  std::unordered_map<LaneAbout, LaneId, LaneHash> lane_of_;
  std::unordered_map<std::string_view, NameId> name_of_;
  std::deque<std::string> texts_;  // what name_of_ looks at
  std::unordered_map<std::string, std::int32_t> unit_of_;
  std::map<std::tuple<std::int32_t, std::string, std::string>, CounterId> counter_of_;
  std::unordered_map<std::int64_t, std::int32_t> wide_correlations_;  // those that 31 bits do not hold
  struct Finding {
    std::int64_t count = 0;
    std::string example;
  };
  std::map<std::string, Finding, std::less<>> findings_;
};

}  // namespace foreshard
