// Device memory: address space with exact accounting. Whole pages from the lowest fitting hole; what is small shares
// pages.
#include <cuda_runtime_api.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "shadow/device/fakegpu_state.h"

namespace fakegpu {

// ---------------------------------------------------------------- device memory

DeviceMemory& mem(int dev) {
  static std::vector<DeviceMemory>* all = new std::vector<DeviceMemory>(std::max(cfg().devices, 1));
  DeviceMemory& m = (*all)[dev];
  if (!m.base) {
    int prot = cfg().backed ? PROT_READ | PROT_WRITE : PROT_NONE;
    void* p = mmap(nullptr, kSpan + kPage, prot, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) {
      perror("fakegpu: cannot reserve address space");
      abort();
    }
    m.base = ((uintptr_t)p + kPage - 1) / kPage * kPage;
    m.holes[m.base] = kSpan;
    m.limit = (size_t)(cfg().mem_gib * 1024) * kMiB;
    m.used = (size_t)(cfg().context_mib * kMiB);
  }
  return m;
}

int device_of(const void* p) {
  for (int d = 0; d < cfg().devices; d++) {
    uintptr_t b = mem(d).base;
    if ((uintptr_t)p >= b && (uintptr_t)p < b + kSpan) return d;
  }
  return -1;
}
bool is_device_ptr(const void* p) { return device_of(p) >= 0; }

void charge_device_memory(double mib) {
  DeviceMemory& m = mem(tls_device);
  m.used += (size_t)(mib * kMiB);
  m.peak = std::max(m.peak, m.used);
}

uintptr_t take_range(DeviceMemory& m, size_t n, size_t align) {
  for (auto it = m.holes.begin(); it != m.holes.end(); ++it) {
    uintptr_t a = (it->first + align - 1) / align * align;
    uintptr_t end = it->first + it->second;
    if (a + n > end) continue;
    uintptr_t h = it->first;
    m.holes.erase(it);
    if (a > h) m.holes[h] = a - h;
    if (end > a + n) m.holes[a + n] = end - a - n;
    return a;
  }
  return 0;
}

void give_range(DeviceMemory& m, uintptr_t a, size_t n) {
  auto it = m.holes.emplace(a, n).first;
  auto nx = std::next(it);
  if (nx != m.holes.end() && it->first + it->second == nx->first) {
    it->second += nx->second;
    m.holes.erase(nx);
  }
  if (it != m.holes.begin()) {
    auto pv = std::prev(it);
    if (pv->first + pv->second == it->first) {
      pv->second += it->second;
      m.holes.erase(it);
    }
  }
}

bool charge(DeviceMemory& m, size_t n) {
  if (m.used + n > m.limit) return false;
  m.used += n;
  m.peak = std::max(m.peak, m.used);
  return true;
}

cudaError_t device_malloc(void** out, size_t size) {
  *out = nullptr;
  if (!size) return cudaSuccess;
  DeviceMemory& m = mem(tls_device);
  if (size < kMiB) {  // shares a 2 MiB page
    size = (size + 511) / 512 * 512;
    if (!m.open_slab || m.slabs[m.open_slab].used + size > kPage) {
      if (!charge(m, kPage)) return cudaErrorMemoryAllocation;
      m.open_slab = take_range(m, kPage);
      m.slabs[m.open_slab] = Slab{};
    }
    Slab& sl = m.slabs[m.open_slab];
    uintptr_t a = m.open_slab + sl.used;
    sl.used += size;
    sl.live++;
    m.small[a] = m.open_slab;
    *out = (void*)a;
    return cudaSuccess;
  }
  size = (size + kPage - 1) / kPage * kPage;
  if (!charge(m, size)) return cudaErrorMemoryAllocation;
  uintptr_t a = take_range(m, size);
  m.blocks[a] = size;
  *out = (void*)a;
  return cudaSuccess;
}

cudaError_t device_free(void* p) {
  if (!p) return cudaSuccess;
  int d = device_of(p);
  if (d < 0) return cudaErrorInvalidValue;
  DeviceMemory& m = mem(d);
  auto b = m.blocks.find((uintptr_t)p);
  if (b != m.blocks.end()) {
    m.used -= b->second;
    if (cfg().backed) madvise(p, b->second, MADV_DONTNEED);
    give_range(m, b->first, b->second);
    m.blocks.erase(b);
    return cudaSuccess;
  }
  auto s = m.small.find((uintptr_t)p);
  if (s == m.small.end()) return cudaErrorInvalidValue;
  uintptr_t slab = s->second;
  m.small.erase(s);
  if (--m.slabs[slab].live == 0) {
    m.slabs.erase(slab);
    if (m.open_slab == slab) m.open_slab = 0;
    m.used -= kPage;
    give_range(m, slab, kPage);
  }
  return cudaSuccess;
}

bool is_pinned(const void* p) {
  State& s = st();
  auto it = s.pinned.upper_bound((uintptr_t)p);
  if (it == s.pinned.begin()) return false;
  --it;
  return (uintptr_t)p < it->first + it->second;
}

}  // namespace fakegpu
