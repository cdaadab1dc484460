// Reductions that are split over thread blocks.
#include <algorithm>

#include "core/lowering/lowering_autograd.h"

namespace foreshard::lowering {

namespace {

std::int64_t last_pow2(std::int64_t n) {
  std::int64_t p = 1;
  while (p * 2 <= n) p *= 2;
  return p;
}

struct Dim {
  std::int64_t size, stride;
  bool reduced;
};

/// Reduced dimensions first, each group innermost first; what lies in one piece is one dimension.
std::vector<Dim> merged_dims(const Layout& input, const std::vector<std::int32_t>& dims) {
  std::vector<Dim> order;
  for (std::int32_t i = 0; i < input.sizes.n; ++i) {
    const bool reduced = dims.empty() || std::find(dims.begin(), dims.end(), i) != dims.end();
    if (input.sizes[i] != 1) order.push_back({input.sizes[i], input.strides[i], reduced});
  }
  std::stable_sort(order.begin(), order.end(),
                   [](const Dim& a, const Dim& b) { return a.reduced != b.reduced ? a.reduced : a.stride < b.stride; });
  std::vector<Dim> merged;
  for (const Dim& dim : order) {
    if (!merged.empty() && merged.back().reduced == dim.reduced &&
        merged.back().size * merged.back().stride == dim.stride)
      merged.back().size *= dim.size;
    else
      merged.push_back(dim);
  }
  return merged;
}

/// Of one value on its way: the largest is of the input's own type (ReduceMaxValuesKernel.cu), sums are in float32.
Bytes accumulator_bytes(std::string_view name, DType dtype) {
  for (const std::string_view own : {"aten.amax.", "aten.amin.", "aten.max.default", "aten.min.default"})
    if (name.starts_with(own)) return itemsize(dtype);
  return 4;
}

}  // namespace

/// The launch heuristics of PyTorch's reduce kernel: 512 threads, 16 to 256 values per thread.
ReduceWorkspace reduce_workspace(std::string_view name, const Layout& input, const std::vector<std::int32_t>& dims,
                                 std::int64_t multiprocessors) {
  const std::vector<Dim> merged = merged_dims(input, dims);
  std::int64_t inputs = 1, outputs = 1;
  std::size_t reduce_dims = 0;
  for (const Dim& dim : merged) {
    (dim.reduced ? inputs : outputs) *= dim.size;
    if (dim.reduced) ++reduce_dims;
  }
  if (merged.empty() || reduce_dims == 0 || inputs == 0 || outputs == 0) return {};
  const bool fastest = reduce_dims == merged.size() || merged[0].stride < merged[reduce_dims].stride;
  std::int64_t dim0 = fastest ? inputs : outputs, dim1 = fastest ? outputs : inputs;
  const std::int64_t moving = fastest ? merged[0].stride : merged[reduce_dims].stride;
  std::int64_t output_vec = 1;
  if (moving == 1) {
    if (fastest && dim0 > 128 && merged.size() == 1) {
      dim0 /= 4;
    } else if (!fastest) {
      output_vec = 4;
      while (merged[reduce_dims].size % output_vec != 0) output_vec /= 2;
      for (std::size_t i = 0; i < merged.size(); ++i)
        if (i != reduce_dims)
          while (merged[i].stride % output_vec != 0) output_vec /= 2;
      dim0 /= output_vec;
    }
  }
  const std::int64_t max_threads = 512 / output_vec;
  const std::int64_t dim0_pow2 = dim0 < max_threads ? last_pow2(std::max<std::int64_t>(dim0, 1)) : max_threads;
  const std::int64_t dim1_pow2 = dim1 < max_threads ? last_pow2(std::max<std::int64_t>(dim1, 1)) : max_threads;
  std::int64_t width = std::min<std::int64_t>(dim0_pow2, 32);
  const std::int64_t height = std::min(dim1_pow2, max_threads / width);
  width = std::min(dim0_pow2, max_threads / height);
  std::int64_t step_input = 1, step_output = 1;
  if (fastest)
    step_input *= width;
  else
    step_output *= width;
  const auto values = [&] { return ceil_div(inputs, step_input); };
  bool across_warps = values() >= std::min<std::int64_t>(height * 16, 256);
  if (across_warps)
    step_input *= height;
  else
    step_output *= height;
  const std::int64_t grid = ceil_div(outputs / output_vec, step_output);
  const std::int64_t target = multiprocessors * (2048 / (width * height));
  if (!across_warps || values() < 256 || grid > target) return {};
  const std::int64_t ctas = std::max(std::min(ceil_div(target, grid), ceil_div(values(), 16)), ceil_div(values(), 256));
  if (ctas <= 1) return {};
  Bytes buffer = accumulator_bytes(name, input.dtype) * outputs * ctas;
  if (!fastest) buffer *= width * output_vec;
  return {buffer, 4 * grid};
}

Bytes batch_norm_staging(const Layout& input, std::int64_t values) {
  if (input.sizes.n < 2 || input.sizes[1] < 1 || !input.contiguous() || input.strides[1] != 1) return 0;
  constexpr std::int64_t kThreads = 512, kTile = 32, kElements = 16, kMostRows = 128, kFewestRows = 8;
  const std::int64_t channels = input.sizes[1], rows = input.numel() / channels;
  const std::int64_t width = std::min(last_pow2(channels), kTile);
  const std::int64_t height =
      std::min(last_pow2(std::max<std::int64_t>(ceil_div(rows, kElements), 1)), kThreads / width);
  const std::int64_t grid = std::min(ceil_div(rows, height * kElements), kMostRows);
  return grid < kFewestRows ? 0 : 4 * values * channels * grid;
}

}  // namespace foreshard::lowering
