// OperatorWriter: appends operators to a Model and keeps what each result looks like, and the facts beside them.
//
// The ground that the other writers stand on: ViewWriter (views and copies), PointwiseWriter (creation, element by
// element), ProgramWriter (products, norms, losses). Each writes with the operators of those below it; whoever only
// needs views takes a ViewWriter. Strides are the writers' own; a Model keeps shapes.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
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

class OperatorWriter {
 public:
  /// How linear layers are scaled to 8 bits.
  enum class Float8 : std::uint8_t { None, Tensorwise, Rowwise, RowwiseWideGradient };
  /// Where kernels differ by device.
  struct Kernels {
    bool fused_dropout = true;         // one kernel with a boolean mask, as on a GPU
    bool wide_norm_statistics = true;  // layer_norm's mean and rstd in float32; a CPU keeps them in the input's dtype
    bool integer_histogram = true;     // histc counts integers; a CPU wants float32
    std::optional<DType> autocast;     // torch.autocast around what is written: what products compute in
    Float8 float8 = Float8::None;      // what linear layers multiply in
    std::int64_t gathers_float8 = 0;   // ... and FSDP2 gathers matrices in if their rows divide by it; 0: none
    bool wide_autocast = true;         // ... by the lists of a GPU; a CPU's has neither norms nor powers in float32
  };

  /// `dtype` is what parameters are cast to before they are used.
  OperatorWriter(Model& model, DType dtype, Kernels kernels) : model_(model), dtype_(dtype), kernels_(kernels) {}

  DType dtype() const { return dtype_; }
  const Kernels& kernels() const { return kernels_; }

  /// Operators written from now on belong to this module. `call` tells calls of it apart between which nothing else
  /// runs; `region` (Model::regions): a stretch that is run checkpointed.
  void enter(ModuleId module, std::int32_t call = 0, std::int32_t region = -1) {
    module_ = module;
    call_ = call;
    region_ = region;
  }

  /// The outermost torch.autocast exits here: casts of parameters are let go of.
  void leave_autocast();

  // Facts beside the operators (core/model/model.h)
  /// Python names `x` beyond its last use: until a call of `by` returns (none: of the module that makes it), ...
  void hold(const Tensor& x, Hold::Until until = Hold::Until::Call, ModuleId by = {});
  /// ... or until the operator written last has run.
  void hold_until_here(const Tensor& x);
  /// A parameter's cast, which autocast keeps.
  void hold_for_autocast(const Tensor& x) { hold(x, Hold::Until::Autocast); }
  /// FSDP2 casts the shards of that parameter to `dtype` before it gathers them.
  void gather_in(ParamId param, DType dtype) { model_.params[param.index()].gathered = dtype; }
  /// The next call of `module` is handed these, used or not.
  void call(ModuleId module, std::initializer_list<const Tensor*> args);

  /// `same`: an earlier input that it shares its storage with.
  Tensor input(std::string name, const Dims& sizes, DType dtype, const Tensor* same = nullptr);
  Tensor param(ParamId id) const;
  Tensor buffer(std::int32_t index) const;

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

 protected:
  Op& begin(std::string_view op, std::size_t args);
  Tensor result(Op& op, const Dims& sizes, const Dims& strides, DType dtype);
  /// Appends a constant argument, built in place.
  template <class T>
  static void put(Op& op, T value) {
    op.args.emplace_back().value.emplace<T>(value);
  }

 private:
  friend class BelowAutocast;
  Model& model_;
  DType dtype_;
  Kernels kernels_;
  ModuleId module_;
  std::int32_t call_ = 0;
  std::int32_t region_ = -1;
};

/// What an operator is made of runs below autocast's dispatch: nothing is cast there.
class BelowAutocast {
 public:
  explicit BelowAutocast(OperatorWriter& writer) : writer_(writer), outside_(writer.kernels_.autocast) {
    writer_.kernels_.autocast.reset();
  }
  ~BelowAutocast() { writer_.kernels_.autocast = outside_; }
  BelowAutocast(const BelowAutocast&) = delete;
  BelowAutocast& operator=(const BelowAutocast&) = delete;

 private:
  OperatorWriter& writer_;
  std::optional<DType> outside_;
};

}  // namespace foreshard::families
