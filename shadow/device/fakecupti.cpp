// CUPTI's activity records of the virtual device: work gets a time on the profiler's own clock, streams stay in order
// and wait for events, so that a recorder finds what it would find on a GPU: an API call, its external correlation, the
// device's work. Nothing takes real time. FAKEGPU_CUPTI=denied: the driver lets only root profile; late: what the
// device did comes a flush later than its launch.
#include <cupti.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <utility>

#include "shadow/device/fakegpu.h"

namespace fakegpu {
namespace {

struct Profiler {
  CUpti_BuffersCallbackRequestFunc request = nullptr;
  CUpti_BuffersCallbackCompleteFunc complete = nullptr;
  CUpti_TimestampCallbackFunc timestamp = nullptr;
  std::set<int> kinds;
  std::map<int, std::set<uint32_t>> calls_off;  // of a kind of calls that is on
  uint8_t* buffer = nullptr;
  size_t size = 0, used = 0, dropped = 0;
  uint32_t next_correlation = 1;
  uint64_t next_record = 1;                   // of events
  std::map<const void*, size_t> allocations;  // a release tells its bytes too
  bool subscribed = false;
  std::vector<std::vector<uint8_t>> held;  // late records
};

Profiler& profiler() {
  static Profiler* p = new Profiler;
  return *p;
}

thread_local std::vector<uint64_t> pushed;

void hand_over(Profiler& p) {
  if (p.buffer) p.complete(nullptr, 0, p.buffer, p.size, p.used);
  p.buffer = nullptr;
  p.used = p.size = 0;
}

template <class Record>
void write(Profiler& p, const Record& record) {
  static_assert(sizeof(Record) % 8 == 0);
  if (p.buffer && p.used + sizeof record > p.size) hand_over(p);
  if (!p.buffer) {
    size_t most = 0;
    p.request(&p.buffer, &p.size, &most);
    if (!p.buffer || p.size < sizeof record) {
      p.dropped++;
      return;
    }
  }
  memcpy(p.buffer + p.used, &record, sizeof record);
  p.used += sizeof record;
}

bool wished(const char* what) {
  const char* wish = getenv("FAKEGPU_CUPTI");
  return wish && !strcmp(wish, what);
}

template <class Record>
void write_device(Profiler& p, const Record& record) {
  if (!wished("late")) return write(p, record);
  const auto* bytes = (const uint8_t*)&record;
  p.held.emplace_back(bytes, bytes + sizeof record);
}

void write_held(Profiler& p) {
  for (const auto& bytes : std::exchange(p.held, {})) {
    const auto kind = ((const CUpti_Activity*)bytes.data())->kind;
    if (kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
      write(p, *(const CUpti_ActivityKernel10*)bytes.data());
    } else if (kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
      write(p, *(const CUpti_ActivityMemcpy6*)bytes.data());
    } else {
      write(p, *(const CUpti_ActivityMemset4*)bytes.data());
    }
  }
}

template <class Record>
Record device_record(CUpti_ActivityKind kind, const Stream* s, const Span& sp, uint32_t correlation) {
  Record r{};
  r.kind = kind;
  r.start = (uint64_t)sp.real_start;
  r.end = (uint64_t)sp.real_end;
  r.deviceId = (uint32_t)s->dev;
  r.streamId = (uint32_t)s->id;
  r.correlationId = correlation;
  return r;
}

size_t record_size(CUpti_ActivityKind kind) {
  switch (kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: return sizeof(CUpti_ActivityKernel10);
    case CUPTI_ACTIVITY_KIND_MEMCPY: return sizeof(CUpti_ActivityMemcpy6);
    case CUPTI_ACTIVITY_KIND_MEMSET: return sizeof(CUpti_ActivityMemset4);
    case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION: return sizeof(CUpti_ActivityExternalCorrelation);
    case CUPTI_ACTIVITY_KIND_SYNCHRONIZATION: return sizeof(CUpti_ActivitySynchronization2);
    case CUPTI_ACTIVITY_KIND_CUDA_EVENT: return sizeof(CUpti_ActivityCudaEvent2);
    case CUPTI_ACTIVITY_KIND_MEMORY2: return sizeof(CUpti_ActivityMemory4);
    default: return sizeof(CUpti_ActivityAPI);
  }
}

struct ApiCall {
  CUpti_ActivityKind kind;
  CUpti_CallbackId id;
};
constexpr ApiCall runtime_call(CUpti_runtime_api_trace_cbid id) { return {CUPTI_ACTIVITY_KIND_RUNTIME, id}; }

ApiCall call_of(WorkKind kind) {
  switch (kind) {
    case WorkKind::Memcpy: return runtime_call(CUPTI_RUNTIME_TRACE_CBID_cudaMemcpyAsync_v3020);
    case WorkKind::Memset: return runtime_call(CUPTI_RUNTIME_TRACE_CBID_cudaMemsetAsync_v3020);
    case WorkKind::Collective: return {CUPTI_ACTIVITY_KIND_DRIVER, CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx};
    default: return runtime_call(CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernel_v7000);
  }
}

ApiCall call_of(WaitKind kind) {
  switch (kind) {
    case WaitKind::Event: return runtime_call(CUPTI_RUNTIME_TRACE_CBID_cudaEventSynchronize_v3020);
    case WaitKind::Stream: return runtime_call(CUPTI_RUNTIME_TRACE_CBID_cudaStreamSynchronize_v3020);
    case WaitKind::StreamForEvent: return runtime_call(CUPTI_RUNTIME_TRACE_CBID_cudaStreamWaitEvent_v3020);
    default: return runtime_call(CUPTI_RUNTIME_TRACE_CBID_cudaDeviceSynchronize_v3020);
  }
}

ApiCall memory_call(bool takes, bool pinned) {
  return runtime_call(
      takes ? (pinned ? CUPTI_RUNTIME_TRACE_CBID_cudaHostAlloc_v3020 : CUPTI_RUNTIME_TRACE_CBID_cudaMalloc_v3020)
            : (pinned ? CUPTI_RUNTIME_TRACE_CBID_cudaFreeHost_v3020 : CUPTI_RUNTIME_TRACE_CBID_cudaFree_v3020));
}

// The records of the call itself, unless it is switched off; the number that ties others to it.
uint32_t write_call(Profiler& p, ApiCall made, ns_t start, ns_t end) {
  const CUpti_ActivityKind kind = made.kind;
  const uint32_t correlation = p.next_correlation++;
  if (p.kinds.count(kind) && p.calls_off[kind].count(made.id)) return correlation;
  if (!pushed.empty() && p.kinds.count(CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION)) {
    CUpti_ActivityExternalCorrelation link{};
    link.kind = CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION;
    link.externalKind = CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0;
    link.externalId = pushed.back();
    link.correlationId = correlation;
    write(p, link);
  }
  if (p.kinds.count(kind)) {
    CUpti_ActivityAPI call{};
    call.kind = kind;
    call.start = (uint64_t)start;
    call.end = (uint64_t)end;
    call.correlationId = correlation;
    write(p, call);
  }
  return correlation;
}

constexpr uint32_t kContext = 1;

uint32_t event_id(const Event* e) { return (uint32_t)((uintptr_t)e >> 4); }

}  // namespace

ns_t profiler_now() {
  std::lock_guard<std::recursive_mutex> lk(lock());
  Profiler& p = profiler();
  return p.subscribed && p.timestamp ? (ns_t)p.timestamp() : 0;
}

void profile_work(WorkKind kind, const Stream* s, const Span& sp, size_t bytes) {
  Profiler& p = profiler();
  if (!p.subscribed || !p.request || !sp.real_start) return;
  const auto now = (ns_t)p.timestamp();
  const uint32_t correlation = write_call(p, call_of(kind), now, now);
  if (kind == WorkKind::Memcpy && p.kinds.count(CUPTI_ACTIVITY_KIND_MEMCPY)) {
    auto r = device_record<CUpti_ActivityMemcpy6>(CUPTI_ACTIVITY_KIND_MEMCPY, s, sp, correlation);
    r.bytes = bytes;
    write_device(p, r);
  } else if (kind == WorkKind::Memset && p.kinds.count(CUPTI_ACTIVITY_KIND_MEMSET)) {
    auto r = device_record<CUpti_ActivityMemset4>(CUPTI_ACTIVITY_KIND_MEMSET, s, sp, correlation);
    r.bytes = bytes;
    write_device(p, r);
  } else if (p.kinds.count(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL)) {
    write_device(p, device_record<CUpti_ActivityKernel10>(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, s, sp, correlation));
  }
}

void profile_query(int runtime_call_id) {
  std::lock_guard<std::recursive_mutex> lk(lock());
  const ns_t now = profiler_now();
  if (now && profiler().request)
    write_call(profiler(), runtime_call((CUpti_runtime_api_trace_cbid)runtime_call_id), now, now);
}

void profile_record(Event* e, const Stream* s) {
  Profiler& p = profiler();
  const ns_t now = profiler_now();
  e->record = 0;
  if (!now || !p.request) return;
  e->record = p.next_record++;
  const uint32_t correlation = write_call(p, runtime_call(CUPTI_RUNTIME_TRACE_CBID_cudaEventRecord_v3020), now, now);
  if (!p.kinds.count(CUPTI_ACTIVITY_KIND_CUDA_EVENT)) return;
  CUpti_ActivityCudaEvent2 r{};
  r.kind = CUPTI_ACTIVITY_KIND_CUDA_EVENT;
  r.correlationId = correlation;
  r.contextId = kContext;
  r.streamId = (uint32_t)s->id;
  r.eventId = event_id(e);
  r.deviceId = (uint32_t)s->dev;
  r.cudaEventSyncId = e->record;
  write(p, r);
}

void profile_wait(WaitKind kind, ns_t start, const Stream* s, const Event* e) {
  Profiler& p = profiler();
  const ns_t now = profiler_now();
  if (!start || !now || !p.request) return;
  const uint32_t correlation = write_call(p, call_of(kind), start, now);
  if (!p.kinds.count(CUPTI_ACTIVITY_KIND_SYNCHRONIZATION)) return;
  static const CUpti_ActivitySynchronizationType types[] = {
      CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_EVENT_SYNCHRONIZE, CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_SYNCHRONIZE,
      CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_WAIT_EVENT, CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_CONTEXT_SYNCHRONIZE};
  CUpti_ActivitySynchronization2 r{};
  r.kind = CUPTI_ACTIVITY_KIND_SYNCHRONIZATION;
  r.type = types[(int)kind];
  r.start = (uint64_t)start;
  r.end = (uint64_t)now;
  r.correlationId = correlation;
  r.contextId = kContext;
  r.streamId = s ? (uint32_t)s->id : CUPTI_SYNCHRONIZATION_INVALID_VALUE;
  r.cudaEventId = e ? event_id(e) : CUPTI_SYNCHRONIZATION_INVALID_VALUE;
  r.cudaEventSyncId = e && e->record ? e->record : CUPTI_SYNCHRONIZATION_INVALID_VALUE;
  write(p, r);
}

void profile_memory(bool takes, bool pinned, ns_t start, const void* ptr, size_t bytes) {
  Profiler& p = profiler();
  const ns_t now = profiler_now();
  if (!start || !now || !p.request) return;
  if (takes) {
    p.allocations[ptr] = bytes;
  } else if (const auto known = p.allocations.find(ptr); known != p.allocations.end()) {
    bytes = known->second;
    p.allocations.erase(known);
  }
  const uint32_t correlation = write_call(p, memory_call(takes, pinned), start, now);
  if (!p.kinds.count(CUPTI_ACTIVITY_KIND_MEMORY2)) return;
  CUpti_ActivityMemory4 r{};
  r.kind = CUPTI_ACTIVITY_KIND_MEMORY2;
  r.memoryOperationType =
      takes ? CUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_ALLOCATION : CUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_RELEASE;
  r.memoryKind = pinned ? CUPTI_ACTIVITY_MEMORY_KIND_PINNED : CUPTI_ACTIVITY_MEMORY_KIND_DEVICE;
  r.correlationId = correlation;
  r.address = (uint64_t)(uintptr_t)ptr;
  r.bytes = bytes;
  r.timestamp = (uint64_t)start;
  r.deviceId = (uint32_t)current_device();
  r.contextId = kContext;
  r.streamId = CUPTI_INVALID_STREAM_ID;
  write(p, r);
}

// Only while the kind is on, as on a card: a call that is switched on alone records nothing once the context is there.
static CUptiResult switch_call(CUpti_ActivityKind kind, uint32_t call, bool on) {
  std::lock_guard<std::recursive_mutex> lk(lock());
  std::set<uint32_t>& off = profiler().calls_off[kind];
  on ? (void)off.erase(call) : (void)off.insert(call);
  return CUPTI_SUCCESS;
}

}  // namespace fakegpu

using namespace fakegpu;
using Guard = std::lock_guard<std::recursive_mutex>;

extern "C" {

CUptiResult cuptiSubscribe(CUpti_SubscriberHandle* handle, CUpti_CallbackFunc, void*) {
  Guard lk(lock());
  if (wished("denied")) return CUPTI_ERROR_INSUFFICIENT_PRIVILEGES;
  if (wished("none")) return CUPTI_ERROR_NOT_INITIALIZED;
  if (profiler().subscribed) return CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
  profiler().subscribed = true;
  *handle = (CUpti_SubscriberHandle)&profiler();
  return CUPTI_SUCCESS;
}
CUptiResult cuptiUnsubscribe(CUpti_SubscriberHandle) {
  Guard lk(lock());
  profiler().subscribed = false;
  return CUPTI_SUCCESS;
}
CUptiResult cuptiGetResultString(CUptiResult result, const char** text) {
  *text = result == CUPTI_ERROR_INSUFFICIENT_PRIVILEGES ? "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"
          : result == CUPTI_ERROR_NOT_COMPATIBLE        ? "CUPTI_ERROR_NOT_COMPATIBLE"
                                                        : "virtual CUPTI error";
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc request,
                                           CUpti_BuffersCallbackCompleteFunc complete) {
  Guard lk(lock());
  profiler().request = request;
  profiler().complete = complete;
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityRegisterTimestampCallback(CUpti_TimestampCallbackFunc now) {
  Guard lk(lock());
  profiler().timestamp = now;
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityEnable(CUpti_ActivityKind kind) {
  Guard lk(lock());
  static const std::set<int> rare = {CUPTI_ACTIVITY_KIND_MEMCPY2, CUPTI_ACTIVITY_KIND_OVERHEAD,
                                     CUPTI_ACTIVITY_KIND_SYNCHRONIZATION, CUPTI_ACTIVITY_KIND_CUDA_EVENT,
                                     CUPTI_ACTIVITY_KIND_MEMORY2};
  if (rare.count(kind) && wished("few")) return CUPTI_ERROR_NOT_COMPATIBLE;
  profiler().kinds.insert(kind);
  profiler().calls_off.erase(kind);
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityEnableRuntimeApi(CUpti_CallbackId call, uint8_t enable) {
  return switch_call(CUPTI_ACTIVITY_KIND_RUNTIME, call, enable != 0);
}
CUptiResult cuptiActivityEnableDriverApi(CUpti_CallbackId call, uint8_t enable) {
  return switch_call(CUPTI_ACTIVITY_KIND_DRIVER, call, enable != 0);
}
CUptiResult cuptiActivityDisable(CUpti_ActivityKind kind) {
  Guard lk(lock());
  profiler().kinds.erase(kind);
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityFlushAll(uint32_t flags) {
  Guard lk(lock());
  if (wished("drops")) profiler().dropped += 7;
  if (flags & CUPTI_ACTIVITY_FLAG_FLUSH_FORCED) write_held(profiler());
  hand_over(profiler());
  write_held(profiler());
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext, uint32_t, size_t* dropped) {
  Guard lk(lock());
  *dropped = profiler().dropped;
  profiler().dropped = 0;
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityGetNextRecord(uint8_t* buffer, size_t valid, CUpti_Activity** record) {
  uint8_t* next = *record ? (uint8_t*)*record + record_size((*record)->kind) : buffer;
  if (next + sizeof(CUpti_Activity) > buffer + valid) return CUPTI_ERROR_MAX_LIMIT_REACHED;
  *record = (CUpti_Activity*)next;
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityPushExternalCorrelationId(CUpti_ExternalCorrelationKind, uint64_t id) {
  pushed.push_back(id);
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityPopExternalCorrelationId(CUpti_ExternalCorrelationKind, uint64_t* last) {
  if (pushed.empty()) return CUPTI_ERROR_QUEUE_EMPTY;
  if (last) *last = pushed.back();
  pushed.pop_back();
  return CUPTI_SUCCESS;
}
CUptiResult cuptiGetStreamIdEx(CUcontext, CUstream stream, uint8_t, uint32_t* id) {
  Guard lk(lock());
  *id = (uint32_t)stream_of(stream)->id;
  return CUPTI_SUCCESS;
}

}  // extern "C"
