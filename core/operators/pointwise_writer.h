// PointwiseWriter: tensors made from nothing, and the operators that work element by element.
//
// Results have the strides and the dtype that TensorIterator gives them.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>

#include "core/operators/view_writer.h"

namespace foreshard::families {

class PointwiseWriter : public ViewWriter {
 public:
  using ViewWriter::ViewWriter;

  // Creation
  Tensor arange(std::int64_t count);
  Tensor scalar(double value, DType dtype, bool layout);
  Tensor ones(const Dims& sizes, DType dtype);
  Tensor zeros(const Dims& sizes, DType dtype);

  // Element by element
  Tensor add(const Tensor& a, const Tensor& b) { return binary("aten.add.Tensor", a, b, promote(a, b)); }
  Tensor sub(const Tensor& a, const Tensor& b) { return binary("aten.sub.Tensor", a, b, promote(a, b)); }
  Tensor mul(const Tensor& a, const Tensor& b) { return binary("aten.mul.Tensor", a, b, promote(a, b)); }
  Tensor add_in_place(const Tensor& a, const Tensor& b);
  Tensor divide_in_place(const Tensor& a, const Tensor& b);
  /// x[..., index, ...] = value along `dim`, as Tensor.scatter_.
  Tensor scatter_value_in_place(const Tensor& x, int dim, const Tensor& index, Arg value);
  Tensor index_put_in_place(const Tensor& x, const Tensor& index, const Tensor& values);
  Tensor with_scalar(std::string_view op, const Tensor& x, Arg value) {
    return with_scalar(op, x, std::move(value), x.dtype);
  }
  Tensor with_scalar(std::string_view op, const Tensor& x, Arg value, DType result);
  Tensor unary(std::string_view op, const Tensor& x);  // a result like x
  Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b);
  Tensor binary(std::string_view op, const Tensor& a, const Tensor& b, DType result);
  Tensor dropout(const Tensor& x, double p);  // training; nothing for p = 0

 private:
  static DType promote(const Tensor& a, const Tensor& b);
};

}  // namespace foreshard::families
