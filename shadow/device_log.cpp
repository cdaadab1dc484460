#include "shadow/device_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "traces/timeline/timeline_builder.h"
#include "traces/timeline/trace_names.h"
#include "traces/timeline/trace_roles.h"

namespace foreshard::shadow {
namespace {

using nlohmann::json;

struct Word {
  CollectiveKind collective;
  SpanKind span;
};
const std::map<std::string, Word, std::less<>>& collectives() {
  static const std::map<std::string, Word, std::less<>> kWords = {
      {"ncclAllGather", {CollectiveKind::Gather, SpanKind::AllGather}},
      {"ncclReduceScatter", {CollectiveKind::Reduce, SpanKind::ReduceScatter}},
      {"ncclAllReduce", {CollectiveKind::AllReduce, SpanKind::AllReduce}},
      {"ncclReduce", {CollectiveKind::Other, SpanKind::AllReduce}},
      {"ncclBroadcast", {CollectiveKind::Broadcast, SpanKind::Broadcast}},
      {"ncclAlltoAll", {CollectiveKind::AllToAll, SpanKind::SendRecv}},
      {"ncclSend", {CollectiveKind::Other, SpanKind::SendRecv}},
      {"ncclRecv", {CollectiveKind::Other, SpanKind::SendRecv}}};
  return kWords;
}

/// "gather layers.3" opens, "end gather layers.3" closes.
class Marks {
 public:
  void read(const std::string& text) {
    const bool ends = text.starts_with("end ");
    const std::string rest = ends ? text.substr(4) : text;
    const std::size_t blank = rest.find(' ');
    const std::string word = rest.substr(0, blank);
    if (word != "gather" && word != "reduce") return;
    if (!ends) {
      open_.push_back(blank == std::string::npos ? "" : rest.substr(blank + 1));
    } else if (!open_.empty()) {
      open_.pop_back();
    }
  }
  std::string unit() const { return open_.empty() ? std::string() : open_.back(); }

 private:
  std::vector<std::string> open_;
};

/// "aten::addmm, seq = 111, op_id = 4399": an operator's own name, and the number that its backward has, too.
struct RangeName {
  std::string_view name;
  std::int64_t sequence = -1;
};
RangeName range_name(std::string_view text) {
  RangeName range{text, -1};
  constexpr std::string_view kSequence = ", seq = ";
  if (const std::size_t at = text.find(kSequence); at != std::string_view::npos)
    std::from_chars(text.data() + at + kSequence.size(), text.data() + text.size(), range.sequence);
  range.name = text.substr(0, std::min(text.find(kSequence), text.find(", op_id = ")));
  return range;
}

/// What PyTorch's profiler calls an operator; else it is a range that somebody named.
bool is_operator(std::string_view name) {
  return (name.find("::") != std::string_view::npos && !name.starts_with("FSDP::")) ||
         name.find("Backward") != std::string_view::npos;
}

/// The calls as a recording of PyTorch's profiler has them: threads with nested ranges and calls, streams with work,
/// and numbers that lead from one to the other. Roles, units and phases are found as in such a recording.
class Drawing {
 public:
  explicit Drawing(const LogOptions& options) : options_(options) {
    builder_.timeline.provenance = {.source = "shadow",
                                    .software = "PyTorch on the virtual device",
                                    .hardware = options.hardware,
                                    .clock = "virtual"};
    reserved_ = builder_.counter(options.rank, "reserved", "bytes");
    begin_step(0);
  }

  /// `unit`: whose unshard or reduction is under way.
  void take(const json& row, const std::string& api, const std::string& unit) {
    if (api == "nvtxRangePush") return open_range(row);
    if (api == "nvtxRangePop") return close_range(row);
    if (api == "allocator") return allocated(row);
    if (row.contains("call_ns") || row.contains("start_ns")) call(row, api);
    if (row.contains("start_ns")) work(row, api, unit);
    if (row.contains("used")) sample(reserved_, row.at("host_ns"), row.at("used"));
  }

  /// The optimizer's hook says so inside of its range: the step ends with that.
  void step_ends(SimTime host) {
    const bool inside = std::any_of(open_.begin(), open_.end(), [this](const auto& thread) {
      return std::any_of(thread.second.begin(), thread.second.end(), [this](std::size_t i) { return is_optimizer(i); });
    });
    if (inside) {
      step_over_ = true;
    } else {
      end_step(host);
    }
  }

  Timeline take() {
    if (step_over_) end_step(last_);
    if (steps_ > 0) {  // what follows the last step that ended is the beginning of one
      spans_.resize(kept_);
      builder_.timeline.samples.resize(kept_samples_);
    } else {
      spans_[step_].span.duration = last_ - spans_[step_].span.start;
    }
    for (const Drawn& each : spans_) builder_.add(each.span, each.correlation);
    builder_.finish();
    join_backward();
    std::vector<std::int32_t> said;
    for (const Span& span : builder_.timeline.spans) said.push_back(span.unit);
    assign_roles(builder_, options_.rank);
    name_units(said);
    return std::move(builder_.timeline);
  }

 private:
  static constexpr std::int64_t kProgram = 0;

  struct Drawn {
    Span span;
    std::int64_t correlation = -1;
    bool optimizer = false;  // the range of its step
  };

  /// Between two calls the virtual clock stands: what happens there is drawn a nanosecond apart, so that it nests.
  SimTime drawn(SimTime host) { return last_ = std::max(host, last_ + 1); }

  Drawn& add(LaneId lane, SpanKind kind, SimTime start, SimTime end, std::string_view name) {
    spans_.emplace_back();
    Span& span = spans_.back().span;
    span.lane = lane, span.kind = kind, span.start = start, span.duration = end - start,
    span.name = builder_.name(name);
    return spans_.back();
  }

  LaneId thread(const json& row) {
    return builder_.lane({LaneRole::Host, kProgram, row.value("thread", std::int64_t{0})});
  }

  LaneId stream(std::int64_t number) {
    const LaneId lane = builder_.lane({LaneRole::Device, kProgram, number});
    builder_.timeline.lanes[lane.index()].label = fmt::format("stream {}", number);
    return lane;
  }

  bool is_optimizer(std::size_t i) const { return spans_[i].optimizer; }

  void end_step(SimTime host) {
    step_over_ = false;
    spans_[step_].span.duration = drawn(host) - spans_[step_].span.start;
    kept_ = spans_.size();
    kept_samples_ = builder_.timeline.samples.size();
    begin_step(++steps_);
  }

  void begin_step(std::int32_t index) {
    const LaneId main = builder_.lane({LaneRole::Host, kProgram, kProgram});
    const SimTime start = drawn(last_);
    step_ = spans_.size();
    add(main, SpanKind::Annotation, start, start, fmt::format("ProfilerStep#{}", index));
  }

  void open_range(const json& row) {
    const std::string text = row.value("name", "");
    const RangeName range = range_name(text);
    const SimTime start = drawn(row.at("host_ns"));
    open_[row.value("thread", 0)].push_back(spans_.size());
    Drawn& drawn = add(thread(row), is_operator(range.name) ? SpanKind::HostIssue : SpanKind::Annotation, start, start,
                       range.name);
    drawn.span.bytes = range.sequence + 1;  // until join_backward()
    drawn.optimizer = range.name.starts_with("Optimizer.step");
  }

  void close_range(const json& row) {
    std::vector<std::size_t>& open = open_[row.value("thread", 0)];
    if (open.empty()) return;
    if (open.back() < spans_.size()) {
      Span& span = spans_[open.back()].span;
      span.duration = drawn(row.at("host_ns")) - span.start;
      if (step_over_ && is_optimizer(open.back())) end_step(row.at("host_ns"));
    }
    open.pop_back();
  }

  void call(const json& row, const std::string& api) {
    const SimTime host = row.at("host_ns");
    const SimTime start = drawn(row.value("call_ns", host)), end = drawn(row.value("back_ns", host));
    const SpanKind kind = is_waiting_call(api) ? SpanKind::HostWait : SpanKind::HostIssue;
    add(thread(row), kind, start, end, api).correlation =
        row.contains("start_ns") ? row.value("i", std::int64_t{-1}) : -1;
  }

  void work(const json& row, const std::string& api, const std::string& unit) {
    const auto word = collectives().find(api);
    const bool collective = word != collectives().end();
    const SpanKind kind = collective                      ? word->second.span
                          : api.starts_with("cudaMemcpy") ? SpanKind::Copy
                          : api.starts_with("cudaMemset") ? SpanKind::Memset
                                                          : SpanKind::Compute;
    Drawn& drawn = add(stream(row.value("stream", std::int64_t{0})), kind, row.at("start_ns"), row.at("end_ns"),
                       work_name(row, api, kind));
    drawn.span.bytes = row.value("bytes", Bytes{0});
    if (collective && !unit.empty()) drawn.span.unit = builder_.unit(unit == "(root)" ? "" : unit);
    if (collective) drawn.span.communicator = builder_.name(fmt::format("communicator {}", row.value("comm", 0)));
    drawn.correlation = row.value("i", std::int64_t{-1});
  }

  /// As CUPTI and cuBLAS spell it.
  static std::string work_name(const json& row, const std::string& api, SpanKind kind) {
    const std::string name = row.value("name", api);
    if (kind == SpanKind::Copy) {
      const char* host = row.value("pinned", 1) != 0 ? "Pinned" : "Pageable";
      const bool from_host = name.starts_with("H"), to_host = name.ends_with("H");
      return fmt::format("Memcpy {} ({} -> {})", name, from_host ? host : "Device", to_host ? host : "Device");
    }
    if (kind == SpanKind::Memset) return "Memset (Device)";
    if (!row.contains("mnk")) return name;
    const std::string type = row.value("dtype", "");
    const json& mnk = row.at("mnk");
    return fmt::format("gemm_{0}{0}_{1}x{2}x{3}", type, mnk.at(0).get<std::int64_t>(), mnk.at(1).get<std::int64_t>(),
                       mnk.at(2).get<std::int64_t>());
  }

  void allocated(const json& row) {
    if (!allocated_.valid()) allocated_ = builder_.counter(options_.rank, "allocated", "bytes");
    sample(allocated_, row.at("host_ns"), row.at("allocated"));
  }

  void sample(CounterId counter, SimTime host, std::int64_t value) {
    builder_.timeline.samples.push_back({counter, drawn(host), value});
  }

  /// FSDP1's ranges do not say whose they are: the unit of a forward is the one that it gathers, and the collectives of
  /// a recomputation, which no range tells, have the unit that their call said.
  void name_units(const std::vector<std::int32_t>& said) {
    std::vector<Span>& spans = builder_.timeline.spans;
    std::map<std::int32_t, std::int32_t> named;  // unit of ranges -> unit of the call
    for (std::size_t i = 0; i < spans.size(); ++i) {
      if (said[i] >= 0 && spans[i].unit >= 0 && spans[i].kind == SpanKind::AllGather)
        named.try_emplace(spans[i].unit, said[i]);
    }
    for (std::size_t i = 0; i < spans.size(); ++i) {
      const auto name = named.find(spans[i].unit);
      if (said[i] >= 0) {
        spans[i].unit = said[i];
      } else if (name != named.end()) {
        spans[i].unit = name->second;
      }
    }
  }

  /// Arrows from operators to their backward, which has the same number: FSDP1's ranges do not say whose backward it
  /// is.
  void join_backward() {
    std::map<std::int64_t, SpanId> forward;
    for (std::size_t i = 0; i < builder_.timeline.spans.size(); ++i) {
      Span& span = builder_.timeline.spans[i];
      if (builder_.lanes[span.lane.index()].role != LaneRole::Host) continue;
      const std::int64_t sequence = std::exchange(span.bytes, 0) - 1;
      if (sequence < 0) continue;
      if (builder_.timeline.name_of(span.name).find("Backward") == std::string_view::npos) {
        forward[sequence] = SpanId(i);
      } else if (const auto from = forward.find(sequence); from != forward.end()) {
        builder_.timeline.flows.push_back({from->second, SpanId(i)});
      }
    }
  }

  LogOptions options_;
  TimelineBuilder builder_;
  std::vector<Drawn> spans_;                      // ranges as they opened
  std::map<int, std::vector<std::size_t>> open_;  // ranges, by thread
  CounterId allocated_, reserved_;
  SimTime last_ = -1;
  std::size_t step_ = 0, kept_ = 0, kept_samples_ = 0;  // the step's range; what the steps that ended have
  std::int32_t steps_ = 0;
  bool step_over_ = false;  // with the optimizer's range
};

class Reader {
 public:
  explicit Reader(const LogOptions& options) : options_(options), drawing_(options) {}

  void take(const json& row) {
    const std::string api = row.at("api");
    if (api == "mark") return mark(row);
    if (const auto word = collectives().find(api); word != collectives().end() && row.contains("bytes")) {
      running_.push_back({word->second.collective, marks_.unit(), row.at("bytes"), row.value("elem", Bytes{0}),
                          row.value("ranks", std::int64_t{1})});
    }
    if (options_.timeline) drawing_.take(row, api, marks_.unit());
  }

  DeviceLog end() && {
    log_.timeline = options_.timeline ? drawing_.take() : Timeline{};
    return std::move(log_);
  }

 private:
  void mark(const json& row) {
    const std::string text = row.value("name", "");
    if (!text.starts_with("step ") || !text.ends_with(" ends")) return marks_.read(text);
    log_.steps.push_back(std::exchange(running_, {}));
    if (options_.timeline) drawing_.step_ends(row.at("host_ns"));
  }

  const LogOptions& options_;
  Drawing drawing_;
  Marks marks_;
  DeviceLog log_;
  std::vector<LoggedCollective> running_;
};

}  // namespace

Result<DeviceLog> read_device_log(const std::string& path, const LogOptions& options) {
  std::ifstream file(path);
  if (!file) {
    Error missing;
    missing.code = ErrorCode::NotFound;
    missing.message = "the virtual device has written no log";
    missing.file = path;
    missing.expected = "a log of its calls";
    missing.hint = "the script's interpreter did not load the device: is it linked statically, or setuid?";
    return fail(missing);
  }
  Reader reader(options);
  std::int64_t number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    try {
      reader.take(json::parse(line));
    } catch (const json::exception& wrong) {
      if (file.peek() == std::ifstream::traits_type::eof()) break;  // the script ended while it was written
      return fail({.code = ErrorCode::BadSyntax,
                   .message = "a line of the virtual device's log is no call",
                   .file = path,
                   .place = fmt::format("line {}", number),
                   .expected = "one call a line, as the device writes it",
                   .got = wrong.what(),
                   .hint = "watch the script again"});
    }
  }
  return std::move(reader).end();
}

}  // namespace foreshard::shadow
