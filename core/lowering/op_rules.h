// Operator rules: per ATen operator what eager PyTorch does to memory and work, as one table.
//
// A row says how results come to be (a view of the first input, a new tensor, the input itself), which tensors autograd
// keeps between forward and backward and under which condition, which formula runs in backward, and what class of
// kernel decides the time. The formulas themselves are in core/lowering/backward/backward.h. A plain constant table:
// usable from any thread.
#pragma once

#include <array>
#include <span>
#include <string_view>

#include "core/lowering/lowering.h"

namespace foreshard {

/// How the results of an operator come to be.
enum class OpForm : std::uint8_t {
  View,       // shares the storage of its first tensor; strides follow from sizes
  Alias,      // ... the same layout
  Transpose,  // t, transpose, permute
  Unsqueeze,
  Squeeze,
  Expand,
  ExpandEach,    // broadcast_tensors: result i is argument i, expanded
  AsComplex,     // view_as_complex: pairs of the last dimension
  AsReal,        // ... and back
  Slice,         // slice, narrow, split, chunk: same strides (times the step)
  Part,          // diagonal, unfold, as_strided
  Select,        // select, unbind: one dimension less
  Reshape,       // a view if there is one, else a copy
  CopyIfNeeded,  // contiguous: the tensor itself if it is, else a copy
  InPlace,       // writes into its first tensor
  Elementwise,   // new tensor, laid out as the inputs are
  Contiguous,    // new contiguous tensors
  LikeFirst,     // new tensor with the layout of the first input
  Attention,     // flash / efficient attention: first result laid out as the query, the rest contiguous
  LayerNorm,     // all new, contiguous
  Host,          // no storage on the device
  Mesh,          // as mesh_rules.h says
};

/// The backward formula of an operator.
enum class OpFormula : std::uint8_t {
  None,     // not differentiable
  Unknown,  // the default: gradients of all inputs, twice the forward's work
  View,
  Alias,
  Transpose,
  Unsqueeze,
  Squeeze,
  Expand,
  ExpandEach,
  Slice,
  Select,
  Split,
  Unbind,
  Clone,
  ToCopy,
  Add,
  Sub,
  Mul,
  Div,
  Neg,
  Pow,
  PowOfScalar,
  Erf,
  Expm1,
  Log1p,
  Log2,
  Rsqrt,
  Sqrt,
  Exp,
  Log,
  Abs,
  Cos,
  Sin,
  Tanh,
  Sigmoid,
  Relu,
  Silu,
  Gelu,
  Where,
  MaskedFill,
  Tril,
  Cumsum,
  Cat,
  Pad,
  Sum,
  Mean,
  Softmax,
  LogSoftmax,
  NllLoss,
  Mm,
  Addmm,
  Bmm,
  Baddbmm,
  Linear,
  Embedding,
  LayerNorm,
  Dropout,
  FlashAttention,
  EfficientAttention,
  AsStrided,
  Gather,
  ScatterAdd,
  IndexSelect,
  IndexAdd,
  Index,
  IndexPut,
  Pick,  // topk, sort, max along a dimension: values at saved places
  Extremum,
  MseLoss,
  Stack,
  Clamp,
  Roll,
  Var,
  VectorNorm,
  LogSumExp,
  Convolution,
  GroupedMm,
  TriangularSolve,
  QuantisedLinear,
  IntegerLinear,
  FusedLoss,
  Float8Linear,
  EuclideanDist,
  AffineGrid,
  FlexAttention,
  FlexBlockMask,
  BlockDiag,
  OwnKernel,  // one kernel named after the operator: batch norms, pools
  Repeat,
  RepeatInterleave,
  ScatterValue,
  Reciprocal,
  Zeros,  // what was there is written over: zeros go back
  Addbmm,
  ConvolutionBackward,  // as an operator of a forward
  ScatterReduce,
  Written,  // as OpRule::written says
  Mesh,
};

/// One tensor that autograd keeps: an input or a result, if one of the inputs in `if_grad` (a bit set; 0 = always)
/// needs a gradient.
struct SaveRule {
  bool result = false;
  std::uint8_t index = 0;  // among the operator's tensor arguments or results
  std::uint8_t if_grad = 0;
};

struct OpRule {
  std::string_view name;
  OpForm form = OpForm::Elementwise;
  OpFormula formula = OpFormula::None;
  KernelClass kind = KernelClass::Elementwise;
  std::array<SaveRule, 8> saves{};
  std::uint8_t save_count = 0;
  std::uint8_t launches = 1;
  bool first_only = false;  // the other results have no gradient, though they are floating: statistics, weights
  // Written: the kernels of backward (core/lowering/backward/written.cpp); else what its one kernel takes, empty for
  // the gradient, what is kept of the arguments and of the results.
  std::string_view written;
};

/// nullptr if the operator has no row: the default rule applies. An operator that works in place ("aten.silu_.default")
/// and has no row of its own has that of its sibling which does not.
const OpRule* find_op_rule(std::string_view name);
/// The default: a new contiguous tensor per result, inputs and results kept, backward costs twice the forward.
const OpRule& default_op_rule();
std::span<const OpRule> op_rules();

/// True for operators that only make another view of a storage: no kernel, no allocation.
/// Autograd functions of libraries, written in Python.
constexpr bool is_function(OpFormula formula) {
  return formula == OpFormula::QuantisedLinear || formula == OpFormula::IntegerLinear ||
         formula == OpFormula::Float8Linear || formula == OpFormula::FusedLoss;
}

constexpr bool is_view_form(OpForm form) { return form <= OpForm::Select; }

}  // namespace foreshard
