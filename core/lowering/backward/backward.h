// Operators at work, backward: what a node's formula runs, from the gradients of its results to those of its arguments.
//
// One source a kind of formula: products, shapes and reductions (backward.cpp), element by element (pointwise.cpp),
// gathers, convolutions and rarer ones (selections.cpp), fused attention, and those that the table writes down.
// Internal to lowering.
#pragma once

#include <string_view>
#include <vector>

#include "core/lowering/lowering_autograd.h"

namespace foreshard::lowering {

struct BackwardInput {
  const Node& node;
  std::vector<Ref>& grads;        // per result; empty where undefined
  const std::vector<Ref>& saved;  // parallel to node.saved
  Ref saved_arg(std::int32_t index) const;
  Ref saved_result(std::int32_t index) const;
  bool wants(std::size_t arg) const { return arg < node.next.size() && node.next[arg].node >= 0; }
};

/// The same sizes without gaps.
inline Layout plain(const Layout& layout) { return contiguous_layout(layout.sizes, layout.dtype); }
/// Kernels of a GPU that read a gradient as it lies copy one with gaps first: that copy, empty where none is needed.
Ref whole_gradient(Emitter& emit, const Ref& g);
/// What a kernel of backward takes that reads all that was kept: the gradient and every saved tensor.
std::vector<Ref> taken(const Ref& g, const BackwardInput& in);
std::vector<Ref> taken(const Ref& g, const BackwardInput& in, std::string_view order);  // as OpRule::written says it
/// Gradients per tensor argument, before they are summed to the argument's shape.
std::vector<Ref> backward_of(Emitter& emit, BackwardInput& in);
/// The part of it in selections.cpp; `g` is the gradient of the first result that has one.
std::vector<Ref> backward_of_more(Emitter& emit, BackwardInput& in, const Ref& g);
/// The part in pointwise.cpp.
std::vector<Ref> backward_of_pointwise(Emitter& emit, BackwardInput& in, const Ref& g);
/// `product` times the operator's factor of that name.
Ref times(Emitter& emit, BackwardInput& in, std::string_view factor, const Ref& product);
/// The part in attention.cpp.
std::vector<Ref> backward_of_attention(Emitter& emit, BackwardInput& in, const Ref& g);
/// ... as an operator of a forward.
std::vector<Ref> attention_backward_in_forward(Emitter& emit, const Op& op, const std::vector<Ref>& args);
/// The parts in double_convolution.cpp.
std::vector<Ref> convolution_backward_in_forward(Emitter& emit, const Op& op, const std::vector<Ref>& args);
std::vector<Ref> convolution_double_backward(Emitter& emit, BackwardInput& in);
/// The part in rarer_products.cpp.
std::vector<Ref> grouped_product_backward(Emitter& emit, BackwardInput& in, const Ref& g);
std::vector<Ref> triangular_solve_backward(Emitter& emit, BackwardInput& in, const Ref& g);
/// The part in strided.cpp.
std::vector<Ref> backward_of_as_strided(Emitter& emit, BackwardInput& in, const Ref& g);
/// The product with a matrix stored in 4 bits, or in integers of 8 (op_rules_quantised.cpp).
std::vector<Ref> quantised_linear_backward(Emitter& emit, BackwardInput& in, const Ref& g);
std::vector<Ref> integer_linear_backward(Emitter& emit, BackwardInput& in, const Ref& g);
/// The head and its cross entropy as one function (op_rules_fused_loss.cpp).
std::vector<Ref> fused_loss_backward(Emitter& emit, BackwardInput& in, const Ref& g);
/// The part that the table itself writes down (written.cpp).
std::vector<Ref> backward_of_written(Emitter& emit, BackwardInput& in);

}  // namespace foreshard::lowering
