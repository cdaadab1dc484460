// From a Model's operator arguments to LibTorch's stack: constants are converted once by the operator's schema, a run
// fills in the tensors.
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <functional>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "core/model/model.h"

namespace foreshard::exec {

/// Where the tensors of a run come from.
class TensorLookup {
 public:
  virtual ~TensorLookup() = default;
  virtual at::Tensor value(ValueId id) = 0;
  virtual at::Tensor param(ParamId id) = 0;
  virtual at::Tensor buffer(std::int32_t index) = 0;
};

/// One argument of the schema, in order: a constant, a tensor to look up, or a list of tensors.
struct PreparedArgument {
  enum class Kind : std::uint8_t { Constant, Tensor, TensorList, OptionalTensorList } kind = Kind::Constant;
  c10::IValue constant;
  std::vector<Arg> tensors;  // references; monostate for a missing one of an optional list
};

struct PreparedArguments {
  std::vector<PreparedArgument> list;
  std::vector<ValueId> values;  // all values that are read, with repetitions
};

/// An unexpected sentence: which argument does not fit the schema, and how.
tl::expected<PreparedArguments, std::string> prepare_arguments(const Op& op, const c10::FunctionSchema& schema);

/// What stands in the tensor of these sizes that the operator makes (`values` of aten.empty, docs/formats/model.md), on
/// the host; undefined where the program does not say it. An unexpected sentence: too many or too few, or no numbers.
tl::expected<at::Tensor, std::string> literal_content(const Op& op, const std::vector<std::int64_t>& sizes);

void push_arguments(const PreparedArguments& arguments, TensorLookup& tensors, torch::jit::Stack& stack);

/// Calls f(tensor) for every tensor result, lists flattened; f(undefined) for results that are none.
void take_results(torch::jit::Stack& stack, const std::function<void(at::Tensor)>& f);

}  // namespace foreshard::exec
