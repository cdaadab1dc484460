// What _trilinear (Linear.cpp) has beside its result: for one index of the unrolled dimension after the other the
// product of its first two arguments, and that one's with the third, both summed over what the result lacks.
#include <algorithm>
#include <array>

#include "core/lowering/lowering_autograd.h"

namespace foreshard::lowering {
namespace {

using Lacks = std::vector<std::int64_t>;  // dimensions that a tensor does not have

bool lacks(const Lacks& list, std::int64_t dim) { return std::find(list.begin(), list.end(), dim) != list.end(); }

/// The tensor's size in a dimension of all; 1 where it has none.
std::int64_t size_in(const Layout& tensor, const Lacks& list, std::int64_t dim) {
  if (lacks(list, dim)) return 1;
  const auto before =
      static_cast<std::int32_t>(std::count_if(list.begin(), list.end(), [&](auto d) { return d < dim; }));
  const auto at = static_cast<std::int32_t>(dim) - before;
  return at < tensor.sizes.n ? tensor.sizes[at] : 1;
}

}  // namespace

TrilinearWorkspace trilinear_workspace(const Op& op, std::array<Layout, 3> in, const Layout* grad,
                                       std::size_t argument) {
  std::array<Lacks, 3> expand = {list_arg(op, 3, "expand1"), list_arg(op, 4, "expand2"), list_arg(op, 5, "expand3")};
  Lacks summed = list_arg(op, 6, "sumdim");
  if (grad != nullptr && argument < in.size()) {  // _trilinear_backward: the gradient stands for the argument
    in[argument] = *grad;
    std::swap(expand[argument], summed);
  }
  const std::int64_t unrolled = int_arg(op, 7, "unroll_dim", 1);
  const auto dims = in[0].sizes.n + static_cast<std::int64_t>(expand[0].size());
  TrilinearWorkspace bytes{itemsize(in[0].dtype), itemsize(in[0].dtype)};
  for (std::int64_t d = 0; d < dims; ++d) {
    if (d == unrolled) continue;
    const bool sums = lacks(summed, d), third = !lacks(expand[2], d);
    const std::int64_t both = std::max(size_in(in[0], expand[0], d), size_in(in[1], expand[1], d));
    const std::int64_t kept = sums && !third ? 1 : both;
    bytes.first *= kept;
    bytes.second *= sums ? 1 : std::max(kept, size_in(in[2], expand[2], d));
  }
  return bytes;
}

}  // namespace foreshard::lowering
