#include "exec/cupti_recorder.h"

#include <cuda_runtime_api.h>
#include <cupti.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <unordered_map>

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
};

struct HostCall {
  std::int64_t start = 0;
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
               .message = fmt::format("CUPTI cannot record: {}: {}", call, text != nullptr ? text : "unknown error"),
               .hint = std::move(hint)};
}

/// "id of an instruction in a step", as one number for CUPTI.
std::uint64_t packed(std::int32_t step, std::int32_t instruction) {
  return (static_cast<std::uint64_t>(static_cast<std::uint32_t>(step)) << 32) | static_cast<std::uint32_t>(instruction);
}

class Cupti final : public CuptiRecorder {
 public:
  explicit Cupti(CUpti_SubscriberHandle subscriber) : subscriber_(subscriber) {}

  ~Cupti() override {
    for (const CUpti_ActivityKind kind : kKinds) cuptiActivityDisable(kind);
    cuptiUnsubscribe(subscriber_);  // never cuptiFinalize: it does not come back
  }

  static constexpr CUpti_ActivityKind kKinds[] = {
      CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,  // KERNEL would serialise kernels, and NCCL with them
      CUPTI_ACTIVITY_KIND_MEMCPY,
      CUPTI_ACTIVITY_KIND_MEMCPY2,
      CUPTI_ACTIVITY_KIND_MEMSET,
      CUPTI_ACTIVITY_KIND_RUNTIME,
      CUPTI_ACTIVITY_KIND_DRIVER,  // NCCL launches through the driver
      CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION,
      CUPTI_ACTIVITY_KIND_OVERHEAD,
  };

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

  DeviceRecordCounts collect(const std::vector<std::pair<CUstream_st*, RecordedLane*>>& lanes) override {
    const std::int64_t begin = steady_now();
    cuptiActivityFlushAll(0);
    DeviceRecordCounts counts;
    std::size_t dropped = 0;
    if (cuptiActivityGetNumDroppedRecords(nullptr, 0, &dropped) == CUPTI_SUCCESS) {
      counts.dropped = static_cast<std::int64_t>(dropped);
    }
    for (const auto& [buffer, valid] : buffers().take_complete()) {
      read(buffer, valid, counts);
      buffers().give_back(buffer);
    }
    assign(lanes, counts);
    counts.overhead_ns += steady_now() - begin;
    return counts;
  }

 private:
  struct Turn {
    std::int64_t time = 0;
    std::uint64_t instruction = 0;
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
          calls_.try_emplace(call->correlationId, HostCall{static_cast<std::int64_t>(call->start)});
          break;
        }
        case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION: {
          const auto* link = reinterpret_cast<const CUpti_ActivityExternalCorrelation*>(record);
          if (link->externalKind == CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0) {
            instructions_[link->correlationId] = link->externalId;
          }
          break;
        }
        case CUPTI_ACTIVITY_KIND_OVERHEAD: {
          const auto* overhead = reinterpret_cast<const CUpti_ActivityOverhead3*>(record);
          counts.overhead_ns += static_cast<std::int64_t>(overhead->end - overhead->start);
          break;
        }
        default: break;
      }
    }
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
  void assign(const std::vector<std::pair<CUstream_st*, RecordedLane*>>& lanes, DeviceRecordCounts& counts) {
    std::unordered_map<std::uint32_t, RecordedLane*> by_stream;
    for (const auto& [stream, lane] : lanes) {
      if (const auto id = stream_id(stream)) by_stream.emplace(*id, lane);
    }
    std::sort(device_.begin(), device_.end(),
              [](const DeviceRecord& a, const DeviceRecord& b) { return a.start < b.start; });
    for (const DeviceRecord& record : device_) {
      const auto lane = by_stream.find(record.stream);
      const std::uint64_t instruction = instruction_of(record);
      const auto id = static_cast<std::int32_t>(instruction & 0xffffffffU);
      if (lane == by_stream.end() || id < 0) {
        ++counts.unattributed;
        continue;
      }
      lane->second->add({record.start, record.end, static_cast<std::int32_t>(instruction >> 32), id});
    }
    device_.clear();
    calls_.clear();
    instructions_.clear();
    if (!turns_.empty()) turns_.erase(turns_.begin(), turns_.end() - 1);
  }

  std::uint64_t instruction_of(const DeviceRecord& record) const {
    if (const auto pushed = instructions_.find(record.correlation); pushed != instructions_.end()) {
      return pushed->second;
    }
    const auto call = calls_.find(record.correlation);
    if (call == calls_.end()) return packed(0, -1);
    const auto next = std::upper_bound(turns_.begin(), turns_.end(), call->second.start,
                                       [](std::int64_t time, const Turn& turn) { return time < turn.time; });
    return next == turns_.begin() ? packed(0, -1) : std::prev(next)->instruction;
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
  bool pushed_ = false;
  std::vector<Turn> turns_;
  std::vector<DeviceRecord> device_;
  std::unordered_map<std::uint32_t, HostCall> calls_;
  std::unordered_map<std::uint32_t, std::uint64_t> instructions_;
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
  return std::make_unique<Cupti>(subscriber);
}

}  // namespace foreshard::exec
