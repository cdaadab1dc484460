#include "traces/formats/nsys.h"

#include <fmt/core.h>
#include <sqlite3.h>

#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "traces/formats/chrome_slices.h"
#include "traces/timeline/merged_timeline.h"
#include "traces/timeline/timeline_builder.h"
#include "traces/timeline/trace_names.h"
#include "traces/timeline/trace_roles.h"

namespace foreshard {
namespace {

using Database = std::unique_ptr<sqlite3, int (*)(sqlite3*)>;

constexpr std::int64_t kLargestNsysTime = 4'000'000'000'000'000'000;
constexpr int kMostMillionSteps = 100'000;  // of SQLite's machine: beyond it the file is no honest one

/// One question; rows by next().
class Query {
 public:
  Query(sqlite3* database, const std::string& text) {
    if (sqlite3_prepare_v2(database, text.c_str(), -1, &statement_, nullptr) != SQLITE_OK) statement_ = nullptr;
  }
  ~Query() { sqlite3_finalize(statement_); }
  Query(const Query&) = delete;
  Query& operator=(const Query&) = delete;

  bool valid() const { return statement_ != nullptr; }
  bool next() {
    if (statement_ == nullptr) return false;
    code_ = sqlite3_step(statement_);
    return code_ == SQLITE_ROW;
  }
  bool damaged() const { return code_ != SQLITE_ROW && code_ != SQLITE_DONE; }
  std::int64_t integer(int column, std::int64_t otherwise = 0) const {
    return sqlite3_column_type(statement_, column) == SQLITE_NULL ? otherwise
                                                                  : sqlite3_column_int64(statement_, column);
  }
  bool is_null(int column) const { return sqlite3_column_type(statement_, column) == SQLITE_NULL; }
  std::string_view text(int column) const {
    const auto* bytes = reinterpret_cast<const char*>(sqlite3_column_text(statement_, column));
    return bytes != nullptr
               ? std::string_view(bytes, static_cast<std::size_t>(sqlite3_column_bytes(statement_, column)))
               : std::string_view();
  }

 private:
  sqlite3_stmt* statement_ = nullptr;
  int code_ = SQLITE_DONE;
};

// globalTid and globalPid: hardware and machine above bit 48, process in bits 24 to 47, thread below.
std::int64_t process_of(std::int64_t global) { return global >> 24 & 0xffffff; }
std::int64_t thread_of(std::int64_t global) { return global & 0xffffff; }

std::string_view copy_name(std::int64_t kind) {
  switch (kind) {
    case 1: return "Memcpy HtoD";
    case 2: return "Memcpy DtoH";
    case 8: return "Memcpy DtoD";
    case 10: return "Memcpy PtoP";
    default: return "Memcpy";
  }
}

class NsysReader {
 public:
  NsysReader(sqlite3* database, std::string file, const OpenOptions& options)
      : db_(database), file_(std::move(file)), options_(options) {}

  Result<OpenedTrace> read() {
    find_tables();
    if (tables_.empty()) return no_export("a database without tables");
    const bool any = tables_.contains("CUPTI_ACTIVITY_KIND_KERNEL") ||
                     tables_.contains("CUPTI_ACTIVITY_KIND_RUNTIME") || tables_.contains("NVTX_EVENTS");
    if (!any) return no_export("a database without nsys' tables");
    read_strings();
    kernels();
    copies();
    memsets();
    calls();
    ranges();
    if (cancelled_) return cancelled();
    return finish();
  }

 private:
  tl::unexpected<Error> no_export(std::string got) const {
    Error error;
    error.code = ErrorCode::BadSyntax;
    error.message = "this sqlite file is no nsys export";
    error.file = file_;
    error.expected = "tables CUPTI_ACTIVITY_KIND_KERNEL, CUPTI_ACTIVITY_KIND_RUNTIME or NVTX_EVENTS";
    error.got = std::move(got);
    error.hint = "nsys export --type sqlite report.nsys-rep writes one";
    return fail(std::move(error));
  }
  tl::unexpected<Error> cancelled() const {
    Error error;
    error.code = ErrorCode::Usage;
    error.message = "reading was stopped";
    error.expected = "to be read to its end";
    error.file = file_;
    return fail(std::move(error));
  }

  void find_tables() {
    Query names(db_, "SELECT name FROM sqlite_master WHERE type = 'table'");
    while (names.next()) tables_.emplace(names.text(0));
  }

  /// The columns that the table has, others as NULL.
  std::string columns(const std::string& table, const std::vector<std::string>& wanted) {
    std::set<std::string> there;
    Query about(db_, fmt::format("PRAGMA table_info({})", table));
    while (about.next()) there.emplace(about.text(1));
    std::string list;
    for (const std::string& column : wanted)
      list += fmt::format("{}{}", list.empty() ? "" : ", ", there.contains(column) ? column : "NULL");
    return list;
  }

  /// Every row of a table, as far as memory and the caller allow.
  template <class Row>
  void each(const std::string& table, const std::vector<std::string>& wanted, double fraction, const Row& row) {
    if (cancelled_ || !tables_.contains(table)) return;
    if (options_.progress && !options_.progress(fraction)) cancelled_ = true;
    Query query(db_, fmt::format("SELECT {} FROM {}", columns(table, wanted), table));
    std::size_t count = 0;
    while (!cancelled_ && query.next()) {
      row(query);
      if (++count % 65'536 != 0) continue;
      if (bytes() > options_.memory_limit) {
        notes_.insert("the rest is left out: too many slices for the memory limit");
        return;
      }
      if (options_.progress && !options_.progress(fraction)) cancelled_ = true;
    }
    if (query.damaged() || !query.valid())
      notes_.insert(fmt::format("the table {} cannot be read to its end: shown is what is there", table));
  }

  std::uint64_t bytes() const {
    std::uint64_t sum = 0;
    for (const auto& [process, builder] : builders_) sum += builder.bytes();
    return sum;
  }

  void read_strings() {
    each("StringIds", {"id", "value"}, 0.0, [&](const Query& q) { strings_[q.integer(0)] = q.text(1); });
  }
  std::string_view string(std::int64_t id) const {
    const auto found = strings_.find(id);
    return found != strings_.end() ? std::string_view(found->second) : "unnamed";
  }

  /// Of columns 0 and 1; false (and counted) if they cannot be shown.
  bool time(TimelineBuilder& b, const Query& q, Span& span, std::string_view name) {
    const std::int64_t start = q.integer(0, -1), end = q.integer(1, start);
    const char* wrong = q.is_null(0) ? "slices without a time: left out"
                        : start < -kLargestNsysTime || end > kLargestNsysTime
                            ? "slices with a time that cannot be: left out"
                        : end < start ? "slices with a negative duration: left out"
                                      : nullptr;
    if (wrong != nullptr) {
      b.count(wrong, name);
      ++b.timeline.provenance.dropped_records;
      return false;
    }
    span.start = start;
    span.duration = end - start;
    span.name = b.name(name);
    return true;
  }

  /// Columns: start, end, deviceId, streamId, correlationId, globalPid, then the table's own.
  void device_row(const Query& q, std::string_view name, SpanKind kind, Bytes bytes) {
    TimelineBuilder& b = builders_[process_of(q.integer(5))];
    Span span;
    if (!time(b, q, span, name)) return;
    span.lane = b.lane({LaneRole::Device, q.integer(2), q.integer(3)});
    span.kind = kind;
    span.bytes = bytes;
    b.add(span, q.integer(4, -1));
  }

  void kernels() {
    each("CUPTI_ACTIVITY_KIND_KERNEL",
         {"start", "end", "deviceId", "streamId", "correlationId", "globalPid", "demangledName", "shortName"}, 0.1,
         [&](const Query& q) {
           const std::string_view name = string(q.is_null(6) ? q.integer(7) : q.integer(6));
           device_row(q, name, device_work_kind(name), 0);
         });
  }
  void copies() {
    each("CUPTI_ACTIVITY_KIND_MEMCPY",
         {"start", "end", "deviceId", "streamId", "correlationId", "globalPid", "copyKind", "bytes"}, 0.4,
         [&](const Query& q) { device_row(q, copy_name(q.integer(6)), SpanKind::Copy, q.integer(7)); });
  }
  void memsets() {
    each("CUPTI_ACTIVITY_KIND_MEMSET", {"start", "end", "deviceId", "streamId", "correlationId", "globalPid", "bytes"},
         0.5, [&](const Query& q) { device_row(q, "Memset", SpanKind::Memset, q.integer(6)); });
  }
  void calls() {
    each("CUPTI_ACTIVITY_KIND_RUNTIME", {"start", "end", "globalTid", "correlationId", "nameId"}, 0.6,
         [&](const Query& q) {
           TimelineBuilder& b = builders_[process_of(q.integer(2))];
           const std::string_view name = string(q.integer(4, -1));
           Span span;
           if (!time(b, q, span, name)) return;
           span.lane = b.lane({LaneRole::Host, process_of(q.integer(2)), thread_of(q.integer(2))});
           span.kind = is_waiting_call(name) ? SpanKind::HostWait : SpanKind::HostIssue;
           b.add(span, q.integer(3, -1));
         });
  }
  /// Types 59 and 60: ranges pushed and popped, started and ended; 34: a mark.
  void ranges() {
    each("NVTX_EVENTS", {"start", "end", "globalTid", "eventType", "text", "textId"}, 0.8, [&](const Query& q) {
      const std::int64_t type = q.integer(3, 59);
      if (type != 59 && type != 60 && type != 34) return;
      TimelineBuilder& b = builders_[process_of(q.integer(2))];
      const std::string_view name = q.is_null(4) ? string(q.integer(5, -1)) : q.text(4);
      Span span;
      if (!time(b, q, span, name)) return;
      span.lane = b.lane({LaneRole::Host, process_of(q.integer(2)), thread_of(q.integer(2))});
      span.kind = SpanKind::Annotation;
      b.add(span);
    });
  }

  std::string first_text(const char* table, const std::string& column) {
    if (!tables_.contains(table)) return {};
    Query query(db_, fmt::format("SELECT {} FROM {} LIMIT 1", columns(table, {column}), table));
    return query.next() ? std::string(query.text(0)) : std::string();
  }

  Result<OpenedTrace> finish() {
    OpenedTrace opened;
    opened.format = "nsys";
    std::vector<Timeline> timelines;
    std::vector<SimTime> zeros;
    const std::string hardware = first_text("TARGET_INFO_GPU", "name");
    std::int32_t rank = std::max(0, rank_in_name(file_));
    for (auto& [process, builder] : builders_) {
      zeros.push_back(builder.finish());
      for (std::size_t i = 0; i < builder.lanes.size(); ++i)
        builder.timeline.lanes[i].label = fmt::format(
            "{} {}", builder.lanes[i].role == LaneRole::Device ? "stream" : "thread", builder.lanes[i].thread);
      assign_roles(builder, rank++);
      builder.timeline.provenance.source = builder.timeline.provenance.clock = "nsys";
      builder.timeline.provenance.hardware = hardware;
      for (TraceWarning& warning : builder.warnings(file_)) opened.warnings.push_back(std::move(warning));
      timelines.push_back(std::move(builder.timeline));
    }
    // Processes of one report share a clock.
    SimTime zero = std::numeric_limits<SimTime>::max();
    for (std::size_t i = 0; i < zeros.size(); ++i) zero = timelines[i].spans.empty() ? zero : std::min(zero, zeros[i]);
    for (std::size_t i = 0; i < zeros.size(); ++i) {
      for (Span& span : timelines[i].spans) span.start += zeros[i] - zero;
      for (TimeMark& mark : timelines[i].marks) mark.time += zeros[i] - zero;
    }
    if (!timelines.empty()) opened.timeline = merge_timelines(timelines);
    if (tables_.contains("TARGET_INFO_SESSION_START_TIME") && zero != std::numeric_limits<SimTime>::max()) {
      Query start(db_, fmt::format("SELECT {} FROM TARGET_INFO_SESSION_START_TIME LIMIT 1",
                                   columns("TARGET_INFO_SESSION_START_TIME", {"utcEpochNs"})));
      if (start.next() && start.integer(0) > 0 && start.integer(0) < kLargestNsysTime)
        opened.origin_ns = start.integer(0) + zero;
    }
    for (const std::string& note : notes_) opened.warnings.push_back({file_, note});
    return opened;
  }

  sqlite3* db_;
  std::string file_;
  const OpenOptions& options_;
  std::set<std::string, std::less<>> tables_, notes_;
  std::map<std::int64_t, std::string> strings_;
  std::map<std::int64_t, TimelineBuilder> builders_;  // by process
  bool cancelled_ = false;
};

/// A damaged database may make a question endless.
int count_steps(void* counter) { return ++*static_cast<int*>(counter) > kMostMillionSteps ? 1 : 0; }

Result<OpenedTrace> read_database(sqlite3* database, const std::string& file, const OpenOptions& options) {
  int steps = 0;
  sqlite3_progress_handler(database, 1'000'000, &count_steps, &steps);
  return NsysReader(database, file, options).read();
}

tl::unexpected<Error> cannot_open(sqlite3* database, const std::string& file) {
  Error error;
  error.code = ErrorCode::NotFound;
  error.message = "the sqlite file cannot be opened";
  error.expected = "an sqlite file that can be read";
  error.file = file;
  error.got = database != nullptr ? sqlite3_errmsg(database) : "no memory";
  return fail(std::move(error));
}

}  // namespace

Result<OpenedTrace> read_nsys(const std::string& path, const OpenOptions& options) {
  sqlite3* opened = nullptr;
  const int code = sqlite3_open_v2(path.c_str(), &opened, SQLITE_OPEN_READONLY, nullptr);
  const Database database(opened, &sqlite3_close);
  if (code != SQLITE_OK) return cannot_open(opened, path);
  return read_database(opened, path, options);
}

Result<OpenedTrace> parse_nsys(std::string_view bytes, const std::string& file, const OpenOptions& options) {
  sqlite3* opened = nullptr;
  const int code = sqlite3_open_v2(":memory:", &opened, SQLITE_OPEN_READWRITE, nullptr);
  const Database database(opened, &sqlite3_close);
  if (code != SQLITE_OK) return cannot_open(opened, file);
  auto* copy = static_cast<unsigned char*>(sqlite3_malloc64(bytes.size() + 1));
  if (copy == nullptr) return cannot_open(nullptr, file);
  if (!bytes.empty()) std::memcpy(copy, bytes.data(), bytes.size());
  const auto size = static_cast<sqlite3_int64>(bytes.size());
  if (sqlite3_deserialize(opened, "main", copy, size, size,
                          SQLITE_DESERIALIZE_FREEONCLOSE | SQLITE_DESERIALIZE_READONLY) != SQLITE_OK)
    return cannot_open(opened, file);
  return read_database(opened, file, options);
}

}  // namespace foreshard
