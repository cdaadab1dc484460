#include "sim/pointwise_fusion.h"

#include <algorithm>
#include <set>

namespace foreshard {
namespace {

bool fuses(const Kernel& kernel) {
  return kernel.kind == KernelClass::Elementwise || kernel.kind == KernelClass::Reduction ||
         kernel.kind == KernelClass::Copy || kernel.launches == 0;
}

/// Builds the fused list of one pass.
class Fusion {
 public:
  Fusion(const KernelList& list, const std::vector<Slot>& slots) : list_(list), slots_(slots) {}

  KernelList run() {
    const std::size_t count = list_.kernels.size();
    for (std::size_t begin = 0; begin < count;) {
      std::size_t end = begin;
      while (end < count && fuses(list_.kernels[end])) ++end;
      if (end - begin < 2) {
        copy(list_.kernels[begin]);
        ++begin;
        continue;
      }
      fuse(begin, end);
      begin = end;
    }
    return std::move(made_);
  }

 private:
  std::int32_t here() const { return static_cast<std::int32_t>(made_.events.size()); }

  void append(std::int32_t begin, std::int32_t end) {
    made_.events.insert(made_.events.end(), list_.events.begin() + begin, list_.events.begin() + end);
  }

  void copy(Kernel kernel) {
    const Kernel old = kernel;
    kernel.before_begin = here();
    append(old.before_begin, old.before_end);
    kernel.before_end = kernel.after_begin = here();
    append(old.after_begin, old.after_end);
    kernel.after_end = here();
    made_.kernels.push_back(kernel);
  }

  /// Storages allocated and freed between the two kernels.
  std::set<std::int32_t> inner_slots(std::size_t begin, std::size_t end) const {
    std::set<std::int32_t> opened, inner;
    for (std::size_t k = begin; k < end; ++k) {
      for_events(list_.kernels[k], [&](const MemoryEvent& event) {
        if (event.alloc) opened.insert(event.slot);
        if (!event.alloc && opened.count(event.slot) > 0) inner.insert(event.slot);
      });
    }
    return inner;
  }

  template <class F>
  void for_events(const Kernel& kernel, F f) const {
    for (std::int32_t e = kernel.before_begin; e < kernel.before_end; ++e) f(list_.events[static_cast<std::size_t>(e)]);
    for (std::int32_t e = kernel.after_begin; e < kernel.after_end; ++e) f(list_.events[static_cast<std::size_t>(e)]);
  }

  void fuse(std::size_t begin, std::size_t end) {
    const std::set<std::int32_t> inner = inner_slots(begin, end);
    Kernel fused = list_.kernels[begin];
    fused.kind = KernelClass::Elementwise;
    fused.flops = fused.read = fused.written = 0;
    fused.launches = 0;
    Bytes largest = 0, spared = 0;
    std::vector<MemoryEvent> before, after;
    for (std::size_t k = begin; k < end; ++k) {
      const Kernel& kernel = list_.kernels[k];
      fused.flops += kernel.flops;
      fused.read += kernel.read;
      fused.written += kernel.written;
      fused.unknown = fused.unknown || kernel.unknown;
      fused.launches = std::max(fused.launches, std::min(kernel.launches, 1));
      if (fused.model_op < 0) fused.model_op = kernel.model_op;
      largest = std::max(largest, kernel.read + kernel.written);
      for_events(kernel, [&](const MemoryEvent& event) {
        if (event.slot >= 0 && inner.count(event.slot) > 0) return;
        (event.alloc ? before : after).push_back(event);
        // What leaves the run is written once but not read back inside it.
        if (event.alloc && k + 1 < end) spared += slots_[static_cast<std::size_t>(event.slot)].bytes;
      });
    }
    for (const std::int32_t slot : inner) spared += 2 * slots_[static_cast<std::size_t>(slot)].bytes;
    const Bytes all = fused.read + fused.written;
    const Bytes moved = std::max(all - spared, largest / 2);
    fused.read = all > 0 ? static_cast<Bytes>(static_cast<double>(moved) * static_cast<double>(fused.read) /
                                              static_cast<double>(all))
                         : 0;
    fused.written = moved - fused.read;
    fused.before_begin = here();
    made_.events.insert(made_.events.end(), before.begin(), before.end());
    fused.before_end = fused.after_begin = here();
    made_.events.insert(made_.events.end(), after.begin(), after.end());
    fused.after_end = here();
    made_.kernels.push_back(fused);
  }

  const KernelList& list_;
  const std::vector<Slot>& slots_;
  KernelList made_;
};

}  // namespace

LoweredProgram fuse_pointwise(const LoweredProgram& program) {
  LoweredProgram fused = program;
  for (SegmentTemplate& segment : fused.templates) {
    segment.forward = Fusion(segment.forward, segment.slots).run();
    segment.recompute = Fusion(segment.recompute, segment.slots).run();
    segment.backward = Fusion(segment.backward, segment.slots).run();
  }
  return fused;
}

}  // namespace foreshard
