#include "exec/record/cupti_recorder.h"

#include <cuda_runtime_api.h>
#include <cupti.h>
#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <utility>

namespace foreshard::exec {
namespace {

constexpr std::size_t kBufferBytes = std::size_t{4} << 20;  // of the size that CUPTI advises: 1 to 10 MB
constexpr std::size_t kBufferAlignment = 8;
constexpr std::size_t kPreparedBuffers = 4;

/// Of kernels, copies and fills: what ran on a stream.
struct DeviceRecord {
  std::uint32_t correlation = 0;
  std::uint32_t stream = 0;
  std::int64_t start = 0, end = 0;
  bool waited = false;  // through one flush, for the record of its launch
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

/// CUPTI's buffers. Requests come while a launch waits for them, so they are made before; what CUPTI still holds at the
/// end of the process is left to it.
class BufferPool {
 public:
  BufferPool() {
    for (std::size_t i = 0; i < kPreparedBuffers; ++i) free_.push_back(make());
  }
  std::uint8_t* take() {
    std::lock_guard lock(mutex_);
    if (free_.empty()) return make();
    std::uint8_t* buffer = free_.back();
    free_.pop_back();
    return buffer;
  }
  void complete(std::uint8_t* buffer, std::size_t valid) {
    std::lock_guard lock(mutex_);
    complete_.emplace_back(buffer, valid);
  }
  std::vector<std::pair<std::uint8_t*, std::size_t>> take_complete() {
    std::lock_guard lock(mutex_);
    return std::exchange(complete_, {});
  }
  void give_back(std::uint8_t* buffer) {
    std::lock_guard lock(mutex_);
    free_.push_back(buffer);
  }

 private:
  static std::uint8_t* make() {
    auto* buffer = static_cast<std::uint8_t*>(std::aligned_alloc(kBufferAlignment, kBufferBytes));
    for (std::size_t at = 0; buffer != nullptr && at < kBufferBytes; at += 4096) buffer[at] = 0;  // faults its pages in
    return buffer;
  }

  std::mutex mutex_;
  std::vector<std::uint8_t*> free_;
  std::vector<std::pair<std::uint8_t*, std::size_t>> complete_;
};

BufferPool& buffers() {
  static auto* pool = new BufferPool;  // never destroyed: CUPTI may still hold its buffers
  return *pool;
}

void CUPTIAPI request_buffer(std::uint8_t** buffer, std::size_t* size, std::size_t* max_records) {
  *buffer = buffers().take();
  *size = kBufferBytes;
  *max_records = 0;
}

void CUPTIAPI buffer_complete(CUcontext, std::uint32_t, std::uint8_t* buffer, std::size_t, std::size_t valid) {
  buffers().complete(buffer, valid);
}

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

std::uint64_t CUPTIAPI timestamp() { return static_cast<std::uint64_t>(steady_now()); }

void CUPTIAPI no_callback(void*, CUpti_CallbackDomain, CUpti_CallbackId, const void*) {}

Error cupti_error(const char* call, CUptiResult result) {
  const char* text = nullptr;
  cuptiGetResultString(result, &text);
  std::string hint = "the run goes on without device spans";
  if (result == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED) {
    hint = "another profiler (nsys, ncu, Kineto) holds CUPTI in this process; " + hint;
  } else if (result == CUPTI_ERROR_INSUFFICIENT_PRIVILEGES) {
    hint = "set NVreg_RestrictProfilingToAdminUsers=0 for the nvidia module (ERR_NVGPUCTRPERM); " + hint;
  } else if (result == CUPTI_ERROR_NOT_INITIALIZED || result == CUPTI_ERROR_UNKNOWN) {
    hint = "is there a GPU and its driver (nvidia-smi)? " + hint;
  }
  return Error{.code = ErrorCode::Unsupported,
               .message = fmt::format("CUPTI cannot record: {}", text != nullptr ? text : "unknown error"),
               .place = call,
               .expected = "a driver that lets this process record",
               .hint = std::move(hint)};
}

/// "id of an instruction in a step", as one number for CUPTI.
std::uint64_t packed(std::int32_t step, std::int32_t instruction) {
  return (static_cast<std::uint64_t>(static_cast<std::uint32_t>(step)) << 32) | static_cast<std::uint32_t>(instruction);
}

/// When the issuer came to which instruction.
struct Turn {
  std::int64_t time = 0;
  std::uint64_t instruction = 0;
};

using Buffers = std::vector<std::pair<std::uint8_t*, std::size_t>>;
using Lanes = std::unordered_map<std::uint32_t, RecordedLane*>;  // by CUPTI's id of the stream

/// Records to spans, flush by flush. A launch's records lie in different buffers, in any order, and may come with
/// different flushes: what one has told is known until the end of the next. One thread at a time.
class RecordReader {
 public:
  /// `last`: nothing comes behind.
  void take(const Buffers& complete, const std::vector<Turn>& turns, const Lanes& lanes, DriverCalls* calls, bool last,
            DeviceRecordCounts& counts) {
    if (!complete.empty()) {  // a flush that brings nothing makes nothing old
      before_ = std::exchange(now_, {});
      const std::size_t old = std::min(turns_.size() - new_turns_, turns_.empty() ? 0 : turns_.size() - 1);
      turns_.erase(turns_.begin(), turns_.begin() + static_cast<std::ptrdiff_t>(old));
      new_turns_ = 0;
    }
    turns_.insert(turns_.end(), turns.begin(), turns.end());
    new_turns_ += turns.size();
    for (const auto& [buffer, valid] : complete) {
      read(buffer, valid, counts);
      buffers().give_back(buffer);
    }
    assign(lanes, !complete.empty(), last, counts);
    if (calls != nullptr) place_calls(lanes, *calls);
  }

 private:
  struct Links {
    std::unordered_map<std::uint32_t, HostCall> calls;
    std::unordered_map<std::uint32_t, std::uint64_t> instructions;
    std::unordered_map<std::uint64_t, std::uint32_t> events;  // streams, by the record's own number
  };

  /// First pass: records of one launch may lie in different buffers, in any order.
  void read(std::uint8_t* buffer, std::size_t valid, DeviceRecordCounts& counts) {
    CUpti_Activity* record = nullptr;
    while (cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) {
      ++counts.records;
      switch (record->kind) {
        case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: keep_device<CUpti_ActivityKernel10>(record, counts); break;
        case CUPTI_ACTIVITY_KIND_MEMCPY: keep_device<CUpti_ActivityMemcpy6>(record, counts); break;
        case CUPTI_ACTIVITY_KIND_MEMCPY2: keep_device<CUpti_ActivityMemcpyPtoP4>(record, counts); break;
        case CUPTI_ACTIVITY_KIND_MEMSET: keep_device<CUpti_ActivityMemset4>(record, counts); break;
        case CUPTI_ACTIVITY_KIND_RUNTIME:
        case CUPTI_ACTIVITY_KIND_DRIVER: {
          const auto* call = reinterpret_cast<const CUpti_ActivityAPI*>(record);
          now_.calls.try_emplace(call->correlationId, HostCall{static_cast<std::int64_t>(call->start),
                                                               static_cast<std::int64_t>(call->end)});
          break;
        }
        case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION: {
          const auto* link = reinterpret_cast<const CUpti_ActivityExternalCorrelation*>(record);
          if (link->externalKind == CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0) {
            now_.instructions[link->correlationId] = link->externalId;
          }
          break;
        }
        case CUPTI_ACTIVITY_KIND_OVERHEAD: {
          const auto* overhead = reinterpret_cast<const CUpti_ActivityOverhead3*>(record);
          counts.overhead_ns += static_cast<std::int64_t>(overhead->end - overhead->start);
          break;
        }
        case CUPTI_ACTIVITY_KIND_SYNCHRONIZATION: keep_wait(record, counts); break;
        case CUPTI_ACTIVITY_KIND_CUDA_EVENT: {
          const auto* event = reinterpret_cast<const CUpti_ActivityCudaEvent2*>(record);
          if (event->cudaEventSyncId != CUPTI_SYNCHRONIZATION_INVALID_VALUE)
            now_.events[event->cudaEventSyncId] = event->streamId;
          ++counts.events;
          break;
        }
        case CUPTI_ACTIVITY_KIND_MEMORY2: keep_memory(record, counts); break;
        default: break;
      }
    }
  }

  void keep_wait(const CUpti_Activity* record, DeviceRecordCounts& counts) {
    const auto* wait = reinterpret_cast<const CUpti_ActivitySynchronization2*>(record);
    const char* name = wait_name(wait->type);
    ++counts.waits;
    if (wait->start == 0 || wait->end < wait->start) {
      ++counts.untimed;
      return;
    }
    if (name == nullptr) return;
    UnplacedCall& made = calls_.emplace_back();
    made.call.name = name;
    made.call.start = static_cast<std::int64_t>(wait->start);
    made.call.end = static_cast<std::int64_t>(wait->end);
    made.correlation = wait->correlationId;
    if (wait->type == CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_WAIT_EVENT) made.stream = wait->streamId;
    if (wait->type == CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_SYNCHRONIZE) made.awaited = wait->streamId;
    if (wait->type == CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_WAIT_EVENT ||
        wait->type == CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_EVENT_SYNCHRONIZE)
      made.event = wait->cudaEventSyncId;
  }

  void keep_memory(const CUpti_Activity* record, DeviceRecordCounts& counts) {
    const auto* memory = reinterpret_cast<const CUpti_ActivityMemory4*>(record);
    const char* name = memory_call_name(*memory);
    ++counts.memory_calls;
    if (memory->timestamp == 0) {
      ++counts.untimed;
      return;
    }
    if (name == nullptr) return;
    UnplacedCall& made = calls_.emplace_back();
    made.call.name = name;
    made.call.kind = SpanKind::Annotation;
    made.call.start = made.call.end = static_cast<std::int64_t>(memory->timestamp);
    made.call.bytes = static_cast<Bytes>(memory->bytes);
    made.correlation = memory->correlationId;
  }

  template <class Record>
  void keep_device(const CUpti_Activity* record, DeviceRecordCounts& counts) {
    const auto* device = reinterpret_cast<const Record*>(record);
    if (device->start == 0 || device->end < device->start) {
      ++counts.untimed;
      return;
    }
    device_.push_back({device->correlationId, device->streamId, static_cast<std::int64_t>(device->start),
                       static_cast<std::int64_t>(device->end)});
  }

  /// Second pass.
  void assign(const Lanes& lanes, bool flushed, bool last, DeviceRecordCounts& counts) {
    std::sort(device_.begin(), device_.end(),
              [](const DeviceRecord& a, const DeviceRecord& b) { return a.start < b.start; });
    std::vector<DeviceRecord> early;
    for (DeviceRecord& record : device_) {
      const std::uint64_t instruction = instruction_of(record);
      const auto id = static_cast<std::int32_t>(instruction & 0xffffffffU);
      const auto lane = lanes.find(record.stream);
      if (lane != lanes.end() && id >= 0) {
        lane->second->add({record.start, record.end, static_cast<std::int32_t>(instruction >> 32), id});
      } else if (lane != lanes.end() && !linked(record) && !last && !std::exchange(record.waited, flushed)) {
        early.push_back(record);  // before the record of its launch
      } else {
        ++counts.unattributed;
      }
    }
    device_ = std::move(early);
  }

  /// Third pass. These are stamped on the host's clock: the turn tells the instruction where nothing was pushed.
  void place_calls(const Lanes& lanes, DriverCalls& calls) {
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
      const std::uint64_t* pushed = find(&Links::instructions, made.correlation);
      const std::uint64_t instruction = pushed != nullptr ? *pushed : turn_at(call.start);
      call.step = static_cast<std::int32_t>(instruction >> 32);
      call.instruction = static_cast<std::int32_t>(instruction & 0xffffffffU);
      calls.add(call);
    }
    calls_.clear();
  }

  bool linked(const DeviceRecord& record) const {
    return find(&Links::instructions, record.correlation) != nullptr ||
           find(&Links::calls, record.correlation) != nullptr;
  }

  template <class Key, class Value>
  const Value* find(std::unordered_map<Key, Value> Links::*map, Key key) const {
    for (const Links* links : {&now_, &before_}) {
      if (const auto found = (links->*map).find(key); found != (links->*map).end()) return &found->second;
    }
    return nullptr;
  }

  std::uint64_t instruction_of(const DeviceRecord& record) const {
    if (const std::uint64_t* pushed = find(&Links::instructions, record.correlation)) return *pushed;
    const HostCall* call = find(&Links::calls, record.correlation);
    return call == nullptr ? packed(0, -1) : turn_at(call->start);
  }

  std::uint64_t turn_at(std::int64_t begin) const {
    const auto next = std::upper_bound(turns_.begin(), turns_.end(), begin,
                                       [](std::int64_t time, const Turn& turn) { return time < turn.time; });
    return next == turns_.begin() ? packed(0, -1) : std::prev(next)->instruction;
  }

  Links now_, before_;
  std::vector<Turn> turns_;  // of this flush and of the one before
  std::size_t new_turns_ = 0;
  std::vector<DeviceRecord> device_;
  std::vector<UnplacedCall> calls_;
};

class Cupti final : public CuptiRecorder {
 public:
  Cupti(CUpti_SubscriberHandle subscriber, std::vector<Error> refused)
      : subscriber_(subscriber), refused_(std::move(refused)), reader_([this] { read_on(); }) {}

  ~Cupti() override {
    for (const CUpti_ActivityKind kind : kKinds) cuptiActivityDisable(kind);
    for (const auto& [kind, name] : kWelcomeKinds) cuptiActivityDisable(kind);
    cuptiUnsubscribe(subscriber_);  // never cuptiFinalize: it does not come back
    {
      std::lock_guard lock(mutex_);
      closing_ = true;
    }
    changed_.notify_all();
    reader_.join();
  }

  static constexpr CUpti_ActivityKind kKinds[] = {
      CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,  // KERNEL would serialise kernels, and NCCL with them
      CUPTI_ACTIVITY_KIND_MEMCPY,
      CUPTI_ACTIVITY_KIND_MEMSET,
      CUPTI_ACTIVITY_KIND_RUNTIME,
      CUPTI_ACTIVITY_KIND_DRIVER,  // NCCL launches through the driver
      CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION,
  };
  /// A driver that does not give these records without.
  static constexpr std::pair<CUpti_ActivityKind, const char*> kWelcomeKinds[] = {
      {CUPTI_ACTIVITY_KIND_MEMCPY2, "copies between cards"},
      {CUPTI_ACTIVITY_KIND_OVERHEAD, "its own overhead"},
      {CUPTI_ACTIVITY_KIND_SYNCHRONIZATION, "waits"},
      {CUPTI_ACTIVITY_KIND_CUDA_EVENT, "events"},  // of which stream a wait is for
      {CUPTI_ACTIVITY_KIND_MEMORY2, "memory of the driver"},
  };

  std::vector<Error> refused() const override { return refused_; }

  void at_instruction(std::int32_t step, InstructionId instruction) override {
    if (pushed_) {
      std::uint64_t last = 0;
      cuptiActivityPopExternalCorrelationId(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, &last);
    }
    pushed_ = instruction.valid();
    turns_.push_back({steady_now(), packed(step, instruction.value)});
    if (pushed_) {
      cuptiActivityPushExternalCorrelationId(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, packed(step, instruction.value));
    }
  }

  DeviceRecordCounts collect(const std::vector<std::pair<CUstream_st*, RecordedLane*>>& lanes,
                             DriverCalls& calls) override {
    const std::int64_t begin = steady_now();
    calls_ = &calls;
    if (lanes != known_) {
      known_ = lanes;
      lanes_.clear();
      for (const auto& [stream, lane] : lanes) {
        if (const auto id = stream_id(stream)) lanes_.emplace(*id, lane);
      }
    }
    hand_over(0, /*last=*/false);
    return counted(begin);
  }

  DeviceRecordCounts finish() override {
    const std::int64_t begin = steady_now();
    hand_over(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED, /*last=*/true);
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return flushes_.empty() && !reading_; });
    }
    return counted(begin);
  }

 private:
  struct Flush {
    Buffers complete;
    std::vector<Turn> turns;
    Lanes lanes;
    DriverCalls* calls = nullptr;
    bool last = false;
  };

  void hand_over(std::uint32_t flags, bool last) {
    cuptiActivityFlushAll(flags);
    std::size_t dropped = 0;
    const bool asked = cuptiActivityGetNumDroppedRecords(nullptr, 0, &dropped) == CUPTI_SUCCESS;
    {
      std::lock_guard lock(mutex_);
      if (asked) counts_.dropped += static_cast<std::int64_t>(dropped);
      flushes_.push_back({buffers().take_complete(), std::exchange(turns_, {}), lanes_, calls_, last});
    }
    changed_.notify_all();
  }

  DeviceRecordCounts counted(std::int64_t begin) {
    std::lock_guard lock(mutex_);
    counts_.overhead_ns += steady_now() - begin;
    return std::exchange(counts_, {});
  }

  void read_on() {
    RecordReader reader;
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return closing_ || !flushes_.empty(); });
      if (flushes_.empty()) return;
      const Flush flush = std::move(flushes_.front());
      flushes_.pop_front();
      reading_ = true;
      lock.unlock();
      DeviceRecordCounts counts;
      reader.take(flush.complete, flush.turns, flush.lanes, flush.calls, flush.last, counts);
      lock.lock();
      reading_ = false;
      counts_.add(counts);
      changed_.notify_all();
    }
  }

  static std::optional<std::uint32_t> stream_id(CUstream_st* stream) {
    CUcontext context = nullptr;
    using GetCurrent = CUresult (*)(CUcontext*);
    static const auto get_current = [] {
      void* function = nullptr;
      cudaDriverEntryPointQueryResult found{};
      if (cudaGetDriverEntryPointByVersion("cuCtxGetCurrent", &function, 13000, cudaEnableDefault, &found) !=
          cudaSuccess) {
        function = nullptr;
      }
      return reinterpret_cast<GetCurrent>(function);
    }();
    if (get_current == nullptr || get_current(&context) != CUDA_SUCCESS) return std::nullopt;
    std::uint32_t id = 0;
    if (cuptiGetStreamIdEx(context, stream, 0, &id) != CUPTI_SUCCESS) return std::nullopt;
    return id;
  }

  CUpti_SubscriberHandle subscriber_;
  std::vector<Error> refused_;
  // The issuer's.
  bool pushed_ = false;
  std::vector<Turn> turns_;
  std::vector<std::pair<CUstream_st*, RecordedLane*>> known_;
  Lanes lanes_;  // of those
  DriverCalls* calls_ = nullptr;

  std::mutex mutex_;  // no call of CUPTI under it
  std::condition_variable changed_;
  std::deque<Flush> flushes_;
  bool reading_ = false, closing_ = false;
  DeviceRecordCounts counts_;
  std::thread reader_;
};

/// Registered once per process: a second time would make CUPTI mix clocks.
CUptiResult prepare_process() {
  static const CUptiResult result = [] {
    const CUptiResult registered = cuptiActivityRegisterCallbacks(request_buffer, buffer_complete);
    return registered != CUPTI_SUCCESS ? registered : cuptiActivityRegisterTimestampCallback(timestamp);
  }();
  return result;
}

}  // namespace

Result<std::unique_ptr<CuptiRecorder>> CuptiRecorder::start() {
  CUpti_SubscriberHandle subscriber = nullptr;
  if (const CUptiResult result = cuptiSubscribe(&subscriber, no_callback, nullptr); result != CUPTI_SUCCESS) {
    return fail(cupti_error("subscribe", result));
  }
  if (const CUptiResult result = prepare_process(); result != CUPTI_SUCCESS) {
    cuptiUnsubscribe(subscriber);
    return fail(cupti_error("register", result));
  }
  for (const CUpti_ActivityKind kind : Cupti::kKinds) {
    if (const CUptiResult result = cuptiActivityEnable(kind); result != CUPTI_SUCCESS) {
      for (const CUpti_ActivityKind enabled : Cupti::kKinds) cuptiActivityDisable(enabled);
      cuptiUnsubscribe(subscriber);
      return fail(cupti_error("enable", result));
    }
  }
  std::string lacks;
  CUptiResult why = CUPTI_SUCCESS;
  for (const auto& [kind, name] : Cupti::kWelcomeKinds) {
    const CUptiResult result = cuptiActivityEnable(kind);
    if (result == CUPTI_SUCCESS) continue;
    lacks += (lacks.empty() ? "" : ", ") + std::string(name);
    why = result;
  }
  std::vector<Error> refused;
  if (!lacks.empty()) {
    refused.push_back(cupti_error(lacks.c_str(), why));
    refused.back().hint = "the timeline goes without these records";
  }
  return std::make_unique<Cupti>(subscriber, std::move(refused));
}

}  // namespace foreshard::exec
