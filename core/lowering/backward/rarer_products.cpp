// Products beside mm and bmm: rows times the matrix of their group (aten._grouped_mm; GroupMM.cu), and systems with a
// triangular matrix (BatchLinearAlgebra.cpp). Gradients as FunctionsManual.cpp makes them.
#include <algorithm>

#include "core/lowering/backward/backward.h"
#include "core/lowering/cpu_workspace.h"
#include "core/lowering/lowering_machine.h"

namespace foreshard::lowering {
namespace {

/// Whether the last two dimensions lie in columns, without gaps.
bool lies_in_columns(const Layout& matrix) {
  const std::int32_t n = matrix.sizes.n;
  return n >= 2 && matrix.strides[n - 2] == 1 && matrix.strides[n - 1] == matrix.sizes[n - 2];
}

Layout turned(Layout layout) {
  std::swap(layout.sizes[layout.sizes.n - 2], layout.sizes[layout.sizes.n - 1]);
  return plain(layout);
}

/// The view with the last two dimensions exchanged.
Ref across(Emitter& e, const Ref& matrices) {
  const std::int32_t n = e.layout(matrices).sizes.n;
  return e.transpose(matrices, n - 2, n - 1);
}

}  // namespace

std::vector<Bytes> grouped_product_workspace(std::int64_t groups, const LoweringOptions& machine) {
  if (machine.cpu_threads > 0 || machine.multiprocessors <= 0) return {};
  constexpr Bytes kArguments = 60;     // of a group: three addresses, three sizes, three strides
  constexpr Bytes kDescriptors = 512;  // of a multiprocessor: CUTLASS's tensor maps, four of 128 bytes
  return {kArguments * groups, kDescriptors * machine.multiprocessors};
}

void describe_grouped_product(Kernel& kernel, const Layout& left, const Layout& right, std::int64_t groups) {
  if (left.sizes.n < 2 || right.sizes.n < 2) return;
  const std::int64_t each = std::max<std::int64_t>(groups, 1);
  const bool rows_apart = left.sizes.n == 2 && right.sizes.n == 3,
             columns_apart = left.sizes.n == 3 && right.sizes.n == 2;
  const bool along_inner = left.sizes.n == 2 && right.sizes.n == 2;
  const std::int64_t rows = left.sizes[left.sizes.n - 2], inner = left.sizes[left.sizes.n - 1];
  const std::int64_t columns = right.sizes[right.sizes.n - 1];
  kernel.batch = each;
  kernel.m = rows_apart ? ceil_div(rows, each) : rows;
  kernel.n = columns_apart ? ceil_div(columns, each) : columns;
  kernel.k = along_inner ? ceil_div(inner, each) : inner;
  kernel.flops = 2 * left.numel() * columns / (columns_apart ? each : 1);
}

std::vector<Ref> grouped_product_backward(Emitter& e, BackwardInput& in, const Ref& g) {
  std::vector<Ref> out(in.node.in.size());
  if (out.size() < 2 || in.node.in[0].sizes.n < 2 || in.node.in[1].sizes.n < 2) return out;
  const Ref ends = in.saved_arg(2);
  const std::int64_t groups = ends ? e.layout(ends).numel() : 1;
  const auto product = [&](const Ref& a, const Ref& b, const Layout& layout) {
    Kernel kernel = e.start("aten._grouped_mm.default", KernelClass::Gemm, layout.dtype);
    describe_grouped_product(kernel, e.layout(a), e.layout(b), groups);
    Ref made = e.tape().make(layout, e.category());
    const std::vector<Ref> workspace = held(e.tape(), grouped_product_workspace(groups, e.machine().options));
    e.finish(kernel, {&a, &b}, {&made});
    return made;
  };
  // Each gradient is made as its argument lies in memory.
  if (in.wants(1)) {
    const Layout weight = in.node.in[1];
    out[1] = lies_in_columns(weight) ? across(e, product(across(e, g), in.saved_arg(0), turned(weight)))
                                     : product(across(e, in.saved_arg(0)), g, plain(weight));
  }
  if (in.wants(0)) {
    const Layout rows = in.node.in[0];
    out[0] = lies_in_columns(rows) ? across(e, product(in.saved_arg(1), across(e, g), turned(rows)))
                                   : product(g, across(e, in.saved_arg(1)), plain(rows));
  }
  return out;
}

Layout in_columns(const Layout& matrices) {
  Layout made = turned(matrices);
  const std::int32_t n = made.sizes.n;
  std::swap(made.sizes[n - 2], made.sizes[n - 1]);
  std::swap(made.strides[n - 2], made.strides[n - 1]);
  return made;
}

void describe_triangular_solve(Kernel& kernel, const Layout& system, const Layout& right) {
  const std::int32_t n = system.sizes.n;
  const std::int64_t rows = n >= 2 ? system.sizes[n - 1] : 1;
  kernel.dtype = system.dtype;
  kernel.m = kernel.k = rows;
  kernel.batch = system.numel() / std::max<std::int64_t>(rows * rows, 1);
  kernel.n = right.numel() / std::max<std::int64_t>(kernel.batch * rows, 1);
  kernel.flops = kernel.batch * rows * rows * kernel.n;  // half of the whole matrix's product
}

std::vector<Bytes> triangular_solve_workspace(const Layout& system, const LoweringOptions& machine) {
  const std::int64_t rows = system.sizes.n >= 2 ? system.sizes[system.sizes.n - 1] : 1;
  const std::int64_t matrices = system.numel() / std::max<std::int64_t>(rows * rows, 1);
  const bool one_by_one = matrices <= 1 || (matrices <= 8 && rows >= 64);
  if (machine.cpu_threads > 0 || one_by_one || rows > 512) return {};
  return {8 * matrices, 8 * matrices};
}

std::vector<Ref> triangular_solve_backward(Emitter& e, BackwardInput& in, const Ref& g) {
  std::vector<Ref> out(in.node.in.size());
  const Layout given = e.layout(g), matrix = out.empty() ? Layout() : in.node.in[0];
  if (out.size() < 2 || matrix.sizes.n < 2 || given.sizes.n < 2) return out;
  const Ref system = across(e, in.saved_arg(0));
  Kernel kernel = e.start(in.node.op->name, KernelClass::Gemm, matrix.dtype);
  describe_triangular_solve(kernel, matrix, given);
  Ref solved = e.tape().make(in_columns(given), e.category());
  e.finish(kernel, {&system, &g}, {&solved});
  if (in.wants(0)) {
    const std::int32_t n = given.sizes.n;
    const bool left = bool_arg(*in.node.op, 3, "left", true);
    const auto flat = [&](const Ref& matrices) {
      const Layout all = e.layout(matrices);
      const std::int64_t rows = all.sizes[n - 2], columns = all.sizes[n - 1];
      return e.reshape(matrices, {all.numel() / std::max<std::int64_t>(rows * columns, 1), rows, columns});
    };
    Dims sizes = given.sizes;  // of every system, before those that share a matrix are summed
    sizes[left ? n - 1 : n - 2] = sizes[left ? n - 2 : n - 1];
    const Ref result = flat(across(e, in.saved_result(0))), right = flat(solved);
    Ref negative;
    {
      const Ref made = left ? e.matmul("aten.bmm.default", right, result) : e.matmul("aten.bmm.default", result, right);
      const Ref whole = e.view(made, sizes);
      negative = e.elementwise("aten.neg.default", {&whole});
    }
    out[0] =
        e.fresh("aten.tril.default", KernelClass::Elementwise, contiguous_layout(sizes, matrix.dtype), {&negative});
  }
  if (in.wants(1)) out[1] = std::move(solved);
  return out;
}

}  // namespace foreshard::lowering
