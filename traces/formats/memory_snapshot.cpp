#include "traces/formats/memory_snapshot.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <unordered_map>

#include "traces/encodings/pickle.h"
#include "traces/formats/chrome_slices.h"
#include "traces/timeline/timeline_builder.h"

namespace foreshard {
namespace {

constexpr std::int64_t kLargestTime = 4'000'000'000'000'000;  // microseconds
constexpr Bytes kLargestSize = Bytes{1} << 50U;

/// What one event does to the three counters.
struct Change {
  std::int64_t allocated = 0, active = 0, reserved = 0;
};

Change change_of(std::string_view action, std::int64_t size) {
  if (action == "alloc") return {size, size, 0};
  if (action == "free_requested" || action == "free") return {-size, 0, 0};
  if (action == "free_completed") return {0, -size, 0};
  if (action == "segment_alloc" || action == "segment_map") return {0, 0, size};
  if (action == "segment_free" || action == "segment_unmap") return {0, 0, -size};
  return {};
}

bool is_known(std::string_view action) {
  return action == "alloc" || action.starts_with("free") || action.starts_with("segment_") || action == "oom" ||
         action == "snapshot";
}

class SnapshotReader {
 public:
  SnapshotReader(const Pickle& pickle, const std::string& file) : p_(pickle), file_(file) {}

  Result<OpenedTrace> read() {
    const PickleValue* traces = p_.get(p_.root(), "device_traces");
    const PickleValue* segments = p_.get(p_.root(), "segments");
    if (traces == nullptr && segments == nullptr) return no_snapshot();
    const std::size_t devices = traces != nullptr ? traces->items.size() : 0;
    first_rank_ = std::max(0, rank_in_name(file_));
    for (std::size_t d = 0; d < devices; ++d) {
      const PickleValue& events = p_.at(traces->items[d]);
      if (!events.items.empty()) ++used_devices_;
    }
    for (std::size_t d = 0; d < devices; ++d) device(p_.at(traces->items[d]), static_cast<std::int64_t>(d), segments);
    if (used_devices_ == 0) only_segments(segments);
    return finish();
  }

 private:
  tl::unexpected<Error> no_snapshot() const {
    Error error;
    error.code = ErrorCode::MissingKey;
    error.message = "this pickle is no memory snapshot";
    error.file = file_;
    error.expected = "a dict with device_traces and segments";
    error.got = p_.root().type == PickleValue::Type::Dict ? "a dict without them" : "another value";
    error.hint = "torch.cuda.memory._dump_snapshot writes one";
    return fail(std::move(error));
  }

  /// Where the counters stood when the snapshot was taken.
  Change final_state(std::int64_t device, const PickleValue* segments) {
    Change state;
    if (segments == nullptr) return state;
    for (const std::uint32_t index : segments->items) {
      const PickleValue& segment = p_.at(index);
      if (p_.integer(segment, "device", 0) != device) continue;
      const auto amount = [&](std::string_view key) {
        return std::clamp<std::int64_t>(p_.integer(segment, key, 0), 0, kLargestSize);
      };
      state.allocated = std::min(kLargestSize, state.allocated + amount("allocated_size"));
      state.active = std::min(kLargestSize, state.active + amount("active_size"));
      state.reserved = std::min(kLargestSize, state.reserved + amount("total_size"));
    }
    return state;
  }

  void device(const PickleValue& events, std::int64_t device, const PickleValue* segments) {
    if (events.type != PickleValue::Type::List || events.items.empty()) return;
    rank_ = used_devices_ > 1 ? static_cast<std::int32_t>(device) : first_rank_;
    lane_ = b_.lane({LaneRole::Other, device, 0});
    b_.timeline.lanes[lane_.index()] = {rank_, "allocations", 0, fmt::format("device {}", device)};
    open_.clear();
    last_time_ = std::numeric_limits<SimTime>::min();
    const Change end = final_state(device, segments);
    Change sum;
    for (const std::uint32_t index : events.items) {
      const Change change = change_at(p_.at(index));
      sum.allocated += change.allocated, sum.active += change.active, sum.reserved += change.reserved;
    }
    now_ = segments == nullptr
               ? Change{}
               : Change{end.allocated - sum.allocated, end.active - sum.active, end.reserved - sum.reserved};
    for (const std::uint32_t index : events.items) event(p_.at(index));
    for (const auto& [address, span] : open_) close(span, last_time_);
  }

  std::int64_t size_of(const PickleValue& event) const {
    return std::clamp<std::int64_t>(p_.integer(event, "size", 0), 0, kLargestSize);
  }
  Change change_at(const PickleValue& event) const { return change_of(p_.text(event, "action"), size_of(event)); }

  SimTime time_of(const PickleValue& event) {
    const std::int64_t time = p_.integer(event, "time_us", -1);
    if (time >= 0 && time <= kLargestTime) return time * kMicrosecond;
    b_.count("events without a time: shown one microsecond after the one before");
    return last_time_ == std::numeric_limits<SimTime>::min() ? 0 : last_time_ + kMicrosecond;
  }

  void event(const PickleValue& event) {
    const std::string_view action = p_.text(event, "action");
    if (!is_known(action)) {
      b_.count("events of a kind that this reader does not know: left out", action);
      return;
    }
    SimTime time = time_of(event);
    if (time < last_time_) {
      b_.count("events whose clock runs backwards: shown at the time of the one before");
      time = last_time_;
    }
    last_time_ = time;
    const Change change = change_at(event);
    now_.allocated += change.allocated, now_.active += change.active, now_.reserved += change.reserved;
    sample("allocated", change.allocated, now_.allocated, time);
    sample("active", change.active, now_.active, time);
    sample("reserved", change.reserved, now_.reserved, time);
    if (action == "oom" || action == "snapshot") b_.timeline.marks.push_back({time, rank_, b_.name(action)});
    if (action == "alloc") open(event, time);
    if (action.starts_with("free")) {
      const auto found = open_.find(p_.integer(event, "addr", 0));
      if (found == open_.end()) return;
      close(found->second, time);
      open_.erase(found);
    }
  }

  void sample(const char* counter, std::int64_t change, std::int64_t value, SimTime time) {
    if (change != 0) b_.timeline.samples.push_back({b_.counter(rank_, counter, "bytes"), time, value});
  }

  void open(const PickleValue& event, SimTime time) {
    Span span;
    span.lane = lane_;
    span.kind = SpanKind::Annotation;
    span.start = time;
    span.bytes = size_of(event);
    span.name = b_.name(frame_of(event));
    const std::int64_t address = p_.integer(event, "addr", 0);
    if (const auto before = open_.find(address); before != open_.end()) {
      b_.count("allocations at an address that was not freed before");
      close(before->second, time);
    }
    open_[address] = span;
  }
  void close(Span span, SimTime time) {
    span.duration = time - span.start;
    b_.add(span);
  }

  /// The innermost frame with a Python file, else the innermost: "model.py:12 forward".
  std::string frame_of(const PickleValue& event) const {
    const PickleValue* frames = p_.get(event, "frames");
    if (frames == nullptr || frames->type != PickleValue::Type::List) return "allocation";
    const auto text_of = [&](const PickleValue& frame) {
      std::string_view file = p_.text(frame, "filename");
      file.remove_prefix(std::min(file.size(), file.rfind('/') + 1));
      return fmt::format("{}:{} {}", file, p_.integer(frame, "line", 0), p_.text(frame, "name"));
    };
    for (const std::uint32_t index : frames->items) {
      const PickleValue& frame = p_.at(index);
      if (p_.text(frame, "filename").ends_with(".py")) return text_of(frame);
    }
    return frames->items.empty() ? "allocation" : text_of(p_.at(frames->items.front()));
  }

  /// Recorded without history: one moment is all that is known.
  void only_segments(const PickleValue* segments) {
    rank_ = first_rank_;
    const Change end = final_state(0, segments);
    b_.timeline.samples.push_back({b_.counter(rank_, "allocated", "bytes"), 0, end.allocated});
    b_.timeline.samples.push_back({b_.counter(rank_, "active", "bytes"), 0, end.active});
    b_.timeline.samples.push_back({b_.counter(rank_, "reserved", "bytes"), 0, end.reserved});
    b_.count("the snapshot holds no events: only what was allocated in the end is shown");
  }

  Result<OpenedTrace> finish() {
    OpenedTrace opened;
    const SimTime zero = b_.finish();
    if (zero > 0) opened.origin_ns = zero;
    opened.format = "snapshot";
    opened.warnings = b_.warnings(file_);
    b_.timeline.provenance.source = b_.timeline.provenance.clock = "snapshot";
    opened.timeline = std::move(b_.timeline);
    return opened;
  }

  const Pickle& p_;
  const std::string& file_;
  TimelineBuilder b_;
  std::int32_t rank_ = 0, first_rank_ = 0;
  int used_devices_ = 0;
  LaneId lane_;
  SimTime last_time_ = 0;
  Change now_;
  std::unordered_map<std::int64_t, Span> open_;  // by address
};

}  // namespace

Result<OpenedTrace> parse_memory_snapshot(std::string_view bytes, const std::string& file) {
  const auto pickle = Pickle::parse(bytes, file);
  if (!pickle) return fail(pickle.error());
  return SnapshotReader(*pickle, file).read();
}

}  // namespace foreshard
