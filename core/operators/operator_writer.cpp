#include "core/operators/operator_writer.h"

#include <utility>

namespace foreshard::families {

Arg OperatorWriter::arg(const Tensor& x) {
  switch (x.kind) {
    case Tensor::Kind::Param: return Arg{ParamRef{ParamId(x.index)}};
    case Tensor::Kind::Buffer: return Arg{BufferRef{x.index}};
    default: return Arg{ValueRef{ValueId(x.index)}};
  }
}

Arg OperatorWriter::arg(const Dims& sizes) {
  ArgList list;
  list.reserve(static_cast<std::size_t>(sizes.rank()));
  for (int i = 0; i < sizes.rank(); ++i) list.emplace_back().value = sizes[i];
  return Arg{std::move(list)};
}

Dims OperatorWriter::like_strides(const Tensor& x) {
  return x.is_dense() ? x.strides : strides_by_operands(x.sizes, {&x.strides, 1});
}

Op& OperatorWriter::begin(std::string_view op, std::size_t args) {
  Op& row = model_.ops.emplace_back();
  row.name = op;
  row.module = module_;
  row.call = call_;
  row.region = region_;
  row.args.reserve(args);
  return row;
}

Tensor OperatorWriter::result(Op& op, const Dims& sizes, const Dims& strides, DType dtype) {
  const auto index = static_cast<std::int32_t>(model_.values.size());
  ValueInfo& value = model_.values.emplace_back();
  value.name = "v";
  value.name += std::to_string(index);
  value.shape = sizes.shape();
  value.dtype = dtype;
  op.out.push_back(ValueId(index));
  return {Tensor::Kind::Value, dtype, index, sizes, strides};
}

std::vector<Tensor> OperatorWriter::emit(std::string_view op, ArgList args, std::vector<NamedArg> kwargs,
                                         const std::vector<Described>& results) {
  Op& row = begin(op, 0);
  row.args = std::move(args);
  row.kwargs = std::move(kwargs);
  std::vector<Tensor> tensors;
  for (const Described& r : results) {
    if (r.tensor) {
      tensors.push_back(result(row, r.sizes, r.strides, r.dtype));
    } else {
      row.out.emplace_back();
      tensors.emplace_back();
    }
  }
  return tensors;
}

void OperatorWriter::hold(const Tensor& x, Hold::Until until, ModuleId by) {
  if (x.kind == Tensor::Kind::Value) model_.values[static_cast<std::size_t>(x.index)].held = {until, -1, by};
}

void OperatorWriter::hold_until_here(const Tensor& x) {
  if (x.kind != Tensor::Kind::Value) return;
  const auto op = static_cast<std::int32_t>(model_.ops.size()) - 1;
  model_.values[static_cast<std::size_t>(x.index)].held = {Hold::Until::Op, op, {}};
}

void OperatorWriter::leave_autocast() {
  if (!kernels_.autocast) return;
  kernels_.autocast.reset();
  const auto op = static_cast<std::int32_t>(model_.ops.size()) - 1;
  for (ValueInfo& value : model_.values)
    if (value.held.until == Hold::Until::Autocast) value.held.op = op;
}

void OperatorWriter::call(ModuleId module, std::initializer_list<const Tensor*> args) {
  ModuleCall& call = model_.module_calls.emplace_back();
  call.module = module;
  for (const Tensor* arg : args)
    if (arg != nullptr && arg->kind == Tensor::Kind::Value) call.args.emplace_back(arg->index);
}

Tensor OperatorWriter::input(std::string name, const Dims& sizes, DType dtype, const Tensor* same) {
  const auto index = static_cast<std::int32_t>(model_.values.size());
  model_.values.push_back({std::move(name), sizes.shape(), dtype, false});
  if (same != nullptr) model_.values.back().alias_of = ValueId(same->index);
  model_.inputs.push_back(ValueId(index));
  return {Tensor::Kind::Value, dtype, index, sizes, contiguous_strides(sizes)};
}

Tensor OperatorWriter::param(ParamId id) const {
  const Dims sizes = Dims::of(model_.params[id.index()].shape);
  return {Tensor::Kind::Param, dtype_, id.value, sizes, contiguous_strides(sizes)};
}

Tensor OperatorWriter::buffer(std::int32_t index) const {
  const BufferInfo& info = model_.buffers[static_cast<std::size_t>(index)];
  const Dims sizes = Dims::of(info.shape);
  return {Tensor::Kind::Buffer, info.dtype, index, sizes, contiguous_strides(sizes)};
}

}  // namespace foreshard::families
