#include "exec/record/device_record_reader.h"

#include <algorithm>
#include <utility>

namespace foreshard::exec {
namespace {

/// Of waits; null: of a kind that this header does not know.
const char* wait_name(CUpti_ActivitySynchronizationType type) {
  switch (type) {
    case CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_EVENT_SYNCHRONIZE: return "Event Sync";
    case CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_WAIT_EVENT: return "Stream Wait Event";
    case CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_SYNCHRONIZE: return "Stream Sync";
    case CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_CONTEXT_SYNCHRONIZE: return "Context Sync";
    default: return nullptr;
  }
}

/// Null: memory that no call has asked for, as that of a module's variables.
const char* memory_call_name(const CUpti_ActivityMemory4& record) {
  const bool takes = record.memoryOperationType == CUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_ALLOCATION;
  if (!takes && record.memoryOperationType != CUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_RELEASE) return nullptr;
  switch (record.memoryKind) {
    case CUPTI_ACTIVITY_MEMORY_KIND_PINNED: return takes ? "cudaHostAlloc" : "cudaFreeHost";
    case CUPTI_ACTIVITY_MEMORY_KIND_MANAGED: return takes ? "cudaMallocManaged" : "cudaFree";
    case CUPTI_ACTIVITY_MEMORY_KIND_DEVICE:
      return record.isAsync != 0 ? (takes ? "cudaMallocAsync" : "cudaFreeAsync") : (takes ? "cudaMalloc" : "cudaFree");
    default: return nullptr;
  }
}

template <class Record>
const Record& as(const CUpti_Activity& record) {
  return reinterpret_cast<const Record&>(record);
}

}  // namespace

void DeviceRecordReader::read(const CUpti_Activity& record) {
  ++counts_.records;
  Links& now = links_.back();
  switch (record.kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: return keep_device<CUpti_ActivityKernel10>(record);
    case CUPTI_ACTIVITY_KIND_MEMCPY: return keep_device<CUpti_ActivityMemcpy6>(record);
    case CUPTI_ACTIVITY_KIND_MEMCPY2: return keep_device<CUpti_ActivityMemcpyPtoP4>(record);
    case CUPTI_ACTIVITY_KIND_MEMSET: return keep_device<CUpti_ActivityMemset4>(record);
    case CUPTI_ACTIVITY_KIND_SYNCHRONIZATION: return keep_wait(record);
    case CUPTI_ACTIVITY_KIND_MEMORY2: return keep_memory(record);
    case CUPTI_ACTIVITY_KIND_RUNTIME:
    case CUPTI_ACTIVITY_KIND_DRIVER: {
      const auto& call = as<CUpti_ActivityAPI>(record);
      now.calls.try_emplace(call.correlationId,
                            HostCall{static_cast<std::int64_t>(call.start), static_cast<std::int64_t>(call.end)});
      return;
    }
    case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION: {
      const auto& link = as<CUpti_ActivityExternalCorrelation>(record);
      if (link.externalKind == kIssuersCorrelation) now.places[link.correlationId] = link.externalId;
      return;
    }
    case CUPTI_ACTIVITY_KIND_OVERHEAD: {
      const auto& overhead = as<CUpti_ActivityOverhead3>(record);
      counts_.overhead_ns += static_cast<std::int64_t>(overhead.end - overhead.start);
      return;
    }
    case CUPTI_ACTIVITY_KIND_CUDA_EVENT: {
      const auto& event = as<CUpti_ActivityCudaEvent2>(record);
      if (event.cudaEventSyncId != CUPTI_SYNCHRONIZATION_INVALID_VALUE)
        now.events[event.cudaEventSyncId] = event.streamId;
      ++counts_.events;
      return;
    }
    default: return;
  }
}

DeviceRecordCounts DeviceRecordReader::end_flush(const std::vector<Turn>& turns, const StreamLanes& lanes,
                                                 DriverCalls* calls, bool last) {
  const bool brought = counts_.records > 0;
  turns_.insert(turns_.end(), turns.begin(), turns.end());
  links_.back().turns += turns.size();
  for (OnDevice& record : device_) record.waited += brought ? 1 : 0;
  assign(lanes, last);
  if (calls != nullptr) place_calls(lanes, *calls);
  if (brought) forget();  // a flush that brings nothing makes nothing old
  return std::exchange(counts_, {});
}

/// What the oldest flush told. A turn stays as long as it may be the last one before a call.
void DeviceRecordReader::forget() {
  links_.emplace_back();
  if (links_.size() <= kKeptFlushes) return;
  const std::size_t old = std::min(links_.front().turns, turns_.empty() ? 0 : turns_.size() - 1);
  turns_.erase(turns_.begin(), turns_.begin() + static_cast<std::ptrdiff_t>(old));
  links_.pop_front();
}

void DeviceRecordReader::keep_wait(const CUpti_Activity& record) {
  const auto& wait = as<CUpti_ActivitySynchronization2>(record);
  const char* name = wait_name(wait.type);
  ++counts_.waits;
  if (wait.start == 0 || wait.end < wait.start) {
    ++counts_.untimed;
    return;
  }
  if (name == nullptr) return;
  UnplacedCall& made = calls_.emplace_back();
  made.call.name = name;
  made.call.start = static_cast<std::int64_t>(wait.start);
  made.call.end = static_cast<std::int64_t>(wait.end);
  made.correlation = wait.correlationId;
  if (wait.type == CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_WAIT_EVENT) made.stream = wait.streamId;
  if (wait.type == CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_SYNCHRONIZE) made.awaited = wait.streamId;
  if (wait.type == CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_WAIT_EVENT ||
      wait.type == CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_EVENT_SYNCHRONIZE)
    made.event = wait.cudaEventSyncId;
}

void DeviceRecordReader::keep_memory(const CUpti_Activity& record) {
  const auto& memory = as<CUpti_ActivityMemory4>(record);
  const char* name = memory_call_name(memory);
  ++counts_.memory_calls;
  if (memory.timestamp == 0) {
    ++counts_.untimed;
    return;
  }
  if (name == nullptr) return;
  UnplacedCall& made = calls_.emplace_back();
  made.call.name = name;
  made.call.kind = SpanKind::Annotation;
  made.call.start = made.call.end = static_cast<std::int64_t>(memory.timestamp);
  made.call.bytes = static_cast<Bytes>(memory.bytes);
  made.correlation = memory.correlationId;
}

template <class Record>
void DeviceRecordReader::keep_device(const CUpti_Activity& record) {
  const auto& device = as<Record>(record);
  if (device.start == 0 || device.end < device.start) {
    ++counts_.untimed;
    return;
  }
  device_.push_back({device.correlationId, device.streamId, static_cast<std::int64_t>(device.start),
                     static_cast<std::int64_t>(device.end)});
}

void DeviceRecordReader::assign(const StreamLanes& lanes, bool last) {
  std::sort(device_.begin(), device_.end(), [](const OnDevice& a, const OnDevice& b) { return a.start < b.start; });
  std::vector<OnDevice> early;
  for (const OnDevice& record : device_) {
    const IssuedAt place = place_of(record);
    const auto lane = lanes.find(record.stream);
    if (lane != lanes.end() && place.instruction >= 0) {
      lane->second->add({record.start, record.end, place.step, place.instruction});
    } else if (lane != lanes.end() && !linked(record) && !last && record.waited + 1 < kKeptFlushes) {
      early.push_back(record);  // before the record of its launch
    } else {
      ++counts_.unattributed;
    }
  }
  device_ = std::move(early);
}

/// These are stamped on the host's clock: the turn tells the instruction where nothing was pushed.
void DeviceRecordReader::place_calls(const StreamLanes& lanes, DriverCalls& calls) {
  const auto lane_of = [&](std::uint32_t stream) -> const RecordedLane* {
    const auto found = lanes.find(stream);
    return found != lanes.end() ? found->second : nullptr;
  };
  for (UnplacedCall& made : calls_) {
    DriverCall& call = made.call;
    call.lane = lane_of(made.stream);
    if (made.stream != CUPTI_INVALID_STREAM_ID && call.lane == nullptr) continue;  // of a library's own stream
    const std::uint32_t* recorded_on = made.event != 0 ? find(&Links::events, made.event) : nullptr;
    call.awaited = lane_of(recorded_on != nullptr ? *recorded_on : made.awaited);
    const HostCall* api = find(&Links::calls, made.correlation);
    if (call.kind == SpanKind::Annotation && api != nullptr && api->end >= api->start && api->start > 0) {
      call.start = api->start;  // the record has a moment only
      call.end = api->end;
    }
    const std::uint64_t* pushed = find(&Links::places, made.correlation);
    const IssuedAt place = pushed != nullptr ? IssuedAt::unpacked(*pushed) : turn_at(call.start);
    call.step = place.step;
    call.instruction = place.instruction;
    calls.add(call);
  }
  calls_.clear();
}

template <class Key, class Value>
const Value* DeviceRecordReader::find(std::unordered_map<Key, Value> Links::*map, Key key) const {
  for (auto links = links_.rbegin(); links != links_.rend(); ++links) {
    if (const auto found = ((*links).*map).find(key); found != ((*links).*map).end()) return &found->second;
  }
  return nullptr;
}

bool DeviceRecordReader::linked(const OnDevice& record) const {
  return find(&Links::places, record.correlation) != nullptr || find(&Links::calls, record.correlation) != nullptr;
}

IssuedAt DeviceRecordReader::place_of(const OnDevice& record) const {
  if (const std::uint64_t* pushed = find(&Links::places, record.correlation)) return IssuedAt::unpacked(*pushed);
  const HostCall* call = find(&Links::calls, record.correlation);
  return call == nullptr ? IssuedAt() : turn_at(call->start);
}

IssuedAt DeviceRecordReader::turn_at(std::int64_t time) const {
  const auto next = std::upper_bound(turns_.begin(), turns_.end(), time,
                                     [](std::int64_t moment, const Turn& turn) { return moment < turn.time; });
  return next == turns_.begin() ? IssuedAt() : IssuedAt::unpacked(std::prev(next)->place);
}

}  // namespace foreshard::exec
