// Backward of as_strided, whose windows may overlap; see backward.h.
#include <algorithm>

#include "core/lowering/backward/backward.h"
#include "core/lowering/lowering_machine.h"
#include "core/lowering/views/views.h"

namespace foreshard::lowering {

namespace {

/// Elements from the first that these sizes and strides reach to the last.
std::int64_t reach(const Dims& sizes, const Dims& strides) {
  std::int64_t last = 0;
  for (std::int32_t i = 0; i < sizes.n; ++i) {
    if (sizes[i] == 0) return 0;
    last += (sizes[i] - 1) * strides[i];
  }
  return last + 1;
}

/// Whether two places may be one element (FunctionsManual.cpp: _maybe_overlapping_memory).
bool may_overlap(const Dims& sizes, const Dims& strides) {
  std::vector<std::pair<std::int64_t, std::int64_t>> steps;  // stride, size
  for (std::int32_t i = 0; i < sizes.n; ++i)
    if (sizes[i] > 1) steps.emplace_back(strides[i], sizes[i]);
  std::sort(steps.begin(), steps.end());
  std::int64_t furthest = 0;
  for (const auto& [stride, size] : steps) {
    if (stride <= furthest) return true;
    furthest += stride * (size - 1);
  }
  return false;
}

Layout line(std::int64_t count, DType dtype) {
  Dims sizes;
  sizes.push(count);
  return contiguous_layout(sizes, dtype);
}

void write_into(Emitter& e, std::string_view name, const Ref& out, std::initializer_list<const Ref*> inputs) {
  Kernel kernel = e.start(name, KernelClass::Gather, e.layout(out).dtype);
  std::vector<Ref> read;
  for (const Ref* input : inputs) {
    kernel.read += e.layout(*input).bytes();
    read.push_back(*input);
  }
  kernel.written = e.layout(out).bytes();
  e.launch(kernel, read, {&out, 1});
}

}  // namespace

/// Zeros as far as the input or its windows reach, into which the gradient is copied; where windows overlap it is added
/// up by the numbers of their elements, which are 64 bits wide and written out (FunctionsManual.cpp:
/// as_strided_backward).
std::vector<Ref> backward_of_as_strided(Emitter& e, BackwardInput& in, const Ref& g) {
  std::vector<Ref> out(in.node.in.size());
  if (!in.wants(0)) return out;
  const Layout from = in.node.in[0];
  Layout windows = in.node.out[0];
  windows.strides = part_strides(*in.node.op, from, windows.sizes);
  const std::int64_t count = std::max(reach(from.sizes, from.strides), reach(windows.sizes, windows.strides));
  const Ref room = e.fresh("aten.new_zeros.default", KernelClass::Elementwise, line(count, from.dtype), {&g});
  if (may_overlap(windows.sizes, windows.strides)) {
    const Ref numbers = e.fresh("aten.arange.default", KernelClass::Elementwise, line(count, DType::Int64), {});
    windows.dtype = DType::Int64;
    const Ref seen = e.tape().alias(numbers, windows);
    const Dims flat = line(windows.numel(), DType::Int64).sizes;
    const Ref places = e.reshape(seen, flat), values = e.reshape(g, flat);
    write_into(e, "aten.index_add_.default", room, {&places, &values});
  } else {
    write_into(e, "aten.copy_.default", room, {&g});
  }
  out[0] = e.tape().alias(room, from);
  return out;
}

}  // namespace foreshard::lowering
