// What one operator does to memory and work, as the operator rules say it: the same words in which LibTorch is asked
// (exec/operators/operator_proof.h), so that the two can be laid side by side.
//
// A case is one operator with its inputs; every input is a ParamRef{i} into `inputs`. Only the first result that can
// have a gradient is given one. Bytes and elements; names are ATen's ("aten.mm.default"). Any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/model/model.h"

namespace foreshard {

struct OperatorTensor {
  Shape sizes;
  Shape strides;  // empty: contiguous
  DType dtype = DType::Float32;
  bool requires_grad = false;
  bool operator==(const OperatorTensor&) const = default;
};

struct OperatorCase {
  Op op;  // `out` does not count
  std::vector<OperatorTensor> inputs;
  std::vector<OperatorTensor> results;  // as the program states them: sizes and types
  std::int32_t count = 1;               // how often the program has it
  bool operator==(const OperatorCase&) const = default;
};

/// A storage that autograd keeps from forward to backward, and whose it is.
struct KeptStorage {
  enum class Of : std::uint8_t { Input, Result, Own } of = Of::Own;  // Own: neither an input's nor a result's
  std::int32_t index = -1;                                           // which input or result
  Bytes bytes = 0;
  auto operator<=>(const KeptStorage&) const = default;
};

struct OperatorFacts {
  struct Result {
    OperatorTensor tensor;       // strides always given
    std::int32_t alias_of = -1;  // the input whose storage it shares
    bool operator==(const Result&) const = default;
  };
  struct Gradient {
    bool defined = false;
    Bytes bytes = 0;  // of the gradient that arrives at a parameter
    bool operator==(const Gradient&) const = default;
  };
  std::vector<Result> results;
  std::vector<KeptStorage> kept;                // distinct, sorted
  std::vector<std::string> backward;            // kernels that compute, in order; views and allocations left out
  std::vector<Gradient> gradients;              // by input
  Flops forward_flops = 0, backward_flops = 0;  // that PyTorch's counter counts
  Bytes held_bytes = 0;                         // new memory between forward and backward: results and what is kept
  int gradient_copies = 0;  // gradients that autograd copies to keep them: shared, or not laid out as the parameter
  bool operator==(const OperatorFacts&) const = default;
};

/// REQUIRES a rule for the operator (find_op_rule).
OperatorFacts predict_operator(const OperatorCase& what);

/// One line for every point in which the two differ: "kept: PyTorch input 0 (48 bytes), rule nothing".
std::vector<std::string> differences(const OperatorFacts& torch, const OperatorFacts& rule);

/// "aten.mul.Tensor(f32[2,3]*, f32[3], 2)": an asterisk stands for requires_grad.
std::string to_text(const OperatorCase& what);

/// The distinct cases of a program, laid out as the rules lay them out, in order of first use.
std::vector<OperatorCase> operator_cases(const Model& model);

/// Kernels of backward that compute nothing of their own: views, and memory that is asked for.
bool computes_nothing(const std::string& kernel);
/// One spelling for what is one kernel: in place or not by circumstance, with a number or a tensor that holds it, a
/// fill of a new scalar; and without ".default".
std::string plain_kernel_name(std::string name);

}  // namespace foreshard
