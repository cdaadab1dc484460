#include "traces/formats/chrome_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "core/plan.h"
#include "core/text/format_append.h"
#include "core/text/utf8.h"
#include "traces/encodings/byte_file.h"
#include "traces/formats/argument_reader.h"

namespace foreshard {
namespace {

constexpr std::size_t kFlushBytes = 1U << 18U;

struct SpokenStream {
  std::string_view letter, spoken;
  int row;
};
// Letters of the semantics page, section 0; C and U, G and S are the same role in the two runtimes.
constexpr std::array<SpokenStream, 10> kStreams{{{"host", "host", 0},
                                                 {"D", "D compute", 1},
                                                 {"U", "U all-gather", 2},
                                                 {"C", "C copy-in", 2},
                                                 {"A", "A all-gather", 3},
                                                 {"G", "G reduce-scatter", 4},
                                                 {"S", "S reduce-scatter", 4},
                                                 {"Q", "Q copy to device", 5},
                                                 {"H", "H all-reduce", 6},
                                                 {"O", "O activations", 7}}};

/// JSON events in pieces to a sink; the first error of the sink is kept and ends the writing.
class EventWriter {
 public:
  using Sink = std::function<Result<void>(std::string_view)>;
  explicit EventWriter(Sink sink) : sink_(std::move(sink)) {}

  template <class... Args>
  void raw(fmt::format_string<Args...> format, Args&&... args) {
    format_append(buffer_, format, std::forward<Args>(args)...);
    if (buffer_.size() >= kFlushBytes) flush();
  }
  void begin_event() {
    raw("{}", first_ ? "\n" : ",\n");
    first_ = false;
  }
  void text(std::string_view text);
  void key(std::string_view json) { raw(R"("{}":)", json); }  // as it stood in a file
  void time(std::string_view key, SimTime ns) {
    raw(R"("{}":{}{}.{:03})", key, ns < 0 ? "-" : "", (ns < 0 ? -ns : ns) / 1000, (ns < 0 ? -ns : ns) % 1000);
  }
  Result<void> finish() {
    flush();
    return state_;
  }

 private:
  void flush() {
    if (state_) state_ = sink_(std::string_view(buffer_.data(), buffer_.size()));
    buffer_.clear();
  }

  Sink sink_;
  fmt::memory_buffer buffer_;
  Result<void> state_;
  bool first_ = true;
};

void EventWriter::text(std::string_view given) {
  const std::string text = as_utf8(given);  // recordings name things in any bytes
  buffer_.push_back('"');
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      buffer_.push_back('\\');
      buffer_.push_back(c);
    } else if (static_cast<unsigned char>(c) < 0x20) {
      raw("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      buffer_.push_back(c);
    }
  }
  buffer_.push_back('"');
}

/// Where a span is drawn. Viewers drop slices that overlap without nesting, so those go to a further row of their lane.
struct Rows {
  std::vector<int> row_of_span;
  std::vector<int> rows_of_lane;
};

Rows split_overlaps(const Timeline& t) {
  Rows rows;
  rows.row_of_span.assign(t.spans.size(), 0);
  rows.rows_of_lane.assign(t.lanes.size(), 1);
  std::vector<std::vector<std::vector<SimTime>>> open(
      t.lanes.size());  // lane -> row -> ends of the spans that are open
  for (std::size_t i = 0; i < t.spans.size(); ++i) {
    const Span& span = t.spans[i];
    if (!span.lane.valid()) continue;
    auto& lane = open[span.lane.index()];
    std::size_t row = 0;
    for (;; ++row) {
      if (row == lane.size()) lane.emplace_back();
      auto& ends = lane[row];
      while (!ends.empty() && ends.back() <= span.start) ends.pop_back();
      if (ends.empty() || ends.back() >= span.start + span.duration) break;
    }
    lane[row].push_back(span.start + span.duration);
    rows.row_of_span[i] = static_cast<int>(row);
    rows.rows_of_lane[span.lane.index()] = std::max(rows.rows_of_lane[span.lane.index()], static_cast<int>(row) + 1);
  }
  return rows;
}

class ChromeTrace {
 public:
  ChromeTrace(const Timeline& timeline, const SliceArguments& arguments, EventWriter& out)
      : t_(timeline), arguments_(arguments), out_(out), rows_(split_overlaps(timeline)) {
    number_threads();
    for (std::uint32_t i = 0; i < arguments.texts.size(); ++i) {
      const std::string_view text = arguments.texts[i];
      if (!text.empty() && !nlohmann::json::accept(text)) damaged_.insert(text.data());
    }
    for (const SliceArguments::Column& column : arguments.columns) {
      if (!is_span_field(column.key) && nlohmann::json::accept(fmt::format("\"{}\"", column.key)))
        written_.push_back(&column);
    }
  }

  void write() {
    out_.raw(R"({{"displayTimeUnit":"ms","traceEvents":[)");
    metadata();
    for (std::size_t i = 0; i < t_.spans.size(); ++i) span(i);
    for (std::size_t i = 0; i < t_.flows.size(); ++i) flow(i);
    counters();
    for (const TimeMark& mark : t_.marks) instant(mark);
    provenance();
  }

 private:
  // Thread ids follow the order of the rows on the screen, because some viewers sort by id only.
  void number_threads() {
    std::vector<std::size_t> order(t_.lanes.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return std::pair(t_.lanes[a].rank, stream_row(t_.lanes[a].stream)) <
             std::pair(t_.lanes[b].rank, stream_row(t_.lanes[b].stream));
    });
    first_thread_.assign(t_.lanes.size(), 0);
    int next = 0;
    std::int32_t rank = -1;
    for (const std::size_t lane : order) {
      if (t_.lanes[lane].rank != rank) next = 0;
      rank = t_.lanes[lane].rank;
      first_thread_[lane] = next;
      next += rows_.rows_of_lane[lane];
    }
    order_ = std::move(order);
  }

  int thread_of(std::size_t span) const { return first_thread_[t_.spans[span].lane.index()] + rows_.row_of_span[span]; }
  std::int32_t rank_of(std::size_t span) const { return t_.lanes[t_.spans[span].lane.index()].rank; }

  void metadata() {
    std::map<std::int32_t, bool> ranks;
    for (const Lane& lane : t_.lanes) ranks[lane.rank] = true;
    for (const auto& [rank, unused] : ranks) {
      out_.begin_event();
      out_.raw(R"({{"ph":"M","pid":{0},"tid":0,"name":"process_name","args":{{"name":"rank {0}"}}}})", rank);
      out_.begin_event();
      out_.raw(R"({{"ph":"M","pid":{0},"tid":0,"name":"process_sort_index","args":{{"sort_index":{0}}}}})", rank);
    }
    for (const std::size_t lane : order_) {
      for (int row = 0; row < rows_.rows_of_lane[lane]; ++row) {
        const int tid = first_thread_[lane] + row;
        std::string name(spoken_stream_name(t_.lanes[lane].stream));
        if (row > 0) name += fmt::format(" ({})", row + 1);
        out_.begin_event();
        out_.raw(R"({{"ph":"M","pid":{},"tid":{},"name":"thread_name","args":{{"name":)", t_.lanes[lane].rank, tid);
        out_.text(name);
        out_.raw("}}}}");
        out_.begin_event();
        out_.raw(R"({{"ph":"M","pid":{},"tid":{},"name":"thread_sort_index","args":{{"sort_index":{}}}}})",
                 t_.lanes[lane].rank, tid, tid);
      }
    }
  }

  void span(std::size_t index) {
    const Span& s = t_.spans[index];
    if (!s.lane.valid()) return;
    out_.begin_event();
    out_.raw(R"({{"ph":"X","pid":{},"tid":{},)", rank_of(index), thread_of(index));
    out_.time("ts", s.start);
    out_.raw(",");
    out_.time("dur", s.duration);
    out_.raw(R"(,"cat":"{}","name":)", span_kind_name(s.kind));
    out_.text(s.name.valid() ? t_.name_of(s.name) : span_kind_name(s.kind));
    out_.raw(R"(,"args":{{)");
    const char* comma = "";
    const auto number = [&](const char* key, std::int64_t value) {
      out_.raw(R"({}"{}":{})", comma, key, value);
      comma = ",";
    };
    if (s.instruction.valid()) number("instruction", s.instruction.value);
    if (s.unit >= 0 && static_cast<std::size_t>(s.unit) < t_.units.size()) {
      out_.raw(R"({}"unit":)", comma);
      out_.text(t_.units[static_cast<std::size_t>(s.unit)]);
      comma = ",";
    }
    if (s.phase > 0 && s.phase <= static_cast<int>(Phase::Load)) {
      out_.raw(R"({}"phase":"{}")", comma, phase_name(static_cast<Phase>(s.phase)));
      comma = ",";
    }
    if (s.communicator.valid()) {
      out_.raw(R"({}"communicator":)", comma);
      out_.text(t_.name_of(s.communicator));
      comma = ",";
    }
    if (s.bytes != 0) number("bytes", s.bytes);
    if (s.op >= 0) number("op", s.op);
    if (!arguments_.empty()) more_arguments(index, comma);
    out_.raw("}}}}");
  }

  /// What the recording says beside; a text that is no JSON (damaged, cut) would break the file.
  void more_arguments(std::size_t index, const char* comma) {
    const std::uint32_t row = arguments_.row_of(SpanId(index));
    if (row == SliceArguments::kNone) return;
    for (const SliceArguments::Column* column : written_) {
      const auto value = arguments_.value(*column, row);
      if (!value) continue;
      // An empty text has no place of its own in the store: it is told by its size.
      if (!value->number && (value->json.empty() || damaged_.contains(value->json.data()))) continue;
      out_.raw("{}", comma);
      out_.key(column->key);
      if (value->number)
        out_.raw("{}", *value->number);
      else
        out_.raw("{}", value->json);
      comma = ",";
    }
  }

  void flow(std::size_t index) {
    const Flow& f = t_.flows[index];
    if (!f.from.valid() || !f.to.valid() || !t_.spans[f.from.index()].lane.valid() ||
        !t_.spans[f.to.index()].lane.valid())
      return;
    const auto end = [&](const char* phase, SpanId span, const char* more) {
      out_.begin_event();
      out_.raw(R"({{"ph":"{}","id":{},"pid":{},"tid":{},)", phase, index, rank_of(span.index()),
               thread_of(span.index()));
      out_.time("ts", t_.spans[span.index()].start);
      out_.raw(R"(,"cat":"issue","name":"issue"{}}})", more);
    };
    end("s", f.from, "");
    end("f", f.to, R"(,"bp":"e")");
  }

  // "allocated" and "reserved" stand above the categories: viewers sort counter tracks by name.
  void counters() {
    constexpr std::string_view kCategory = "category:";
    for (const CounterSample& sample : t_.samples) {
      if (!sample.counter.valid()) continue;
      const Counter& counter = t_.counters[sample.counter.index()];
      const bool category = counter.name.rfind(kCategory, 0) == 0;
      const std::string series = category ? counter.name.substr(kCategory.size()) : counter.name;
      out_.begin_event();
      out_.raw(R"({{"ph":"C","pid":{},"tid":0,)", counter.rank);
      out_.time("ts", sample.time);
      out_.raw(R"(,"name":)");
      out_.text(fmt::format("{} [{}]", (category ? "memory, of which " : "memory ") + series, counter.unit));
      out_.raw(R"(,"args":{{)");
      out_.text(series);
      out_.raw(":{}}}}}", sample.value);
    }
  }

  void instant(const TimeMark& mark) {
    out_.begin_event();
    out_.raw(R"({{"ph":"i","s":"p","pid":{},"tid":0,)", mark.rank);
    out_.time("ts", mark.time);
    out_.raw(R"(,"cat":"mark","name":)");
    out_.text(t_.name_of(mark.name));
    out_.raw("}}");
  }

  void provenance() {
    const Provenance& p = t_.provenance;
    out_.raw("\n],\"otherData\":{{\"schema\":\"foreshard.chrome/1\"");
    const auto field = [&](const char* key, const std::string& value) {
      out_.raw(R"(,"{}":)", key);
      out_.text(value);
    };
    field("source", p.source);
    field("plan_digest", p.plan_digest);
    field("software", p.software);
    field("hardware", p.hardware);
    field("clock", p.clock);
    field("dropped_records", std::to_string(p.dropped_records));
    out_.raw("}}}}\n");
  }

  const Timeline& t_;
  const SliceArguments& arguments_;
  std::vector<const SliceArguments::Column*> written_;
  std::unordered_set<const char*> damaged_;  // texts of arguments that are no JSON, but for empty ones
  EventWriter& out_;
  Rows rows_;
  std::vector<int> first_thread_;
  std::vector<std::size_t> order_;
};

Result<void> write_to(const Timeline& timeline, const SliceArguments& arguments, EventWriter::Sink sink) {
  EventWriter writer(std::move(sink));
  ChromeTrace(timeline, arguments, writer).write();
  return writer.finish();
}

}  // namespace

std::string_view spoken_stream_name(std::string_view stream) {
  const auto found =
      std::find_if(kStreams.begin(), kStreams.end(), [&](const SpokenStream& s) { return s.letter == stream; });
  return found == kStreams.end() ? stream : found->spoken;
}

int stream_row(std::string_view stream) {
  const auto found =
      std::find_if(kStreams.begin(), kStreams.end(), [&](const SpokenStream& s) { return s.letter == stream; });
  return found == kStreams.end() ? static_cast<int>(kStreams.size()) : found->row;
}

std::string chrome_trace_json(const Timeline& timeline) {
  std::string json;
  const auto done = write_to(timeline, {}, [&](std::string_view part) -> Result<void> {
    json += part;
    return {};
  });
  FORESHARD_CHECK(done.has_value(), "writing to a string cannot fail");
  return json;
}

Result<void> write_chrome_trace(const Timeline& timeline, const std::string& path, const SliceArguments& arguments) {
  auto file = PackedOutput::create(path);
  if (!file) return fail(file.error());
  auto done = write_to(timeline, arguments, [&](std::string_view part) { return file->write(part); });
  if (!done) return done;
  return file->close();
}

}  // namespace foreshard
