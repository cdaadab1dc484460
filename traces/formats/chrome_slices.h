// What Chrome events mean: slices, counters, marks and arrows of Kineto's, of our own and of any other Chrome JSON,
// gathered into a Timeline. Private to the readers of Chrome JSON.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/result.h"
#include "traces/formats/argument_reader.h"
#include "traces/formats/kineto_events.h"
#include "traces/formats/open_trace.h"
#include "traces/timeline/timeline_builder.h"

namespace foreshard {

class ChromeSlices {
 public:
  explicit ChromeSlices(std::string file) : file_(std::move(file)) {}

  void take(const ChromeEvent& event);

  /// Counted by text; `example` of the first one.
  void finding(std::string_view text, std::string_view example) { builder_.count(text, example); }
  void note(std::string text) { notes_.push_back(std::move(text)); }

  std::size_t taken() const { return taken_; }
  std::uint64_t bytes() const { return builder_.bytes() + arguments_.bytes() / 2; }
  const std::string& file() const { return file_; }

  /// `beside`: what stands beside the events in the file, as JSON text by key. Call once.
  Result<OpenedTrace> finish(const std::map<std::string, std::string>& beside);

 private:
  struct Arrow {
    char phase = 's';
    std::uint64_t id = 0;
    LaneId lane;
    SimTime time = 0;
  };
  struct Open {  // a slice that has begun
    Span span;
    std::int64_t correlation = -1;
    std::uint32_t arguments = TimelineBuilder::kNoArguments;
  };
  enum class Dialect { Kineto, Own, Other };

  void slice(const ChromeEvent& event);
  void begin(const ChromeEvent& event);
  void end(const ChromeEvent& event);
  void instant(const ChromeEvent& event);
  void memory(const ChromeEvent& event, SimTime time);
  void counter(const ChromeEvent& event);
  void metadata(const ChromeEvent& event);
  void arrow(const ChromeEvent& event);
  void left_out(std::string_view why, const ChromeEvent& event);

  void fill(const ChromeEvent& event, Span& span, std::int64_t& correlation);
  std::uint32_t keep_arguments(const ChromeEvent& event);
  void fill_device(const ChromeEvent& event, Span& span);
  void fill_own(const ChromeEvent& event, Span& span);
  void sample(std::string_view counter, std::string_view unit, std::int32_t rank, SimTime time, std::int64_t value);

  void read_beside(const std::map<std::string, std::string>& beside);
  void name_own_lanes();
  void alias_lanes(const std::vector<LaneId>& target);
  void bind_arrows(SimTime zero);
  SpanId span_at(LaneId lane, SimTime time) const;
  std::string thread_label(const TimelineBuilder::LaneAbout& about) const;

  std::string file_;
  TimelineBuilder builder_;
  ArgumentReader arguments_;
  std::vector<std::string> notes_;
  std::size_t taken_ = 0, device_slices_ = 0;
  Dialect dialect_ = Dialect::Other;
  std::vector<Arrow> arrows_;
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<Open>> open_;  // by process and thread
  std::map<std::int64_t, std::int64_t> memory_;                              // allocated bytes by device, -1 the host
  std::int64_t memory_device_ = -1;
  std::map<std::pair<std::int64_t, std::int64_t>, std::string> thread_names_;
  std::map<std::int64_t, std::string> texts_;  // threads whose id is a text
  std::int32_t rank_ = -1, world_size_ = 0;
  std::int64_t base_ns_ = 0;
  std::map<std::int64_t, std::string> devices_;
};

/// "rank3_trace.json.gz", "worker3.123.pt.trace.json", "rank-3": the rank that a file's name says; -1 = none.
std::int32_t rank_in_name(std::string_view file);

}  // namespace foreshard
