#include "traces/formats/snapshot_writer.h"

#include <fmt/format.h>

#include <optional>
#include <vector>

#include "traces/encodings/byte_file.h"
#include "traces/encodings/pickle_writer.h"

namespace foreshard {
namespace {

std::string_view state_name(MemoryLog::State state) {
  switch (state) {
    case MemoryLog::State::Allocated: return "active_allocated";
    case MemoryLog::State::PendingFree: return "active_pending_free";
    case MemoryLog::State::Inactive: break;
  }
  return "inactive";
}

class SnapshotWriter {
 public:
  explicit SnapshotWriter(const MemoryLog& log) : log_(log), frames_(log.origins.size() + 1) {}

  std::string write() && {
    w_.begin_dict();
    key("segments");
    w_.begin_list();
    for (const MemoryLog::Segment& segment : log_.segments) add(segment);
    w_.end_list();
    key("device_traces");
    w_.begin_list();
    w_.begin_list();
    for (const MemoryLog::Event& event : log_.events) add(event);
    w_.end_list();
    w_.end_list();
    key("allocator_settings");
    w_.begin_dict();
    w_.end_dict();
    key("external_annotations");
    w_.begin_list();
    w_.end_list();
    w_.end_dict();
    return std::move(w_).finish();
  }

 private:
  void key(std::string_view name) { w_.text(name); }
  void field(std::string_view name, std::int64_t value) {
    w_.text(name);
    w_.integer(value);
  }
  void field(std::string_view name, std::string_view value) {
    w_.text(name);
    w_.text(value);
  }

  void frame(std::string_view name, std::string_view file, std::int64_t line) {
    w_.begin_dict();
    field("name", name);
    field("filename", file);
    field("line", line);
    w_.end_dict();
  }

  /// Innermost first, as PyTorch has them: what it is, whose, when.
  void frames(std::int32_t origin) {
    key("frames");
    std::optional<std::uint32_t>& known = frames_[static_cast<std::size_t>(origin + 1)];
    if (known) {
      w_.recall(*known);
      return;
    }
    w_.begin_list();
    if (origin >= 0) {
      const MemoryOrigin& from = log_.origins[static_cast<std::size_t>(origin)];
      frame(from.category, from.unit.empty() ? "root" : from.unit, from.instruction);
      frame(from.phase, from.iteration < 0 ? "wrapping" : fmt::format("iteration {}", from.iteration),
            from.instruction);
    }
    w_.end_list();
    known = w_.remember();
  }

  void add(const MemoryLog::Event& event) {
    w_.begin_dict();
    field("action", memory_action_name(event.action));
    field(event.action == MemoryAction::OutOfMemory ? "device_free" : "addr", event.address);
    field("size", event.bytes);
    field("stream", event.stream);
    field("time_us", event.time / kMicrosecond);
    frames(event.origin);
    w_.end_dict();
  }

  void add(const MemoryLog::Segment& segment) {
    w_.begin_dict();
    field("device", 0);
    field("address", segment.address);
    field("total_size", segment.bytes);
    field("allocated_size", segment.allocated);
    field("active_size", segment.active);
    field("requested_size", segment.requested);
    field("stream", segment.stream);
    field("segment_type", segment.small ? "small" : "large");
    key("segment_pool_id");
    w_.pair(0, 0);
    key("is_expandable");
    w_.boolean(segment.expandable);
    frames(-1);
    key("blocks");
    w_.begin_list();
    for (const MemoryLog::Block& block : segment.blocks) {
      w_.begin_dict();
      field("address", block.address);
      field("size", block.bytes);
      field("requested_size", block.requested);
      field("state", state_name(block.state));
      frames(block.origin);
      w_.end_dict();
    }
    w_.end_list();
    w_.end_dict();
  }

  const MemoryLog& log_;
  PickleWriter w_;
  std::vector<std::optional<std::uint32_t>> frames_;  // by origin + 1
};

}  // namespace

std::string memory_snapshot_pickle(const MemoryLog& log) { return SnapshotWriter(log).write(); }

Result<void> write_memory_snapshot(const MemoryLog& log, const std::string& path) {
  auto file = PackedOutput::create(path);
  if (!file) return fail(file.error());
  auto written = file->write(memory_snapshot_pickle(log));
  if (!written) return written;
  return file->close();
}

}  // namespace foreshard
