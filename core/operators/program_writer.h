// ProgramWriter: appends ATen operators to a Model and works out what each result looks like.
//
// Used by the model families. Shapes, dtypes and strides follow PyTorch: the strides decide where a reshape is a view
// and where it copies, so that the operators come out as PyTorch runs them. Strides are the writer's own; a Model keeps
// shapes. `detach` nodes that only recorders see (autograd keeping its own result, arange) are not written.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/model/model.h"
#include "core/operators/layout.h"

namespace foreshard::families {

using foreshard::Dims;

/// A tensor while the program is written: a value, a parameter or a buffer, with its sizes and strides.
struct Tensor {
  enum class Kind : std::uint8_t { Value, Param, Buffer } kind = Kind::Value;
  DType dtype = DType::Float32;
  std::int32_t index = -1;
  Dims sizes;
  Dims strides;

  Layout layout() const { return {sizes, strides, dtype}; }
  bool is_contiguous() const { return layout().contiguous(); }
  bool is_dense() const { return layout().dense(); }  // no gaps and no overlap, in any order
};

/// Python's end of an open slice.
inline constexpr std::int64_t kSliceEnd = std::numeric_limits<std::int64_t>::max();

class ProgramWriter {
 public:
  /// Where kernels differ by device.
  struct Kernels {
    bool fused_dropout = true;         // one kernel with a boolean mask, as on a GPU
    bool wide_norm_statistics = true;  // layer_norm's mean and rstd in float32; a CPU keeps them in the input's dtype
    bool integer_histogram = true;     // histc counts integers; a CPU wants float32
  };

  /// `dtype` is what parameters are cast to before they are used.
  ProgramWriter(Model& model, DType dtype, Kernels kernels) : model_(model), dtype_(dtype), kernels_(kernels) {}

  DType dtype() const { return dtype_; }
  const Kernels& kernels() const { return kernels_; }

  /// Operators written from now on belong to this module. `call` tells calls of it apart between which nothing else
  /// runs; `region` (Model::regions): a stretch that is run checkpointed.
  void enter(ModuleId module, std::int32_t call = 0, std::int32_t region = -1) {
    module_ = module;
    call_ = call;
    region_ = region;
  }

  // Facts beside the operators (core/model/model.h)
  /// Python names `x` beyond its last use: until a call of `by` returns (none: of the module that makes it), ...
  void hold(const Tensor& x, Hold::Until until = Hold::Until::Call, ModuleId by = {});
  /// ... or until the operator written last has run.
  void hold_until_here(const Tensor& x);
  /// The next call of `module` is handed these, used or not.
  void call(ModuleId module, std::initializer_list<const Tensor*> args);

  /// `same`: an earlier input that it shares its storage with.
  Tensor input(std::string name, const Dims& sizes, DType dtype, const Tensor* same = nullptr);
  Tensor param(ParamId id) const;
  Tensor buffer(std::int32_t index) const;

  // Creation
  Tensor arange(std::int64_t count);
  Tensor scalar(double value, DType dtype, bool layout);
  Tensor ones(const Dims& sizes, DType dtype);
  Tensor zeros(const Dims& sizes, DType dtype);

  // Views
  Tensor view(const Tensor& x, const Dims& asked) { return view_as("aten.view.default", x, asked); }
  Tensor unsafe_view(const Tensor& x, const Dims& asked) { return view_as("aten._unsafe_view.default", x, asked); }
  Tensor expand(const Tensor& x, const Dims& asked);
  Tensor unsqueeze(const Tensor& x, int dim);
  Tensor transpose(const Tensor& x, int dim0, int dim1);
  Tensor permute(const Tensor& x, const Dims& order);
  Tensor t(const Tensor& x);
  Tensor slice(const Tensor& x, int dim, std::int64_t begin, std::int64_t end);
  /// x[..., begin:end] of Python: an alias where nothing is left out.
  Tensor index_range(const Tensor& x, int dim, std::int64_t begin, std::int64_t end);
  Tensor select(const Tensor& x, int dim, std::int64_t index);
  Tensor alias(const Tensor& x);
  std::vector<Tensor> split(const Tensor& x, std::int64_t size, int dim);
  static bool can_view(const Tensor& x, const Dims& sizes);

  // Copies
  Tensor to(const Tensor& x, DType dtype, bool layout = false);  // nothing if it has the dtype
  Tensor clone(const Tensor& x);                                 // contiguous
  Tensor contiguous(const Tensor& x) { return x.is_contiguous() ? x : clone(x); }
  Tensor cat(const std::vector<Tensor>& parts, int dim);
  Tensor pad(const Tensor& x, const Dims& padding, double value);

  // Element by element
  Tensor add(const Tensor& a, const Tensor& b) { return binary("aten.add.Tensor", a, b, promote(a, b)); }
  Tensor sub(const Tensor& a, const Tensor& b) { return binary("aten.sub.Tensor", a, b, promote(a, b)); }
  Tensor mul(const Tensor& a, const Tensor& b) { return binary("aten.mul.Tensor", a, b, promote(a, b)); }
  Tensor add_in_place(const Tensor& a, const Tensor& b);
  Tensor divide_in_place(const Tensor& a, const Tensor& b);
  Tensor index_put_in_place(const Tensor& x, const Tensor& index, const Tensor& values);
  Tensor with_scalar(std::string_view op, const Tensor& x, Arg value) {
    return with_scalar(op, x, std::move(value), x.dtype);
  }
  Tensor with_scalar(std::string_view op, const Tensor& x, Arg value, DType result);
  Tensor unary(std::string_view op, const Tensor& x);  // a result like x
  Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b);
  Tensor binary(std::string_view op, const Tensor& a, const Tensor& b, DType result);

  // Products, reductions, norms, losses
  Tensor embedding(const Tensor& weight, const Tensor& ids, std::int64_t padding_index);
  Tensor mm(const Tensor& a, const Tensor& b);
  Tensor bmm(const Tensor& a, const Tensor& b);
  Tensor addmm(const Tensor& bias, const Tensor& a, const Tensor& b);
  Tensor linear(const Tensor& x, ParamId weight, ParamId bias);  // as F.linear falls apart; bias may be invalid
  Tensor matmul(const Tensor& a, const Tensor& b);               // 4-D, by expand, reshape and bmm
  Tensor mean_last(const Tensor& x);
  Tensor cumsum(const Tensor& x, int dim);
  Tensor all(const Tensor& x);
  Tensor sum(const Tensor& x);
  Tensor layer_norm(const Tensor& x, ParamId weight, ParamId bias, double eps);
  Tensor dropout(const Tensor& x, double p);  // training; nothing for p = 0
  Tensor softmax(std::string_view op, const Tensor& x, ArgList rest);
  enum class Reduction : std::int8_t { Mean = 1, Sum = 2 };
  Tensor nll_loss(const Tensor& log_probabilities, const Tensor& target, Reduction reduction = Reduction::Mean);
  void read_to_host(const Tensor& x);  // the host waits for one element

  /// Any operator with results described by the caller.
  struct Described {
    Dims sizes;
    Dims strides;
    DType dtype = DType::Float32;
    bool tensor = true;
  };
  std::vector<Tensor> emit(std::string_view op, ArgList args, std::vector<NamedArg> kwargs,
                           const std::vector<Described>& results);
  static Arg arg(const Tensor& x);
  static Arg arg(const Dims& sizes);
  static Dims contiguous_strides(const Dims& sizes) { return foreshard::contiguous_strides(sizes); }
  /// Strides that empty_like and the elementwise kernels give a result of this tensor.
  static Dims like_strides(const Tensor& x);

 private:
  static DType promote(const Tensor& a, const Tensor& b);
  Tensor view_as(std::string_view op, const Tensor& x, const Dims& asked);
  Tensor reshape_for_bmm(const Tensor& x, const Dims& sizes);
  Op& begin(std::string_view op, std::size_t args);
  Tensor result(Op& op, const Dims& sizes, const Dims& strides, DType dtype);

  Model& model_;
  DType dtype_;
  Kernels kernels_;
  ModuleId module_;
  std::int32_t call_ = 0;
  std::int32_t region_ = -1;
};

}  // namespace foreshard::families
