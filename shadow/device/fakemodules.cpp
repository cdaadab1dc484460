// fakegpu - kernels that a program compiles while it runs (fakenvrtc.cpp): the driver loads what the compiler gave and
// launches it as any other kernel. PyTorch's jiterated operators (erfinv, special functions, products of booleans) go
// so.
#include <cuda.h>

#include <algorithm>
#include <set>
#include <string>

#include "shadow/device/fakegpu.h"
#include "shadow/device/kernel_time.h"

using namespace fakegpu;
using Guard = std::lock_guard<std::recursive_mutex>;

extern "C" {

static int the_module;
CUresult cuModuleLoad(CUmodule* m, const char*) {
  *m = (CUmodule)&the_module;
  return CUDA_SUCCESS;
}
CUresult cuModuleLoadData(CUmodule* m, const void*) { return cuModuleLoad(m, nullptr); }
CUresult cuModuleLoadDataEx(CUmodule* m, const void*, unsigned, CUjit_option*, void**) {
  return cuModuleLoad(m, nullptr);
}
CUresult cuModuleUnload(CUmodule) { return CUDA_SUCCESS; }
CUresult cuModuleGetFunction(CUfunction* f, CUmodule, const char* name) {
  Guard lk(lock());
  static auto* functions = new std::set<std::string>;
  *f = (CUfunction) & *functions->insert(name).first;
  return CUDA_SUCCESS;
}
CUresult cuFuncGetAttribute(int* v, CUfunction_attribute a, CUfunction) {
  *v = a == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : a == CU_FUNC_ATTRIBUTE_NUM_REGS ? 32 : 0;
  return CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) { return CUDA_SUCCESS; }
CUresult cuFuncSetCacheConfig(CUfunction, CUfunc_cache) { return CUDA_SUCCESS; }
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* n, CUfunction, int block, size_t) {
  *n = std::max(1, block > 0 ? std::min(32, 2048 / block) : 32);
  return CUDA_SUCCESS;
}
CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                        unsigned, CUstream stream, void** args, void**) {
  const int code = injected("cuLaunchKernel"), lost = injected("device");
  if (code || lost) return (CUresult)(code ? code : lost);
  Guard lk(lock());
  const std::string& name = *(const std::string*)f;
  Stream* s = stream_of(stream);
  host_cost(cfg().launch_us);
  const double blocks = double(gx) * gy * gz, threads = double(bx) * by * bz;
  double us = std::max(cfg().kernel_us, blocks * threads * cfg().ns_per_thread / 1000);
  if (cfg().by_bytes) us = kernel_us_by_bytes(f, name, {blocks, threads, double(gx), double(gy) * gz, args});
  Line l("cuLaunchKernel");
  if (s->capture) {
    s->capture->nodes++;
    s->capture->us += us;
    l.n("stream", s->id).n("captured", s->capture->id).s("name", name);
    return CUDA_SUCCESS;
  }
  const Span sp = enqueue(s, us);
  l.n("stream", s->id).s("name", name);
  l.raw("grid", "[" + std::to_string(gx) + "," + std::to_string(gy) + "," + std::to_string(gz) + "]");
  l.raw("block", "[" + std::to_string(bx) + "," + std::to_string(by) + "," + std::to_string(bz) + "]");
  l.span(sp);
  profile_work(WorkKind::Kernel, s, sp, 0);
  return CUDA_SUCCESS;
}
CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                   unsigned bz, unsigned smem, CUstream stream, void** args) {
  return cuLaunchKernel(f, gx, gy, gz, bx, by, bz, smem, stream, args, nullptr);
}

}  // extern "C"
