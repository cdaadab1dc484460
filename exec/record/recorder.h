// Recorder: what one rank's backend did and when; afterwards a Timeline of it, with the instruction of every span.
//
// A backend is given a Recorder when it is made, or none: then recording costs nothing. Each thread writes its own list
// (a span is two readings of the steady clock and 24 bytes: no lock, one allocation in thousands of spans). The lists
// are read when nothing runs: timeline() is called after Backend::synchronize().
//
//   issuer    |at 7|at 8       |at 9 |  synchronize  |      host spans, from one turn to the next
//   stream D       |==7==|  |======8======||=9=|            work, from its start to its end
//
// One clock for all ranks: align_clocks() brackets each rank's steady clock against rank 0's by rounds of all-gathers
// (a rank cannot have another's stamp before it was taken), and all times become rank 0's. The offset, its error and
// the measured cost of recording stand in Timeline::provenance.clock.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/plan.h"
#include "core/timeline.h"
#include "exec/record/memory_ledger.h"

namespace foreshard::exec {

class Communicator;

/// Nanoseconds of the steady clock, whose zero is the machine's own.
std::int64_t steady_now();

/// How a rank's clock stands to rank 0's: its own time minus `offset` is rank 0's, give or take `error`.
struct ClockAlignment {
  SimDuration offset = 0;
  SimDuration error = 0;
  SimTime origin = 0;  // on rank 0's clock: where the timeline's time is 0
  bool operator==(const ClockAlignment&) const = default;
};

struct RecordedSpan {
  std::int64_t start = 0, end = 0;  // steady clock
  std::int32_t step = 0;
  std::int32_t instruction = -1;
};

/// What a device's profiler (CUPTI) has told.
struct DeviceRecordCounts {
  std::int64_t records = 0;
  std::int64_t dropped = 0;                              // by the profiler: its buffers were full
  std::int64_t untimed = 0;                              // records without a time; left out
  std::int64_t unattributed = 0;                         // work that no instruction stands for
  std::int64_t overhead_ns = 0;                          // what the profiler says it took, and flushing it
  std::int64_t waits = 0, events = 0, memory_calls = 0;  // of the records

  void add(const DeviceRecordCounts& more);
};

/// What recording itself cost: spans times the measured cost of one, and the device's profiler.
struct RecordingCost {
  std::int64_t spans = 0, dropped = 0;  // dropped: the device's too
  double ns_per_span = 0;
  DeviceRecordCounts device;
};

/// One thread's list of spans; grows by blocks, so that no span waits for a copy of the ones before it.
class RecordedLane {
 public:
  RecordedLane(std::string stream, std::int32_t priority, std::int64_t most)
      : stream_(std::move(stream)), priority_(priority), most_(most) {}

  void add(const RecordedSpan& span) {
    if (size_ >= most_) {
      ++dropped_;
      return;
    }
    const auto at = static_cast<std::size_t>(size_++) % kBlock;
    if (at == 0) blocks_.push_back(std::make_unique<std::array<RecordedSpan, kBlock>>());
    (*blocks_.back())[at] = span;
  }

  const std::string& stream() const { return stream_; }
  std::int32_t priority() const { return priority_; }
  std::int64_t size() const { return size_; }
  std::int64_t dropped() const { return dropped_; }
  const RecordedSpan& operator[](std::int64_t i) const {
    return (*blocks_[static_cast<std::size_t>(i) / kBlock])[static_cast<std::size_t>(i) % kBlock];
  }

 private:
  static constexpr std::size_t kBlock = 4096;
  std::string stream_;
  std::int32_t priority_;
  std::int64_t most_, size_ = 0, dropped_ = 0;
  std::vector<std::unique_ptr<std::array<RecordedSpan, kBlock>>> blocks_;
};

/// A call of the driver that is no work: a wait, or memory that it hands out. It makes a span beside the plan's.
struct DriverCall {
  const char* name = "";  // as Kineto calls waits, and CUDA its own calls
  SpanKind kind = SpanKind::Wait;
  std::int64_t start = 0, end = 0;  // steady clock
  std::int32_t step = 0, instruction = -1;
  const RecordedLane* lane = nullptr;     // of the stream that waits; null: the host's
  const RecordedLane* awaited = nullptr;  // of the stream that is waited for, where known
  Bytes bytes = 0;
};

class DriverCalls {
 public:
  explicit DriverCalls(std::int64_t most) : most_(most) {}
  void add(const DriverCall& call) {
    if (static_cast<std::int64_t>(calls_.size()) < most_)
      calls_.push_back(call);
    else
      ++dropped_;
  }
  const std::vector<DriverCall>& all() const { return calls_; }
  std::int64_t dropped() const { return dropped_; }

 private:
  std::int64_t most_, dropped_ = 0;
  std::vector<DriverCall> calls_;
};

/// What is recorded of a card. Work: kernels and copies, with what the host issues. All: waits and memory too, of which
/// the host tells each and pays for it.
enum class RecordedKinds : std::uint8_t { WorkOnly, All };

class Recorder {
 public:
  /// `most_spans` of each lane are kept; the rest is counted as dropped.
  explicit Recorder(std::int64_t most_spans = std::int64_t{1} << 24);

  // ---- The backend's side. Everything but the lanes of its streams: on the issuer's thread.
  RecordedLane& add_lane(std::string_view stream, std::int32_t priority);
  void at_instruction(std::int32_t step, InstructionId instruction);
  /// The issuer has waited from `start` until now: inside an instruction it belongs to that one, else to none.
  void host_waited(std::int64_t start);
  void memory_changed(const std::vector<MemoryChange>& changes);  // in the plan's order

  /// One thread's, as a stream's lane.
  DriverCalls& driver_calls() { return driver_calls_; }
  /// New since the last call.
  void device_recorded(const DeviceRecordCounts& counts);

  // ---- The user's side, while nothing runs.
  void align(const ClockAlignment& alignment) { alignment_ = alignment; }
  const ClockAlignment& alignment() const { return alignment_; }
  RecordingCost cost() const;
  /// Spans under the ids of the plan's instructions; a repeated last iteration goes on counting, as simulate() does.
  /// Lanes, names, kinds and units are those of a prediction of the same plan. Provenance but for plan_digest, software
  /// and hardware, which the caller knows.
  Timeline timeline(const Plan& plan) const;

 private:
  friend class TimelineOfRecords;
  struct HostSpan {
    RecordedSpan span;
    bool waited = false;
  };
  void close_host_span(std::int64_t now);

  std::int64_t most_;
  std::vector<std::unique_ptr<RecordedLane>> lanes_;
  DriverCalls driver_calls_;
  std::vector<HostSpan> host_;
  std::int64_t dropped_host_ = 0;
  HostSpan current_;  // start < 0: between instructions
  std::vector<MemoryChange> memory_;
  std::vector<RecordedSpan> steps_;  // where each step begins, with its first instruction
  ClockAlignment alignment_;
  double ns_per_span_ = 0;
  DeviceRecordCounts device_;
};

/// A collective call: all ranks of the group, each with its own recorder, while nothing runs on the communicator.
void align_clocks(Recorder& recorder, Communicator& communicator);

/// Rank 0 gets everybody's text in the order of ranks, the others an empty list. A collective call; the texts are
/// bytes.
std::vector<std::string> gather_texts(const std::string& own, Communicator& communicator);

}  // namespace foreshard::exec
