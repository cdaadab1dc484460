#include "core/compiled/pointwise_fusion.h"

#include <algorithm>
#include <set>

#include "core/compiled/made_again.h"

namespace foreshard {
namespace {

/// Builds the fused list of one pass.
class Fusion {
 public:
  Fusion(const KernelList& list, const std::vector<Slot>& slots) : list_(list), slots_(slots) {}

  KernelList run() {
    const std::size_t count = list_.kernels.size();
    for (std::size_t begin = 0; begin < count;) {
      std::size_t end = begin;
      while (end < count && is_fusible(list_.kernels[end])) ++end;
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

/// Events of a list by kernel, so that they can be moved.
struct KernelEvents {
  std::vector<MemoryEvent> before, after;
};

std::vector<KernelEvents> events_by_kernel(const KernelList& list) {
  std::vector<KernelEvents> events;
  for (const Kernel& kernel : list.kernels) {
    const auto at = [&list](std::int32_t e) { return list.events.begin() + e; };
    events.push_back(
        {{at(kernel.before_begin), at(kernel.before_end)}, {at(kernel.after_begin), at(kernel.after_end)}});
  }
  return events;
}

void put_events(KernelList& list, const std::vector<KernelEvents>& events) {
  list.events.clear();
  const auto here = [&list] { return static_cast<std::int32_t>(list.events.size()); };
  for (std::size_t k = 0; k < list.kernels.size(); ++k) {
    Kernel& kernel = list.kernels[k];
    kernel.before_begin = here();
    list.events.insert(list.events.end(), events[k].before.begin(), events[k].before.end());
    kernel.before_end = kernel.after_begin = here();
    list.events.insert(list.events.end(), events[k].after.begin(), events[k].after.end());
    kernel.after_end = here();
  }
}

bool holds(const std::vector<MemoryEvent>& events, const MemoryEvent& event) {
  return std::find(events.begin(), events.end(), event) != events.end();
}

/// The kernel of backward that is the last to use the slot.
KernelEvents* last_user(std::vector<KernelEvents>& back, std::int32_t slot) {
  const MemoryEvent release{slot, false};
  const auto user = std::find_if(back.begin(), back.end(), [&](const KernelEvents& events) {
    return holds(events.after, release) || holds(events.before, release);
  });
  return user == back.end() ? nullptr : &*user;
}

/// A storage that backward makes again lives until the next product has read it. In backward it is a part of the kernel
/// that reads it, no product. The pass's result stays.
void make_again(const KernelList& made, std::vector<KernelEvents>& forth, std::vector<KernelEvents>& back,
                std::int32_t slot) {
  const MemoryEvent allocation{slot, true}, release{slot, false};
  const auto maker = std::find_if(forth.begin(), forth.end(),
                                  [&](const KernelEvents& events) { return holds(events.before, allocation); });
  if (maker == forth.end()) return;
  auto product = static_cast<std::size_t>(maker - forth.begin()) + 1;
  while (product < made.kernels.size() && is_fusible(made.kernels[product])) ++product;
  if (product == made.kernels.size()) return;
  forth[product].after.push_back(release);
  for (KernelEvents& events : back) {
    std::erase(events.before, release);
    std::erase(events.after, release);
  }
}

/// A storage that was let go of in the pass lives until backward has used what is made of it.
void keep_until(std::vector<KernelEvents>& forth, KernelEvents& user, std::int32_t slot) {
  const MemoryEvent release{slot, false};
  for (KernelEvents& events : forth) {
    const auto dropped = std::erase(events.before, release) + std::erase(events.after, release);
    if (dropped > 0) user.after.push_back(release);
  }
}

void apply(const MadeAgain::Cut& cut, KernelList& made, KernelList& backward) {
  std::vector<KernelEvents> forth = events_by_kernel(made), back = events_by_kernel(backward);
  for (const std::int32_t slot : cut.again) {
    KernelEvents* const user = last_user(back, slot);
    if (user == nullptr) continue;
    make_again(made, forth, back, slot);
    for (const auto& [instead, of] : cut.instead)  // others may be made of it too
      if (of == slot) keep_until(forth, *user, instead);
  }
  put_events(made, forth);
  put_events(backward, back);
}

void fuse_segment(SegmentTemplate& segment, const MadeAgain::Cut& cut) {
  KernelList& made = segment.recompute.kernels.empty() ? segment.forward : segment.recompute;
  apply(cut, made, segment.backward);
  segment.forward = Fusion(segment.forward, segment.slots).run();
  segment.recompute = Fusion(segment.recompute, segment.slots).run();
  segment.backward = Fusion(segment.backward, segment.slots).run();
  segment.early_backward = 0;  // the compiler's backward is one function with its recomputation
  const auto kernels = static_cast<std::int32_t>(segment.backward.kernels.size());
  const auto events = static_cast<std::int32_t>(segment.backward.events.size());
  for (FinishedGradient& gradient : segment.gradients)
    gradient = {gradient.param, kernels, events, false};  // it returns
}

bool is_in_block(const Model& model, const SegmentRange& range) {
  if (range.op_begin >= range.op_end) return false;
  ModuleId at = model.ops[static_cast<std::size_t>(range.op_begin)].module;
  for (; at.valid(); at = model.modules[at.index()].parent)
    if (model.modules[at.index()].class_name == model.block_class) return true;
  return false;
}

/// By template: the first of the segments that it was made of; -1: of none.
std::vector<std::int32_t> first_segments(const LoweredProgram& program, std::size_t segments) {
  std::vector<std::int32_t> first(program.templates.size(), -1);
  for (std::size_t i = std::min(program.instances.size(), segments); i-- > 0;)
    first[static_cast<std::size_t>(program.instances[i].lowered)] = static_cast<std::int32_t>(i);
  return first;
}

LoweredProgram fuse(const LoweredProgram& program, const Model& model, const std::vector<SegmentRange>& segments,
                    const std::vector<bool>& trainable, const std::vector<bool>& chosen) {
  LoweredProgram fused = program;
  const MadeAgain made_again(model, trainable);
  const std::vector<std::int32_t> first = first_segments(program, segments.size());
  for (std::size_t t = 0; t < fused.templates.size(); ++t) {
    if (chosen[t] && first[t] >= 0)
      fuse_segment(fused.templates[t],
                   made_again.cut(segments[static_cast<std::size_t>(first[t])], program.templates[t]));
  }
  return fused;
}

}  // namespace

LoweredProgram fuse_pointwise(const LoweredProgram& program, const Model& model,
                              const std::vector<SegmentRange>& segments, const std::vector<bool>& trainable) {
  return fuse(program, model, segments, trainable, std::vector<bool>(program.templates.size(), true));
}

LoweredProgram compile_blocks(const LoweredProgram& program, const Model& model,
                              const std::vector<SegmentRange>& segments, const std::vector<bool>& trainable) {
  std::vector<bool> chosen(program.templates.size(), true);
  for (std::size_t i = 0; i < program.instances.size() && i < segments.size(); ++i) {
    const auto lowered = static_cast<std::size_t>(program.instances[i].lowered);
    chosen[lowered] = chosen[lowered] && is_in_block(model, segments[i]);
  }
  return fuse(program, model, segments, trainable, chosen);
}

}  // namespace foreshard
