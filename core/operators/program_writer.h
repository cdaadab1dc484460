// ProgramWriter: appends ATen operators to a Model and works out what each result looks like.
//
// Used by the model families, the readers of archives and the adapters. Here stand products, reductions, norms and
// losses; what they are made of comes from the writers below it (operator_writer.h says which). Shapes, dtypes and
// strides follow PyTorch. `detach` nodes that only recorders see (autograd keeping its own result, arange) are not
// written.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/operators/pointwise_writer.h"

namespace foreshard::families {

class ProgramWriter final : public PointwiseWriter {
 public:
  using PointwiseWriter::PointwiseWriter;

  Tensor embedding(const Tensor& weight, const Tensor& ids, std::int64_t padding_index);
  Tensor mm(const Tensor& a, const Tensor& b);
  Tensor bmm(const Tensor& a, const Tensor& b);
  Tensor addmm(const Tensor& bias, const Tensor& a, const Tensor& b);
  Tensor linear(const Tensor& x, ParamId weight, ParamId bias);  // in 8 bits where kernels().float8 and the sizes allow
  Tensor linear_as_stored(const Tensor& x, ParamId weight, ParamId bias);  // as F.linear falls apart; bias may be none
  Tensor product_with(const Tensor& x, const Tensor& matrix);              // F.linear without a bias
  Tensor matmul(const Tensor& a, const Tensor& b);                         // 4-D, by expand, reshape and bmm
  Tensor mean_last(const Tensor& x);
  Tensor cumsum(const Tensor& x, int dim);
  Tensor all(const Tensor& x);
  Tensor sum(const Tensor& x);
  Tensor layer_norm(const Tensor& x, ParamId weight, ParamId bias, double eps);
  Tensor softmax(std::string_view op, const Tensor& x, ArgList rest);
  enum class Reduction : std::int8_t { Mean = 1, Sum = 2 };
  Tensor nll_loss(const Tensor& log_probabilities, const Tensor& target, Reduction reduction = Reduction::Mean);
  void read_to_host(const Tensor& x);  // the host waits for one element

 private:
  bool multiplies_in_float8(const Tensor& matrix) const;
  static std::string_view name_of(Float8 recipe);
  Tensor reshape_for_bmm(const Tensor& x, const Dims& sizes);
};

inline Arg number(std::int64_t value) { return Arg{value}; }

/// The one result of `op`, its elements packed.
inline Tensor one(ProgramWriter& w, std::string_view op, ArgList args, const Dims& sizes, DType dtype,
                  std::vector<NamedArg> kwargs = {}) {
  return w.emit(op, std::move(args), std::move(kwargs), {{sizes, ProgramWriter::contiguous_strides(sizes), dtype}})[0];
}

}  // namespace foreshard::families
