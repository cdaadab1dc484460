// The head and its cross entropy as one function (Liger's LigerFusedLinearCrossEntropyFunction): logits of a few rows
// at a time, and the gradients of what came in are made in forward. Backward hands on what forward has kept.
#include <algorithm>
#include <bit>

#include "core/lowering/backward/backward.h"
#include "core/lowering/lowering_machine.h"
#include "core/units.h"

namespace foreshard::lowering {
namespace {

/// Logits of as many rows as take about the memory of the hidden states, rounded up to a power of two.
std::int64_t rows_of_piece(std::int64_t rows, std::int64_t width, std::int64_t classes) {
  const std::int64_t wanted = ceil_div(rows, std::max<std::int64_t>(ceil_div(classes, width), 1));
  return std::min(rows, static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(wanted))));
}

/// A product that writes into what is there; `adds`: it reads that too.
void product_into(Emitter& e, std::string_view name, const Ref& a, const Ref& b, const Ref& into, bool adds = false) {
  Kernel kernel = e.start_product(name, e.layout(a).dtype, e.layout(a), e.layout(b));
  static const Ref kNone;
  e.finish(kernel, {&a, &b, adds ? &into : &kNone}, {&into});
}

/// A kernel that reads these and writes into what is there.
void write_over(Emitter& e, std::string_view name, KernelClass kind, const Ref& into,
                std::initializer_list<const Ref*> inputs) {
  Kernel kernel = e.start(name, kind, e.layout(into).dtype);
  e.finish(kernel, inputs, {&into});
}

Ref rows_at(Emitter& e, const Ref& x, std::int64_t rows) {
  Layout layout = e.layout(x);
  layout.sizes[0] = rows;
  return e.tape().alias(x, layout);
}

bool trains(Emitter& e, const Ref& x) { return e.tape().at(x).requires_grad; }

/// The gradient of the head's matrix grows by a piece's: in place where both are of one type of 16 bits.
void add_matrix_gradient(Emitter& e, const Ref& logits, const Ref& x, const Ref& into) {
  const Ref across = e.transpose(logits, 0, 1);
  if (itemsize(e.layout(into).dtype) == 2) return product_into(e, "aten.addmm.out", across, x, into, true);
  const Ref part = e.matmul("aten.mm.default", across, x);
  write_over(e, "aten.add_.Tensor", KernelClass::Elementwise, into, {&into, &part});
}

}  // namespace

std::vector<Ref> fused_loss(Emitter& e, const std::vector<Ref>& args, const std::vector<Layout>& results) {
  const Ref& hidden = args[0];
  const Ref& matrix = args[1];
  const Ref& targets = args[2];
  const Layout x = e.layout(hidden);
  const std::int64_t rows = x.sizes[0], width = x.sizes[1], classes = e.layout(matrix).sizes[0];
  const bool biased = args.size() > 3;
  std::vector<Ref> out(results.size());
  out[1] = e.fresh("aten.zeros_like.default", KernelClass::Elementwise, results[1], {});
  const bool differentiates = trains(e, hidden);
  for (std::size_t i = 2; i < results.size(); ++i) {
    const bool wanted = differentiates && trains(e, args[i == 2 ? 1 : 3]);
    out[i] = wanted ? e.fresh("aten.zeros_like.default", KernelClass::Elementwise, results[i], {})
                    : e.tape().external(results[i]);  // None
  }
  const Ref losses =
      e.fresh("aten.zeros.default", KernelClass::Elementwise, contiguous_layout({rows}, DType::Float32), {});
  const Ref counted =
      e.fresh("aten.ne.Scalar", KernelClass::Elementwise, contiguous_layout({rows}, DType::Bool), {&targets});
  e.sum(counted, {}, false, "aten.sum.default", KernelClass::Reduction, DType::Int64);
  const std::int64_t piece = rows_of_piece(rows, width, classes);
  Ref logits = e.tape().make(contiguous_layout({piece, classes}, x.dtype), SlotCategory::Temporary);
  const Ref across = e.transpose(matrix, 0, 1);
  for (std::int64_t begin = 0; begin < rows; begin += piece) {
    const std::int64_t count = std::min(piece, rows - begin);
    const Ref at = rows_at(e, logits, count);
    const Ref taken = rows_at(e, hidden, count);
    product_into(e, "aten.mm.out", taken, across, at);
    if (biased) write_over(e, "aten.add_.Tensor", KernelClass::Elementwise, at, {&at, &args[3]});
    write_over(e, "liger_kernel.cross_entropy", KernelClass::Loss, at, {&at});
    if (!differentiates) continue;
    product_into(e, "aten.mm.out", at, matrix, rows_at(e, out[1], count));
    if (trains(e, matrix)) add_matrix_gradient(e, at, taken, out[2]);
    if (!biased || !trains(e, args[3])) continue;
    const Ref part = e.sum(at, {0}, false, "aten.sum.dim_IntList", KernelClass::Reduction, x.dtype);
    write_over(e, "aten.add.out", KernelClass::Elementwise, out[3], {&out[3], &part});
  }
  logits.reset();
  out[0] = e.sum(losses, {}, false, "aten.sum.default", KernelClass::Reduction, DType::Float32);
  return out;
}

std::vector<Ref> fused_loss_backward(Emitter& e, BackwardInput& in, const Ref& g) {
  std::vector<Ref> out(in.node.in.size());
  const std::size_t result_of[] = {1, 2, 0, 3};
  // torch.equal with a one of its own asks the host whether there is anything to multiply by.
  const Layout number = e.layout(g);
  const Ref one = e.fresh("aten._to_copy.default", KernelClass::Copy, number, {});
  const Layout answer = contiguous_layout({}, DType::Bool);
  const Ref same = e.fresh("aten.eq.Tensor", KernelClass::Elementwise, answer, {&g, &one});
  e.fresh("aten.all.default", KernelClass::Reduction, answer, {&same});
  for (std::size_t i = 0; i < out.size() && i < std::size(result_of); ++i)
    if (result_of[i] > 0 && in.wants(i)) out[i] = in.saved_result(static_cast<std::int32_t>(result_of[i]));
  return out;
}

}  // namespace foreshard::lowering
