// What the parts of the virtual GPU share: its one locked state, device memory, streams and completion. Entry points
// lie in fakeruntime.cpp, fakestreams.cpp and fakedriver.cpp.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "shadow/device/fakegpu.h"

namespace fakegpu {

// All state is created on first use and never destroyed: the shim is called from static
// initialisers and exit handlers of other libraries.
struct State {
  std::recursive_mutex mu;
  ns_t host = 0;
  ns_t call_began = -1;  // of the call that is under way; -1: none is
  uint64_t calls = 0;
  FILE* log = nullptr;
  bool log_on = true;
  bool started = false;
  std::vector<std::unique_ptr<Stream>> streams;
  std::vector<Stream*> null_stream;  // per device
  std::set<Stream*> live;
  std::vector<uint64_t> issued, done;  // operations per stream; done = known complete (lazy)
  int next_event = 0, next_graph = 1;
  std::set<const void*> events;
  std::unordered_map<const void*, const char*> kernels;  // host stub -> mangled name
  std::unordered_map<const void*, std::string> pretty;
  std::unordered_map<const void*, std::pair<void*, size_t>> vars;
  std::map<uintptr_t, size_t> pinned;
};
State& st();
using Guard = std::lock_guard<std::recursive_mutex>;

// fakeconfig.cpp
double env_num(const char* key, double dflt);
void want_failures(const char* text);     // in place of what FAKEGPU_FAIL says
cudaError_t work_fails(const char* api);  // of work of the device: also lost with it ("device@N=CODE+")
cudaError_t wait_fails(const char* api);  // of a call that waits: it is told, too, of what went wrong before

// fakegpu.cpp
extern thread_local int tls_device;
extern thread_local cudaError_t tls_error;
bool helper_thread();
cudaError_t fail(cudaError_t e);
bool host_is_idle();
void join(std::vector<uint64_t>& a, const std::vector<uint64_t>& b);
Stream* make_stream(int dev, bool blocking, int priority);
Stream* null_stream(int dev);
bool is_null(Stream* s);
void host_reached(ns_t t, const std::vector<uint64_t>& seen);
void wait_device(int dev);
bool finished(int stream, ns_t t, const std::vector<uint64_t>& seen);
cudaError_t launch(const char* api, const void* f, dim3 g, dim3 b, void** args, size_t smem, cudaStream_t stream);
cudaError_t copy(const char* api, void* dst, const void* src, size_t n, cudaMemcpyKind kind, Stream* s, bool async);
cudaError_t fill(const char* api, void* p, int v, size_t n, cudaStream_t stream);

// fakememory.cpp
constexpr size_t kMiB = 1 << 20, kPage = 2 * kMiB;
constexpr size_t kSpan = size_t(1) << 40;  // address space per device
struct Slab {
  size_t used = 0, live = 0;
};
struct DeviceMemory {
  uintptr_t base = 0;
  size_t limit = 0, used = 0, peak = 0;
  std::map<uintptr_t, size_t> holes;     // free address ranges
  std::map<uintptr_t, size_t> blocks;    // allocations in whole pages
  std::map<uintptr_t, Slab> slabs;       // 2 MiB pages shared by small allocations
  std::map<uintptr_t, uintptr_t> small;  // small allocation -> slab
  uintptr_t open_slab = 0;
};
DeviceMemory& mem(int dev);
int device_of(const void* p);
// Lowest fitting hole; physical memory is charged by the caller.
uintptr_t take_range(DeviceMemory& m, size_t n, size_t align = kPage);
void give_range(DeviceMemory& m, uintptr_t a, size_t n);
bool charge(DeviceMemory& m, size_t n);
cudaError_t device_malloc(void** out, size_t size);
cudaError_t device_free(void* p);
bool is_pinned(const void* p);

// Shared memory, as a card of this kind has it.
constexpr size_t kSmemBlock = 49152, kSmemOptin = 232448, kSmemSM = 233472;

}  // namespace fakegpu
