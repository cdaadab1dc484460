// Entry points of the CUDA runtime: copies, streams, graphs, events, attributes of functions.
#include <cuda_runtime_api.h>
#include <cupti_runtime_cbid.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "shadow/device/fakegpu_state.h"
#include "shadow/device/races.h"

using namespace fakegpu;

extern "C" {

// ---------------------------------------------------------------- copies and fills

cudaError_t cudaMemcpy(void* d, const void* s, size_t n, cudaMemcpyKind k) {
  return copy("cudaMemcpy", d, s, n, k, stream_of(nullptr), false);
}
cudaError_t cudaMemcpyAsync(void* d, const void* s, size_t n, cudaMemcpyKind k, cudaStream_t st_) {
  return copy("cudaMemcpyAsync", d, s, n, k, stream_of(st_), true);
}
cudaError_t cudaMemcpyPeer(void* d, int, const void* s, int, size_t n) {
  return copy("cudaMemcpyPeer", d, s, n, cudaMemcpyDeviceToDevice, stream_of(nullptr), false);
}
cudaError_t cudaMemcpyPeerAsync(void* d, int, const void* s, int, size_t n, cudaStream_t st_) {
  return copy("cudaMemcpyPeerAsync", d, s, n, cudaMemcpyDeviceToDevice, stream_of(st_), true);
}
cudaError_t cudaMemcpy2DAsync(void* d, size_t dp, const void* s, size_t sp, size_t w, size_t h, cudaMemcpyKind k,
                              cudaStream_t st_) {
  if (dp == w && sp == w) return cudaMemcpyAsync(d, s, w * h, k, st_);
  for (size_t i = 0; i < h; i++)
    copy("cudaMemcpy2DAsync", (char*)d + i * dp, (const char*)s + i * sp, w, k, stream_of(st_), true);
  return cudaSuccess;
}
cudaError_t cudaMemset(void* p, int v, size_t n) { return fill("cudaMemset", p, v, n, nullptr); }
cudaError_t cudaMemsetAsync(void* p, int v, size_t n, cudaStream_t s) { return fill("cudaMemsetAsync", p, v, n, s); }
cudaError_t cudaGetSymbolAddress(void** p, const void* sym) {
  Guard lk(lock());
  auto& e = st().vars[sym];
  if (!e.first) device_malloc(&e.first, std::max<size_t>(e.second, 16));
  *p = e.first;
  return cudaSuccess;
}
cudaError_t cudaGetSymbolSize(size_t* n, const void* sym) {
  Guard lk(lock());
  *n = st().vars[sym].second;
  return cudaSuccess;
}
cudaError_t cudaMemcpyToSymbol(const void*, const void*, size_t, size_t, cudaMemcpyKind) { return cudaSuccess; }
cudaError_t cudaMemcpyToSymbolAsync(const void*, const void*, size_t, size_t, cudaMemcpyKind, cudaStream_t) {
  return cudaSuccess;
}

// ---------------------------------------------------------------- streams

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* out, unsigned flags, int priority) {
  Guard lk(lock());
  null_stream(0);
  Stream* s = make_stream(tls_device, !(flags & cudaStreamNonBlocking), priority);
  *out = (cudaStream_t)s;
  Line("cudaStreamCreate").n("stream", s->id).n("flags", flags).n("priority", priority);
  return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t* out) { return cudaStreamCreateWithPriority(out, 0, 0); }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* out, unsigned f) { return cudaStreamCreateWithPriority(out, f, 0); }
cudaError_t cudaStreamDestroy(cudaStream_t h) {
  Guard lk(lock());
  Line("cudaStreamDestroy").n("stream", stream_of(h)->id);
  return cudaSuccess;  // the object stays: its pending work still counts
}
cudaError_t cudaStreamGetPriority(cudaStream_t h, int* p) {
  Guard lk(lock());
  *p = stream_of(h)->priority;
  return cudaSuccess;
}
cudaError_t cudaStreamGetFlags(cudaStream_t h, unsigned* f) {
  Guard lk(lock());
  *f = stream_of(h)->blocking ? 0 : cudaStreamNonBlocking;
  return cudaSuccess;
}
cudaError_t cudaStreamGetDevice(cudaStream_t h, int* d) {
  Guard lk(lock());
  *d = stream_of(h)->dev;
  return cudaSuccess;
}
cudaError_t cudaStreamGetId(cudaStream_t h, unsigned long long* id) {
  Guard lk(lock());
  *id = (unsigned long long)stream_of(h)->id;
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t h) {
  Guard lk(lock());
  Stream* s = stream_of(h);
  host_cost(cfg().query_us);
  bool ok = finished(s->id, s->tail, s->seen);
  if (ok && !helper_thread()) host_knows(s->seen);
  if (cfg().log_queries) Line("cudaStreamQuery").n("stream", s->id).n("ready", ok);
  call_unlogged();
  return ok ? cudaSuccess : fail(cudaErrorNotReady);
}
cudaError_t cudaStreamSynchronize(cudaStream_t h) {
  if (cudaError_t e = wait_fails("cudaStreamSynchronize")) return fail(e);
  const ns_t start = profiler_now();
  Guard lk(lock());
  Stream* s = stream_of(h);
  if (s->capture) return fail(cudaErrorStreamCaptureUnsupported);
  wait_while_hung(s->seen);
  if (is_null(s))
    for (Stream* o : st().live)
      if (o->dev == s->dev && o->blocking) host_reached(o->tail, o->seen);
  host_reached(s->tail, s->seen);
  host_cost(cfg().call_us);
  Line("cudaStreamSynchronize").n("stream", s->id);
  if (!helper_thread()) profile_wait(WaitKind::Stream, start, s, nullptr);
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t h, cudaEvent_t ev, unsigned) {
  Guard lk(lock());
  const ns_t start = profiler_now();
  Stream* s = stream_of(h);
  Event* e = (Event*)ev;
  host_cost(cfg().call_us);
  if (e->recorded) {
    s->tail = std::max(s->tail, e->time);
    s->real_tail = std::max(s->real_tail, e->real_time);
    join(s->seen, e->seen);
  }
  Line("cudaStreamWaitEvent").n("stream", s->id).n("event", e->id).n("event_stream", e->stream).n("event_ns", e->time);
  if (!s->capture) profile_wait(WaitKind::StreamForEvent, start, s, e);
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t h, cudaStreamCaptureStatus* s) {
  profile_query(CUPTI_RUNTIME_TRACE_CBID_cudaStreamIsCapturing_v10000);
  Guard lk(lock());
  *s = stream_of(h)->capture ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t h, cudaStreamCaptureStatus* s, unsigned long long* id, cudaGraph_t* g,
                                     const cudaGraphNode_t** d, const cudaGraphEdgeData** e, size_t* n) {
  Guard lk(lock());
  Graph* graph = stream_of(h)->capture;
  *s = graph ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  if (id) *id = graph ? graph->id : 0;
  if (g) *g = (cudaGraph_t)graph;
  if (d) *d = nullptr;
  if (e) *e = nullptr;
  if (n) *n = 0;
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* m) {
  thread_local cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::swap(mode, *m);
  return cudaSuccess;
}

// ---------------------------------------------------------------- graphs

// Of one stream: waits between captured streams are not followed. The default stream cannot be captured.
cudaError_t cudaStreamBeginCapture(cudaStream_t h, cudaStreamCaptureMode) {
  if (cudaError_t e = work_fails("cudaStreamBeginCapture")) return fail(e);
  Guard lk(lock());
  Stream* s = stream_of(h);
  if (is_null(s)) return fail(cudaErrorStreamCaptureUnsupported);
  if (s->capture) return fail(cudaErrorIllegalState);
  s->capture = new Graph{st().next_graph++};
  Line("cudaStreamBeginCapture").n("stream", s->id).n("graph", s->capture->id);
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t h, cudaGraph_t* graph) {
  Guard lk(lock());
  Stream* s = stream_of(h);
  if (!s->capture) return fail(cudaErrorIllegalState);
  Line("cudaStreamEndCapture").n("stream", s->id).n("graph", s->capture->id).n("nodes", s->capture->nodes);
  *graph = (cudaGraph_t)std::exchange(s->capture, nullptr);
  return cudaSuccess;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t*, size_t* count) {
  *count = (size_t)((Graph*)graph)->nodes;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  if (cudaError_t e = work_fails("cudaGraphInstantiate")) return fail(e);
  Guard lk(lock());
  *exec = (cudaGraphExec_t) new Graph(*(Graph*)graph);
  Line("cudaGraphInstantiate").n("graph", ((Graph*)graph)->id);
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long flags) {
  return cudaGraphInstantiate(exec, graph, flags);
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t h) {
  if (cudaError_t e = work_fails("cudaGraphLaunch")) return fail(e);
  Guard lk(lock());
  const Graph* graph = (Graph*)exec;
  Stream* s = stream_of(h);
  host_cost(cfg().launch_us);
  Line l("cudaGraphLaunch");
  Span sp = enqueue(s, graph->us);
  l.n("stream", s->id).n("graph", graph->id).n("nodes", graph->nodes).span(sp);
  profile_work(WorkKind::Kernel, s, sp, 0);
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete (Graph*)graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete (Graph*)exec;
  return cudaSuccess;
}

// ---------------------------------------------------------------- events

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* out, unsigned flags) {
  Guard lk(lock());
  Event* e = new Event;
  e->id = -1;
  e->timing = !(flags & cudaEventDisableTiming);
  *out = (cudaEvent_t)e;
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* out) { return cudaEventCreateWithFlags(out, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t ev) {
  Guard lk(lock());
  delete (Event*)ev;
  return cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t ev, cudaStream_t h, unsigned) {
  Guard lk(lock());
  Stream* s = stream_of(h);
  Event* e = (Event*)ev;
  host_cost(cfg().call_us);
  // Programs recycle event objects, partly from helper threads: the id in the log counts records.
  if (!helper_thread()) e->id = st().next_event++;
  e->recorded = true;
  e->asked = 0;
  e->stream = s->id;
  e->time = std::max(s->tail, st().host);
  if (cfg().mode == TimeMode::Model && s->tail <= st().host) e->time = s->tail;  // idle stream: ready at once
  e->seen = s->seen;
  e->real_time = s->real_tail;
  if (!helper_thread() && !s->capture) profile_record(e, s);
  Line("cudaEventRecord").n("stream", s->id).n("event", e->id).n("event_ns", e->time);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t ev, cudaStream_t s) { return cudaEventRecordWithFlags(ev, s, 0); }
cudaError_t cudaEventQuery(cudaEvent_t ev) {
  Guard lk(lock());
  Event* e = (Event*)ev;
  host_cost(cfg().query_us);
  bool ok = !e->recorded || finished(e->stream, e->time, e->seen) || (host_is_idle() && !hung(e->seen));
  if (cfg().late_events && ok && e->recorded && !host_is_idle()) ok = ++e->asked > 2;
  if (ok && e->recorded && !helper_thread()) host_knows(e->seen);
  if (cfg().log_queries) Line("cudaEventQuery").n("event", e->id).n("event_stream", e->stream).n("ready", ok);
  call_unlogged();
  return ok ? cudaSuccess : fail(cudaErrorNotReady);
}
cudaError_t cudaEventSynchronize(cudaEvent_t ev) {
  if (cudaError_t e = wait_fails("cudaEventSynchronize")) return fail(e);
  const ns_t start = profiler_now();
  Guard lk(lock());
  Event* e = (Event*)ev;
  if (e->recorded) wait_while_hung(e->seen);
  ns_t before = host_now();
  if (e->recorded) host_reached(e->time, e->seen);
  host_cost(cfg().call_us);
  if (!helper_thread()) profile_wait(WaitKind::Event, start, nullptr, e);
  Line("cudaEventSynchronize")
      .n("event", e->id)
      .n("event_stream", e->stream)
      .n("event_ns", e->time)
      .n("waited_ns", std::max<ns_t>(0, e->time - before));
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t a, cudaEvent_t b) {
  Guard lk(lock());
  *ms = (float)((((Event*)b)->time - ((Event*)a)->time) / 1e6);
  return cudaSuccess;
}

// ---------------------------------------------------------------- function attributes

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* a, const void*) {
  memset(a, 0, sizeof *a);
  a->maxThreadsPerBlock = 1024;
  a->numRegs = 32;
  a->ptxVersion = a->binaryVersion = cfg().cc_major * 10 + cfg().cc_minor;
  a->maxDynamicSharedSizeBytes = (int)kSmemBlock;
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
cudaError_t cudaFuncSetCacheConfig(const void*, cudaFuncCache) { return cudaSuccess; }
cudaError_t cudaFuncGetName(const char** nm, const void* f) {
  Guard lk(lock());
  auto k = st().kernels.find(f);
  *nm = k == st().kernels.end() ? "unknown" : k->second;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* n, const void*, int block, size_t smem,
                                                                   unsigned) {
  int by_threads = block > 0 ? 2048 / block : 32;
  int by_smem = smem ? (int)(kSmemSM / (smem + 1024)) : 32;
  *n = std::max(1, std::min({by_threads, by_smem, 32}));
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* n, const void* f, int b, size_t s) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(n, f, b, s, 0);
}
cudaError_t cudaOccupancyMaxActiveClusters(int* n, const void*, const cudaLaunchConfig_t*) {
  *n = cfg().sms;
  return cudaSuccess;
}
cudaError_t cudaProfilerStart() { return cudaSuccess; }
cudaError_t cudaProfilerStop() { return cudaSuccess; }

// ---------------------------------------------------------------- inter-process handles: not offered

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t*, void*) { return fail(cudaErrorNotSupported); }
cudaError_t cudaIpcOpenMemHandle(void**, cudaIpcMemHandle_t, unsigned) { return fail(cudaErrorNotSupported); }
cudaError_t cudaIpcCloseMemHandle(void*) { return fail(cudaErrorNotSupported); }
cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t*, cudaEvent_t) { return fail(cudaErrorNotSupported); }
cudaError_t cudaIpcOpenEventHandle(cudaEvent_t*, cudaIpcEventHandle_t) { return fail(cudaErrorNotSupported); }

}  // extern "C"
