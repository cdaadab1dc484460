// CUPTI's activity records to spans: pure, no call of CUPTI is made here.
//
// A launch tells its correlation id, start and end; kernels, copies and fills carry the same id. Which instruction a
// launch belongs to is told by the id that the issuer had pushed, else by where the issuer stood when the launch began.
// Records come flush by flush in any order, in different buffers and often in different flushes: what a flush has told
// is known through the next kKeptFlushes - 1.
#pragma once

#include <cupti.h>

#include <cstdint>
#include <deque>
#include <unordered_map>
#include <vector>

#include "exec/record/recorder.h"

namespace foreshard::exec {

inline constexpr CUpti_ExternalCorrelationKind kIssuersCorrelation = CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0;

/// A place in a run, as one number for CUPTI. instruction -1: none.
struct IssuedAt {
  std::int32_t step = 0, instruction = -1;
  std::uint64_t packed() const {
    return (static_cast<std::uint64_t>(static_cast<std::uint32_t>(step)) << 32) |
           static_cast<std::uint32_t>(instruction);
  }
  static IssuedAt unpacked(std::uint64_t place) {
    return {static_cast<std::int32_t>(place >> 32), static_cast<std::int32_t>(place & 0xffffffffU)};
  }
};

/// When the issuer came to which place, on the clock of the records.
struct Turn {
  std::int64_t time = 0;
  std::uint64_t place = 0;
};

using StreamLanes = std::unordered_map<std::uint32_t, RecordedLane*>;  // by CUPTI's id of the stream

class DeviceRecordReader {
 public:
  static constexpr std::size_t kKeptFlushes = 8;

  /// One record of the current flush, any kind.
  void read(const CUpti_Activity& record);

  /// Gives what ran on the streams of `lanes` to them and, where `calls` is not null, waits and memory to it. `turns`
  /// are those since the last flush, ascending. `last`: nothing comes behind, and what has no launch is unattributed.
  DeviceRecordCounts end_flush(const std::vector<Turn>& turns, const StreamLanes& lanes, DriverCalls* calls, bool last);

 private:
  /// Of kernels, copies and fills: what ran on a stream.
  struct OnDevice {
    std::uint32_t correlation = 0;
    std::uint32_t stream = 0;
    std::int64_t start = 0, end = 0;
    std::size_t waited = 0;  // flushes, for the record of its launch
  };
  struct HostCall {
    std::int64_t start = 0, end = 0;
  };
  /// A call of the driver before its streams and its instruction are known.
  struct UnplacedCall {
    DriverCall call;
    std::uint32_t correlation = 0;
    std::uint32_t stream = CUPTI_INVALID_STREAM_ID;   // that waits
    std::uint32_t awaited = CUPTI_INVALID_STREAM_ID;  // that is waited for
    std::uint64_t event = 0;                          // or the record of an event; 0: none
  };
  /// What one flush told.
  struct Links {
    std::unordered_map<std::uint32_t, HostCall> calls;
    std::unordered_map<std::uint32_t, std::uint64_t> places;
    std::unordered_map<std::uint64_t, std::uint32_t> events;  // streams, by the record's own number
    std::size_t turns = 0;
  };

  template <class Record>
  void keep_device(const CUpti_Activity& record);
  void keep_wait(const CUpti_Activity& record);
  void keep_memory(const CUpti_Activity& record);
  void assign(const StreamLanes& lanes, bool last);
  void place_calls(const StreamLanes& lanes, DriverCalls& calls);
  void forget();

  template <class Key, class Value>
  const Value* find(std::unordered_map<Key, Value> Links::*map, Key key) const;
  bool linked(const OnDevice& record) const;
  IssuedAt place_of(const OnDevice& record) const;
  IssuedAt turn_at(std::int64_t time) const;

  std::deque<Links> links_{Links()};  // the newest last
  std::deque<Turn> turns_;            // of those flushes
  std::vector<OnDevice> device_;
  std::vector<UnplacedCall> calls_;
  DeviceRecordCounts counts_;
};

}  // namespace foreshard::exec
