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
#include <string_view>
#include <thread>
#include <utility>

#include "exec/record/device_record_reader.h"

namespace foreshard::exec {
namespace {

constexpr std::size_t kBufferBytes = std::size_t{4} << 20;  // of the size that CUPTI advises: 1 to 10 MB
constexpr std::size_t kBufferAlignment = 8;
constexpr std::size_t kPreparedBuffers = 4;
constexpr std::int64_t kFlushEvery = 1'000'000'000;  // ns; a flush takes the issuer some milliseconds

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
               .message = fmt::format("CUPTI cannot record: {}", text != nullptr ? text : "unknown error"),
               .place = call,
               .expected = "a driver that lets this process record",
               .hint = std::move(hint)};
}

using Buffers = std::vector<std::pair<std::uint8_t*, std::size_t>>;

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

  static constexpr bool is_work(CUpti_ActivityKind kind) { return kind == CUPTI_ACTIVITY_KIND_MEMCPY2; }

  std::vector<Error> refused() const override { return refused_; }

  void at_instruction(std::int32_t step, InstructionId instruction) override {
    if (pushed_) {
      std::uint64_t last = 0;
      cuptiActivityPopExternalCorrelationId(kIssuersCorrelation, &last);
    }
    pushed_ = instruction.valid();
    const std::uint64_t place = IssuedAt{step, instruction.value}.packed();
    turns_.push_back({steady_now(), place});
    if (pushed_) {
      cuptiActivityPushExternalCorrelationId(kIssuersCorrelation, place);
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
    if (begin - flushed_ >= kFlushEvery) {
      flushed_ = begin;
      hand_over(0, /*last=*/false);
    }
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
    StreamLanes lanes;
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
    DeviceRecordReader reader;
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return closing_ || !flushes_.empty(); });
      if (flushes_.empty()) return;
      const Flush flush = std::move(flushes_.front());
      flushes_.pop_front();
      reading_ = true;
      lock.unlock();
      for (const auto& [buffer, valid] : flush.complete) {
        CUpti_Activity* record = nullptr;
        while (cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) reader.read(*record);
        buffers().give_back(buffer);
      }
      const DeviceRecordCounts counts = reader.end_flush(flush.turns, flush.lanes, flush.calls, flush.last);
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
  std::int64_t flushed_ = steady_now();
  std::vector<std::pair<CUstream_st*, RecordedLane*>> known_;
  StreamLanes lanes_;  // of those
  DriverCalls* calls_ = nullptr;

  std::mutex mutex_;  // no call of CUPTI under it
  std::condition_variable changed_;
  std::deque<Flush> flushes_;
  bool reading_ = false, closing_ = false;
  DeviceRecordCounts counts_;
  std::thread reader_;
};

/// Calls that start work on the device, or take memory. Of the others a step makes ten for each kernel (which device,
/// is the stream captured, what was the last error), whose records nobody reads.
bool is_read(std::string_view call) {
  static constexpr std::string_view kRead[] = {"cudaLaunch", "__cudaLaunch",  "cudaGraphLaunch", "cudaMemcpy",
                                               "cudaMemset", "cudaMalloc",    "cudaFree",        "cudaHostAlloc",
                                               "cuLaunch",   "cuGraphLaunch", "cuMemcpy",        "cuMemset",
                                               "cuMemAlloc", "cuMemFree",     "cuMemHostAlloc"};
  return std::any_of(std::begin(kRead), std::end(kRead), [&](std::string_view name) { return call.starts_with(name); });
}

/// Once the whole kind is on: calls that are switched on alone record nothing where the context was made before.
void record_read_calls_only() {
  const auto quieten = [](CUpti_CallbackDomain domain, std::uint32_t calls, auto switch_call) {
    for (std::uint32_t call = 1; call < calls; ++call) {
      const char* name = nullptr;
      if (cuptiGetCallbackName(domain, call, &name) != CUPTI_SUCCESS || name == nullptr) continue;
      if (!is_read(name)) switch_call(call, 0);  // one that stays on costs time, no more
    }
  };
  quieten(CUPTI_CB_DOMAIN_RUNTIME_API, CUPTI_RUNTIME_TRACE_CBID_SIZE, cuptiActivityEnableRuntimeApi);
  quieten(CUPTI_CB_DOMAIN_DRIVER_API, CUPTI_DRIVER_TRACE_CBID_SIZE, cuptiActivityEnableDriverApi);
}

/// Registered once per process: a second time would make CUPTI mix clocks.
CUptiResult prepare_process() {
  static const CUptiResult result = [] {
    const CUptiResult registered = cuptiActivityRegisterCallbacks(request_buffer, buffer_complete);
    return registered != CUPTI_SUCCESS ? registered : cuptiActivityRegisterTimestampCallback(timestamp);
  }();
  return result;
}

}  // namespace

Result<std::unique_ptr<CuptiRecorder>> CuptiRecorder::start(RecordedKinds kinds) {
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
  record_read_calls_only();
  std::string lacks;
  CUptiResult why = CUPTI_SUCCESS;
  for (const auto& [kind, name] : Cupti::kWelcomeKinds) {
    if (kinds == RecordedKinds::WorkOnly && !Cupti::is_work(kind)) continue;
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
