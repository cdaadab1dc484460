// Entry points of the CUDA driver: virtual memory management and basics.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <unordered_map>

#include "shadow/device/fakegpu_state.h"

using namespace fakegpu;

extern "C" {

// ---------------------------------------------------------------- driver interface (virtual memory management and
// basics)

static int the_context;
CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
CUresult cuDriverGetVersion(int* v) {
  *v = CUDA_VERSION;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetCount(int* n) {
  *n = cfg().devices;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGet(CUdevice* d, int i) {
  *d = i;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int* v, CUdevice_attribute a, CUdevice d) {
  if (a == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) {
    *v = 1;
    return CUDA_SUCCESS;
  }
  return cudaDeviceGetAttribute(v, (cudaDeviceAttr)a, d) ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}
CUresult cuCtxGetCurrent(CUcontext* c) {
  *c = (CUcontext)&the_context;
  return CUDA_SUCCESS;
}
CUresult cuCtxSetCurrent(CUcontext) { return CUDA_SUCCESS; }
CUresult cuCtxGetDevice(CUdevice* d) {
  *d = tls_device;
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned* f, int* a) {
  *f = 0;
  *a = 1;
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext* c, CUdevice) {
  *c = (CUcontext)&the_context;
  return CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult, const char** s) {
  *s = "fake GPU driver error";
  return CUDA_SUCCESS;
}
CUresult cuGetErrorName(CUresult, const char** s) {
  *s = "CUDA_ERROR_FAKE";
  return CUDA_SUCCESS;
}

// Physical memory: a handle is a heap object holding its size.
struct Physical {
  size_t bytes;
  int dev;
};
CUresult cuMemGetAllocationGranularity(size_t* g, const CUmemAllocationProp*, CUmemAllocationGranularity_flags) {
  *g = kPage;
  return CUDA_SUCCESS;
}
CUresult cuMemAddressReserve(CUdeviceptr* p, size_t n, size_t align, CUdeviceptr, unsigned long long) {
  Guard lk(lock());
  DeviceMemory& m = mem(tls_device);
  *p = take_range(m, (n + kPage - 1) / kPage * kPage, std::max(align, kPage));
  return *p ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult cuMemAddressFree(CUdeviceptr p, size_t n) {
  Guard lk(lock());
  give_range(mem(device_of((void*)p)), p, (n + kPage - 1) / kPage * kPage);
  return CUDA_SUCCESS;
}
CUresult cuMemCreate(CUmemGenericAllocationHandle* h, size_t n, const CUmemAllocationProp* p, unsigned long long) {
  Guard lk(lock());
  int d = p ? p->location.id : tls_device;
  host_cost(cfg().malloc_us);
  bool ok = charge(mem(d), n);
  Line("cuMemCreate").n("bytes", (long long)n).n("ok", ok).n("used", (long long)mem(d).used);
  if (!ok) return CUDA_ERROR_OUT_OF_MEMORY;
  *h = (CUmemGenericAllocationHandle)(uintptr_t) new Physical{n, d};
  return CUDA_SUCCESS;
}
CUresult cuMemRelease(CUmemGenericAllocationHandle h) {
  Guard lk(lock());
  Physical* p = (Physical*)(uintptr_t)h;
  mem(p->dev).used -= p->bytes;
  Line("cuMemRelease").n("bytes", (long long)p->bytes);
  delete p;
  return CUDA_SUCCESS;
}
CUresult cuMemMap(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long) {
  return CUDA_SUCCESS;
}
CUresult cuMemUnmap(CUdeviceptr, size_t) { return CUDA_SUCCESS; }
CUresult cuMemSetAccess(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t) { return CUDA_SUCCESS; }

static CUresult unsupported() { return CUDA_ERROR_NOT_SUPPORTED; }

static void* driver_symbol(const std::string& n) {
#define SYM(f) \
  { #f, (void*)&f }
  static const std::unordered_map<std::string, void*> table = {SYM(cuInit),
                                                               SYM(cuDriverGetVersion),
                                                               SYM(cuDeviceGetCount),
                                                               SYM(cuDeviceGet),
                                                               SYM(cuDeviceGetAttribute),
                                                               SYM(cuCtxGetCurrent),
                                                               SYM(cuCtxSetCurrent),
                                                               SYM(cuCtxGetDevice),
                                                               SYM(cuDevicePrimaryCtxGetState),
                                                               SYM(cuDevicePrimaryCtxRetain),
                                                               SYM(cuGetErrorString),
                                                               SYM(cuGetErrorName),
                                                               SYM(cuMemGetAllocationGranularity),
                                                               SYM(cuMemAddressReserve),
                                                               SYM(cuMemAddressFree),
                                                               SYM(cuMemCreate),
                                                               SYM(cuMemRelease),
                                                               SYM(cuMemMap),
                                                               SYM(cuMemUnmap),
                                                               SYM(cuMemSetAccess),
                                                               SYM(cuTensorMapEncodeTiled)};
#undef SYM
  auto it = table.find(n);
  return it == table.end() ? (void*)&unsupported : it->second;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* sym, void** fn, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* r) {
  *fn = driver_symbol(sym);
  if (r) *r = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
// Only older toolkits declare this one.
cudaError_t cudaGetDriverEntryPoint(const char* sym, void** fn, unsigned long long,
                                    cudaDriverEntryPointQueryResult* r) {
  return cudaGetDriverEntryPointByVersion(sym, fn, 0, 0, r);
}

}  // extern "C"
