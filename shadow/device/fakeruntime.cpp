// Entry points of the CUDA runtime: what compiled code registers, launches, errors, devices, memory.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <cupti_runtime_cbid.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "shadow/device/fakegpu_state.h"
#include "shadow/device/races.h"

using namespace fakegpu;

extern "C" {

// ---------------------------------------------------------------- registration by compiled code

void** __cudaRegisterFatBinary(void*) {
  static void* handle[1];
  return handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) { return 1; }
void __cudaRegisterFunction(void**, const char* host, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*,
                            int*) {
  Guard lk(lock());
  st().kernels.emplace(host, name);
}
void __cudaRegisterVar(void**, char* host, char*, const char*, int, size_t size, int, int) {
  Guard lk(lock());
  st().vars.emplace(host, std::make_pair((void*)nullptr, size));
}
void __cudaRegisterManagedVar(void**, void**, char*, const char*, int, size_t, int, int) {}

struct LaunchConfig {
  dim3 grid, block;
  size_t smem;
  cudaStream_t stream;
};
static thread_local std::vector<LaunchConfig> launch_stack;

unsigned __cudaPushCallConfiguration(dim3 g, dim3 b, size_t smem, cudaStream_t s) {
  launch_stack.push_back({g, b, smem, s});
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* g, dim3* b, size_t* smem, void* s) {
  if (launch_stack.empty()) return cudaErrorUnknown;
  LaunchConfig c = launch_stack.back();
  launch_stack.pop_back();
  *g = c.grid;
  *b = c.block;
  *smem = c.smem;
  *(cudaStream_t*)s = c.stream;
  return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t* k, const void* host) {
  *k = (cudaKernel_t)host;
  return cudaSuccess;
}
cudaError_t cudaGetKernel(cudaKernel_t* k, const void* host) {
  *k = (cudaKernel_t)host;
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t k, dim3 g, dim3 b, void** args, size_t smem, cudaStream_t s) {
  return launch("cudaLaunchKernel", k, g, b, args, smem, s);
}
cudaError_t __cudaLaunchKernel_ptsz(cudaKernel_t k, dim3 g, dim3 b, void** args, size_t smem, cudaStream_t s) {
  return launch("cudaLaunchKernel", k, g, b, args, smem, s);
}
cudaError_t cudaLaunchKernel(const void* f, dim3 g, dim3 b, void** args, size_t smem, cudaStream_t s) {
  return launch("cudaLaunchKernel", f, g, b, args, smem, s);
}
cudaError_t cudaLaunchCooperativeKernel(const void* f, dim3 g, dim3 b, void** args, size_t smem, cudaStream_t s) {
  return launch("cudaLaunchCooperativeKernel", f, g, b, args, smem, s);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* c, const void* f, void** args) {
  return launch("cudaLaunchKernelExC", f, c->gridDim, c->blockDim, args, c->dynamicSmemBytes, c->stream);
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void* arg) {
  {
    Guard lk(lock());
    Stream* s = stream_of(stream);
    host_cost(cfg().launch_us);
    Line l("cudaLaunchHostFunc");
    l.n("stream", s->id).span(enqueue(s, 5));
  }
  fn(arg);  // runs at once; nothing on the device can be late for it
  return cudaSuccess;
}
cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t fn, void* arg, unsigned) {
  fn(stream, cudaSuccess, arg);
  return cudaSuccess;
}

// ---------------------------------------------------------------- errors, versions

cudaError_t cudaGetLastError() {
  profile_query(CUPTI_RUNTIME_TRACE_CBID_cudaGetLastError_v3020);
  cudaError_t e = tls_error;
  tls_error = cudaSuccess;
  return e;
}
cudaError_t cudaPeekAtLastError() { return tls_error; }
const char* cudaGetErrorString(cudaError_t e) {
  using F = const char* (*)(cudaError_t);
  static F real = (F)dlsym(RTLD_NEXT, "cudaGetErrorString");
  return real ? real(e) : e == cudaSuccess ? "no error" : "fake GPU error";
}
const char* cudaGetErrorName(cudaError_t e) {
  using F = const char* (*)(cudaError_t);
  static F real = (F)dlsym(RTLD_NEXT, "cudaGetErrorName");
  return real ? real(e) : "fakeError";
}
cudaError_t cudaDriverGetVersion(int* v) {
  *v = cfg().driver;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* v) {
  *v = CUDART_VERSION;
  return cudaSuccess;
}

// ---------------------------------------------------------------- devices

cudaError_t cudaGetDeviceCount(int* n) {
  *n = 0;
  if (cfg().driver / 1000 < CUDART_VERSION / 1000) return fail(cudaErrorInsufficientDriver);
  *n = cfg().devices;
  return *n ? cudaSuccess : fail(cudaErrorNoDevice);
}
cudaError_t cudaGetDevice(int* d) {
  profile_query(CUPTI_RUNTIME_TRACE_CBID_cudaGetDevice_v3020);
  *d = tls_device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int d) {
  if (d < 0 || d >= cfg().devices) return fail(cudaErrorInvalidDevice);
  tls_device = d;
  return cudaSuccess;
}
cudaError_t cudaInitDevice(int d, unsigned, unsigned) {
  return d < cfg().devices ? cudaSuccess : cudaErrorInvalidDevice;
}
cudaError_t cudaSetDeviceFlags(unsigned) { return cudaSuccess; }
cudaError_t cudaGetDeviceFlags(unsigned* f) {
  *f = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceReset() { return cudaSuccess; }
cudaError_t cudaDeviceSetLimit(cudaLimit, size_t) { return cudaSuccess; }
cudaError_t cudaDeviceGetLimit(size_t* v, cudaLimit) {
  *v = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* v, int a, int b) {
  *v = a != b;
  return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return cudaSuccess; }
cudaError_t cudaDeviceDisablePeerAccess(int) { return cudaSuccess; }
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return cudaSuccess;
}
// By the machine's card, whatever number CUDA shows it under.
static int bus_of(int dev) { return 0x10 + (cfg().cards.empty() ? dev : cfg().cards[(size_t)dev]); }
cudaError_t cudaDeviceGetPCIBusId(char* s, int len, int dev) {
  if (dev < 0 || dev >= cfg().devices) return fail(cudaErrorInvalidDevice);
  snprintf(s, len, "0000:%02X:00.0", bus_of(dev));
  return cudaSuccess;
}
cudaError_t cudaDeviceGetByPCIBusId(int* dev, const char*) {
  *dev = 0;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int dev) {
  if (dev < 0 || dev >= cfg().devices) return fail(cudaErrorInvalidDevice);
  memset(p, 0, sizeof *p);
  snprintf(p->name, sizeof p->name, "%s", cfg().name.c_str());
  memset(&p->uuid, 0x40 + dev, sizeof p->uuid);
  p->totalGlobalMem = (size_t)(cfg().mem_gib * 1024) * kMiB;
  p->sharedMemPerBlock = kSmemBlock;
  p->regsPerBlock = 65536;
  p->warpSize = 32;
  p->memPitch = 0x7fffffff;
  p->maxThreadsPerBlock = 1024;
  p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
  p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = 0x7fffffff;
  p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->totalConstMem = 65536;
  p->major = cfg().cc_major;
  p->minor = cfg().cc_minor;
  p->textureAlignment = 512;
  p->texturePitchAlignment = 32;
  p->multiProcessorCount = cfg().sms;
  p->canMapHostMemory = 1;
  p->concurrentKernels = 1;
  p->ECCEnabled = 1;
  p->pciBusID = bus_of(dev);
  p->asyncEngineCount = 3;
  p->unifiedAddressing = 1;
  p->memoryBusWidth = 5120;
  p->l2CacheSize = 50 << 20;
  p->persistingL2CacheMaxSize = 32 << 20;
  p->maxThreadsPerMultiProcessor = 2048;
  p->streamPrioritiesSupported = 1;
  p->globalL1CacheSupported = p->localL1CacheSupported = 1;
  p->sharedMemPerMultiprocessor = kSmemSM;
  p->regsPerMultiprocessor = 65536;
  p->managedMemory = 1;
  p->concurrentManagedAccess = 1;
  p->computePreemptionSupported = 1;
  p->canUseHostPointerForRegisteredMem = 1;
  p->cooperativeLaunch = 1;
  p->sharedMemPerBlockOptin = kSmemOptin;
  p->maxBlocksPerMultiProcessor = 32;
  p->reservedSharedMemPerBlock = 1024;
  p->hostRegisterSupported = 1;
  p->memoryPoolsSupported = 1;
  p->clusterLaunch = cfg().cc_major >= 9;
  p->unifiedFunctionPointers = 1;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* v, cudaDeviceAttr a, int dev) {
  cudaDeviceProp p;
  cudaError_t e = cudaGetDeviceProperties(&p, dev);
  if (e) return e;
  switch (a) {
    case cudaDevAttrMaxThreadsPerBlock:
    case cudaDevAttrMaxBlockDimX:
    case cudaDevAttrMaxBlockDimY: *v = 1024; break;
    case cudaDevAttrMaxBlockDimZ: *v = 64; break;
    case cudaDevAttrMaxGridDimX: *v = 0x7fffffff; break;
    case cudaDevAttrMaxGridDimY:
    case cudaDevAttrMaxGridDimZ: *v = 65535; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *v = kSmemBlock; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *v = kSmemOptin; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *v = kSmemSM; break;
    case cudaDevAttrReservedSharedMemoryPerBlock: *v = 1024; break;
    case cudaDevAttrTotalConstantMemory: *v = 65536; break;
    case cudaDevAttrWarpSize: *v = 32; break;
    case cudaDevAttrMaxRegistersPerBlock:
    case cudaDevAttrMaxRegistersPerMultiprocessor: *v = 65536; break;
    case cudaDevAttrMultiProcessorCount: *v = p.multiProcessorCount; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *v = 2048; break;
    case cudaDevAttrMaxBlocksPerMultiprocessor: *v = 32; break;
    case cudaDevAttrComputeCapabilityMajor: *v = p.major; break;
    case cudaDevAttrComputeCapabilityMinor: *v = p.minor; break;
    case cudaDevAttrL2CacheSize: *v = p.l2CacheSize; break;
    case cudaDevAttrClockRate: *v = 1980000; break;
    case cudaDevAttrMemoryClockRate: *v = 2619000; break;
    case cudaDevAttrGlobalMemoryBusWidth: *v = 5120; break;
    case cudaDevAttrPciBusId: *v = p.pciBusID; break;
    case cudaDevAttrAsyncEngineCount: *v = 3; break;
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrConcurrentKernels:
    case cudaDevAttrCooperativeLaunch:
    case cudaDevAttrMemoryPoolsSupported:
    case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrManagedMemory:
    case cudaDevAttrStreamPrioritiesSupported:
    case cudaDevAttrHostRegisterSupported: *v = 1; break;
    default: *v = 0;
  }
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  if (cudaError_t e = wait_fails("cudaDeviceSynchronize")) return fail(e);
  const ns_t start = profiler_now();
  Guard lk(lock());
  wait_device(tls_device);
  host_cost(cfg().call_us);
  Line("cudaDeviceSynchronize");
  if (!helper_thread()) profile_wait(WaitKind::Context, start, nullptr, nullptr);
  return cudaSuccess;
}

// ---------------------------------------------------------------- device memory

cudaError_t cudaMalloc(void** p, size_t n) {
  *p = nullptr;
  if (cudaError_t e = work_fails("cudaMalloc")) return fail(e);
  Guard lk(lock());
  const ns_t start = profiler_now();
  if (cfg().malloc_waits) wait_device(tls_device);
  cudaError_t e = device_malloc(p, n);
  host_cost(cfg().malloc_us);
  if (!e) profile_memory(true, false, start, *p, n);
  Line l("cudaMalloc");
  l.n("bytes", (long long)n).n("ptr", (long long)(uintptr_t)*p).n("used", (long long)mem(tls_device).used);
  if (e) l.s("error", "out of memory");
  return e ? fail(e) : e;
}
cudaError_t cudaFree(void* p) {
  Guard lk(lock());
  if (!p) return cudaSuccess;
  const ns_t start = profiler_now();
  wait_device(tls_device);  // cudaFree waits for the device
  host_cost(cfg().malloc_us);
  cudaError_t e = device_free(p);
  if (!e) profile_memory(false, false, start, p, 0);
  Line("cudaFree").n("ptr", (long long)(uintptr_t)p).n("used", (long long)mem(tls_device).used);
  return e ? fail(e) : e;
}
cudaError_t cudaMallocAsync(void** p, size_t n, cudaStream_t s) {
  Guard lk(lock());
  cudaError_t e = device_malloc(p, n);
  host_cost(cfg().call_us);
  Line("cudaMallocAsync").n("stream", stream_of(s)->id).n("bytes", (long long)n).n("ptr", (long long)(uintptr_t)*p);
  return e ? fail(e) : e;
}
cudaError_t cudaFreeAsync(void* p, cudaStream_t s) {
  Guard lk(lock());
  host_cost(cfg().call_us);
  Line("cudaFreeAsync").n("stream", stream_of(s)->id).n("ptr", (long long)(uintptr_t)p);
  forget_accesses(p, kPage);
  return device_free(p);
}
cudaError_t cudaMallocManaged(void** p, size_t n, unsigned) { return cudaMalloc(p, n); }
cudaError_t cudaMemGetInfo(size_t* free_, size_t* total) {
  Guard lk(lock());
  DeviceMemory& m = mem(tls_device);
  *free_ = m.limit > m.used ? m.limit - m.used : 0;
  *total = m.limit;
  return cudaSuccess;
}
static int the_pool;
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* p, int) {
  *p = (cudaMemPool_t)&the_pool;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetMemPool(cudaMemPool_t* p, int) {
  *p = (cudaMemPool_t)&the_pool;
  return cudaSuccess;
}
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t, cudaMemPoolAttr, void* v) {
  *(uint64_t*)v = 0;
  return cudaSuccess;
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { return cudaSuccess; }
cudaError_t cudaMemPoolSetAccess(cudaMemPool_t, const cudaMemAccessDesc*, size_t) { return cudaSuccess; }
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, size_t) { return cudaSuccess; }

// ---------------------------------------------------------------- host memory

cudaError_t cudaHostAlloc(void** p, size_t n, unsigned flags) {
  if (int code = injected("cudaHostAlloc")) return fail((cudaError_t)code);
  Guard lk(lock());
  const ns_t start = profiler_now();
  *p = nullptr;
  if (posix_memalign(p, 4096, std::max<size_t>(n, 1))) return fail(cudaErrorMemoryAllocation);
  profile_memory(true, true, start, *p, n);
  st().pinned[(uintptr_t)*p] = std::max<size_t>(n, 1);
  host_cost(cfg().malloc_us);
  Line("cudaHostAlloc").n("bytes", (long long)n).n("flags", flags);
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void** p, size_t n) { return cudaHostAlloc(p, n, 0); }
cudaError_t cudaFreeHost(void* p) {
  Guard lk(lock());
  profile_memory(false, true, profiler_now(), p, 0);
  st().pinned.erase((uintptr_t)p);
  free(p);
  Line("cudaFreeHost");
  return cudaSuccess;
}
cudaError_t cudaHostRegister(void* p, size_t n, unsigned) {
  Guard lk(lock());
  st().pinned[(uintptr_t)p] = n;
  host_cost(cfg().malloc_us);
  Line("cudaHostRegister").n("bytes", (long long)n);
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* p) {
  Guard lk(lock());
  st().pinned.erase((uintptr_t)p);
  Line("cudaHostUnregister");
  return cudaSuccess;
}
cudaError_t cudaHostGetDevicePointer(void** d, void* h, unsigned) {
  *d = h;
  return cudaSuccess;
}
cudaError_t cudaHostGetFlags(unsigned* f, void*) {
  *f = 0;
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* a, const void* p) {
  Guard lk(lock());
  memset(a, 0, sizeof *a);
  int d = device_of(p);
  a->device = d >= 0 ? d : tls_device;
  if (d >= 0) {
    a->type = cudaMemoryTypeDevice;
    a->devicePointer = (void*)p;
  } else if (is_pinned(p)) {
    a->type = cudaMemoryTypeHost;
    a->hostPointer = a->devicePointer = (void*)p;
  } else
    a->type = cudaMemoryTypeUnregistered;
  return cudaSuccess;
}

}  // extern "C"
