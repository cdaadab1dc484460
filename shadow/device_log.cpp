#include "shadow/device_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>

#include "core/instruction_spans.h"

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
      {"ncclAlltoAll", {CollectiveKind::Other, SpanKind::SendRecv}},
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

class Drawing {
 public:
  explicit Drawing(const LogOptions& options) : options_(options) {
    timeline_.provenance = {.source = "shadow",
                            .software = "PyTorch on the virtual device",
                            .hardware = options.hardware,
                            .clock = "virtual"};
    timeline_.lanes.push_back({options.rank, "host", 0, "host"});
    timeline_.counters.push_back({options.rank, "reserved", "bytes"});
    mark(0, iteration_mark(0));
  }

  void work(const json& row, std::string_view api) {
    Span span;
    const auto word = collectives().find(api);
    span.kind = word != collectives().end()     ? word->second.span
                : api.starts_with("cudaMemcpy") ? SpanKind::Copy
                : api.starts_with("cudaMemset") ? SpanKind::Memset
                                                : SpanKind::Compute;
    span.lane = lane(row.value("stream", 0));
    span.start = row.at("start_ns");
    span.duration = row.at("end_ns").get<SimTime>() - span.start;
    span.name = name(word != collectives().end() ? std::string(api) : row.value("name", std::string(api)));
    span.bytes = row.value("bytes", Bytes{0});
    timeline_.spans.push_back(span);
  }

  void wait(const json& row, std::string_view api) {
    const SimDuration waited = row.value("waited_ns", SimDuration{0});
    if (waited <= 0) return;
    timeline_.spans.push_back({.lane = LaneId{0},
                               .kind = SpanKind::HostWait,
                               .start = row.at("event_ns").get<SimTime>() - waited,
                               .duration = waited,
                               .name = name(std::string(api))});
  }

  void reserved(const json& row) { timeline_.samples.push_back({CounterId{0}, row.at("host_ns"), row.at("used")}); }

  void mark(SimTime time, const std::string& text) { timeline_.marks.push_back({time, options_.rank, name(text)}); }

  Timeline take() {
    std::stable_sort(timeline_.spans.begin(), timeline_.spans.end(), [](const Span& a, const Span& b) {
      return std::pair(a.lane.value, a.start) < std::pair(b.lane.value, b.start);
    });
    return std::move(timeline_);
  }

 private:
  LaneId lane(std::int64_t stream) {
    const auto [known, fresh] = lanes_.try_emplace(stream, static_cast<std::int32_t>(timeline_.lanes.size()));
    if (fresh)
      timeline_.lanes.push_back({options_.rank, fmt::format("stream {}", stream), 0, fmt::format("stream {}", stream)});
    return LaneId{known->second};
  }
  NameId name(const std::string& text) {
    const auto [known, fresh] = names_.try_emplace(text, static_cast<std::int32_t>(timeline_.names.size()));
    if (fresh) timeline_.names.push_back(text);
    return NameId{known->second};
  }

  LogOptions options_;
  Timeline timeline_;
  std::map<std::int64_t, std::int32_t> lanes_;
  std::map<std::string, std::int32_t> names_;
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
    if (!options_.timeline) return;
    if (row.contains("start_ns")) drawing_.work(row, api);
    if (api == "cudaEventSynchronize") drawing_.wait(row, api);
    if (row.contains("used")) drawing_.reserved(row);
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
    if (options_.timeline)
      drawing_.mark(row.at("host_ns"), iteration_mark(static_cast<std::int32_t>(log_.steps.size())));
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
