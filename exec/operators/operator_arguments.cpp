#include "exec/operators/operator_arguments.h"

#include <ATen/ATen.h>
#include <c10/util/safe_numerics.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "core/model/op_keywords.h"
#include "exec/torch/torch_types.h"

namespace foreshard::exec {
namespace {

bool is_reference(const Arg& arg) {
  return std::holds_alternative<ValueRef>(arg.value) || std::holds_alternative<ParamRef>(arg.value) ||
         std::holds_alternative<BufferRef>(arg.value);
}

std::optional<double> number_of(const Arg& arg) {
  if (const auto* number = std::get_if<double>(&arg.value)) return *number;
  if (const auto* number = std::get_if<std::int64_t>(&arg.value)) return static_cast<double>(*number);
  if (const auto* flag = std::get_if<bool>(&arg.value)) return *flag ? 1.0 : 0.0;
  return std::nullopt;
}

/// A Python number as it stands: the type of the constant, not of the schema.
std::optional<c10::IValue> scalar_of(const Arg& arg) {
  if (const auto* number = std::get_if<double>(&arg.value)) return c10::IValue(*number);
  if (const auto* number = std::get_if<std::int64_t>(&arg.value)) return c10::IValue(*number);
  if (const auto* flag = std::get_if<bool>(&arg.value)) return c10::IValue(*flag);
  return std::nullopt;
}

/// A number where the schema wants a tensor: as Python's bindings do it, it does not take part in type promotion.
std::optional<c10::IValue> wrapped_number(const Arg& arg) {
  const auto scalar = scalar_of(arg);
  if (!scalar) return std::nullopt;
  at::Tensor tensor = at::scalar_tensor(scalar->toScalar(), at::device(at::kCPU).dtype(scalar->toScalar().type()));
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return c10::IValue(std::move(tensor));
}

/// The enumerations of Python's torch that are spelt out in a program.
std::optional<std::int64_t> named_constant(const std::string& text) {
  if (text == "torch.strided") return static_cast<std::int64_t>(at::kStrided);
  if (text == "torch.contiguous_format") return static_cast<std::int64_t>(at::MemoryFormat::Contiguous);
  if (text == "torch.preserve_format") return static_cast<std::int64_t>(at::MemoryFormat::Preserve);
  if (text == "torch.channels_last") return static_cast<std::int64_t>(at::MemoryFormat::ChannelsLast);
  return std::nullopt;
}

/// Layouts and memory formats of an archive stand as its own numbers, not c10's.
std::optional<c10::IValue> enum_of(const Arg& arg, c10::TypeKind kind) {
  if (const auto* text = std::get_if<std::string>(&arg.value)) {
    const auto value = named_constant(*text);
    return value ? std::optional(c10::IValue(*value)) : std::nullopt;
  }
  const auto* number = std::get_if<std::int64_t>(&arg.value);
  if (number == nullptr) return std::nullopt;
  if (kind == c10::TypeKind::LayoutType) {
    return *number == 7 ? std::optional(c10::IValue(static_cast<std::int64_t>(at::kStrided))) : std::nullopt;
  }
  switch (*number) {
    case 1: return c10::IValue(static_cast<std::int64_t>(at::MemoryFormat::Contiguous));
    case 2: return c10::IValue(static_cast<std::int64_t>(at::MemoryFormat::ChannelsLast));
    case 3: return c10::IValue(static_cast<std::int64_t>(at::MemoryFormat::ChannelsLast3d));
    case 4: return c10::IValue(static_cast<std::int64_t>(at::MemoryFormat::Preserve));
    default: return std::nullopt;
  }
}

std::optional<c10::IValue> int_of(const Arg& arg) {
  if (const auto* number = std::get_if<std::int64_t>(&arg.value)) return c10::IValue(*number);
  if (const auto* flag = std::get_if<bool>(&arg.value)) return c10::IValue(static_cast<std::int64_t>(*flag));
  if (const auto* dtype = std::get_if<DType>(&arg.value)) {
    return c10::IValue(static_cast<std::int64_t>(scalar_type_of(*dtype)));
  }
  if (const auto* text = std::get_if<std::string>(&arg.value)) {
    if (const auto value = named_constant(*text)) return c10::IValue(*value);
  }
  return std::nullopt;
}

std::optional<c10::IValue> constant_of(const Arg& arg, const c10::Type& type);

template <class T, class Convert>
std::optional<c10::IValue> list_of(const ArgList& args, Convert convert) {
  c10::List<T> list;
  for (const Arg& arg : args) {
    const auto element = convert(arg);
    if (!element) return std::nullopt;
    list.push_back(*element);
  }
  return c10::IValue(std::move(list));
}

std::optional<c10::IValue> constant_list(const Arg& arg, const c10::Type& element) {
  const auto* args = std::get_if<ArgList>(&arg.value);
  if (args == nullptr) {  // a single number stands for a list of one (int[1])
    const Arg list{ArgList{arg}};
    return constant_list(list, element);
  }
  const auto as_int = [](const Arg& a) -> std::optional<std::int64_t> {
    const auto value = int_of(a);
    return value ? std::optional(value->toInt()) : std::nullopt;
  };
  const auto as_flag = [](const Arg& a) -> std::optional<bool> {
    const auto* flag = std::get_if<bool>(&a.value);
    return flag != nullptr ? std::optional(*flag) : std::nullopt;
  };
  switch (element.kind()) {
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType: return list_of<std::int64_t>(*args, as_int);
    case c10::TypeKind::FloatType: return list_of<double>(*args, number_of);
    case c10::TypeKind::BoolType: return list_of<bool>(*args, as_flag);
    default: return std::nullopt;
  }
}

std::optional<c10::IValue> constant_of(const Arg& arg, const c10::Type& type) {
  if (type.kind() == c10::TypeKind::OptionalType) {
    if (std::holds_alternative<std::monostate>(arg.value)) return c10::IValue();
    return constant_of(arg, *type.castRaw<c10::OptionalType>()->getElementType());
  }
  switch (type.kind()) {
    case c10::TypeKind::TensorType:
      if (std::holds_alternative<std::monostate>(arg.value)) return c10::IValue(at::Tensor());
      return wrapped_number(arg);
    case c10::TypeKind::NumberType: return scalar_of(arg);
    case c10::TypeKind::FloatType: {
      const auto number = number_of(arg);
      return number ? std::optional(c10::IValue(*number)) : std::nullopt;
    }
    case c10::TypeKind::BoolType: {
      const auto value = int_of(arg);
      return value ? std::optional(c10::IValue(value->toInt() != 0)) : std::nullopt;
    }
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
    case c10::TypeKind::ScalarTypeType: return int_of(arg);
    case c10::TypeKind::LayoutType:
    case c10::TypeKind::MemoryFormatType: return enum_of(arg, type.kind());
    case c10::TypeKind::DeviceObjType: return c10::IValue(c10::Device(c10::kCPU));
    case c10::TypeKind::StringType: {
      const auto* text = std::get_if<std::string>(&arg.value);
      return text != nullptr ? std::optional(c10::IValue(*text)) : std::nullopt;
    }
    case c10::TypeKind::ListType: return constant_list(arg, *type.castRaw<c10::ListType>()->getElementType());
    default: return std::nullopt;
  }
}

/// A list that holds references, if `arg` is one: c10's element type decides between the two kinds.
bool prepare_tensor_list(const Arg& arg, const c10::Type& type, PreparedArgument& prepared) {
  const auto* list = std::get_if<ArgList>(&arg.value);
  if (list == nullptr || type.kind() != c10::TypeKind::ListType) return false;
  const c10::Type& element = *type.castRaw<c10::ListType>()->getElementType();
  if (element.kind() == c10::TypeKind::TensorType) {
    prepared.kind = PreparedArgument::Kind::TensorList;
  } else if (element.kind() == c10::TypeKind::OptionalType) {
    prepared.kind = PreparedArgument::Kind::OptionalTensorList;
  } else {
    return false;
  }
  prepared.tensors = *list;
  return true;
}

tl::expected<PreparedArgument, std::string> prepare(const Arg& arg, const c10::Argument& formal) {
  PreparedArgument prepared;
  if (is_reference(arg)) {
    prepared.kind = PreparedArgument::Kind::Tensor;
    prepared.tensors = {arg};
    return prepared;
  }
  const c10::Type& type = *formal.real_type();
  if (prepare_tensor_list(arg, type, prepared)) return prepared;
  const auto* number = std::get_if<double>(&arg.value);
  if (number != nullptr && std::isnan(*number) && type.kind() == c10::TypeKind::TensorType)
    return tl::unexpected(
        fmt::format("argument {} is a number on the host that the program does not say", formal.name()));
  auto constant = constant_of(arg, type);
  if (!constant) return tl::unexpected(fmt::format("argument {} is no {}", formal.name(), type.str()));
  prepared.constant = std::move(*constant);
  return prepared;
}

at::Tensor look_up(const Arg& arg, TensorLookup& tensors) {
  if (const auto* value = std::get_if<ValueRef>(&arg.value)) return tensors.value(value->id);
  if (const auto* param = std::get_if<ParamRef>(&arg.value)) return tensors.param(param->id);
  if (const auto* buffer = std::get_if<BufferRef>(&arg.value)) return tensors.buffer(buffer->index);
  return {};
}

/// What the script itself wrote into a tensor that it brings from the host; nullptr: it is not said.
const ArgList* literals(const Op& op) {
  return op.name == "aten.empty.memory_format" ? keyword_list(op, "values") : nullptr;
}

/// What a recording says of how the operator ran, beside its arguments (docs/formats/model.md).
std::size_t remarks(const Op& op) {
  const bool backend = op.name == "aten.convolution.default" && keyword(op, "backend") != nullptr;
  std::size_t told = backend || literals(op) != nullptr ? 1 : 0;
  for (const char* const name : {"engine", "releases", "saved_on_host", "saved_contiguous", "region_on_host"})
    told += keyword(op, name) != nullptr ? 1 : 0;
  return told;
}

}  // namespace

tl::expected<at::Tensor, std::string> literal_content(const Op& op, const std::vector<std::int64_t>& sizes) {
  const ArgList* given = literals(op);
  if (given == nullptr) return at::Tensor();
  std::uint64_t elements = 0;
  const bool negative = std::any_of(sizes.begin(), sizes.end(), [](std::int64_t size) { return size < 0; });
  if (negative || c10::safe_multiplies_u64(sizes, &elements) || elements != given->size())
    return tl::unexpected(fmt::format("values holds {} numbers, which are not those of a tensor of [{}]", given->size(),
                                      fmt::join(sizes, ", ")));
  std::vector<double> numbers;
  std::vector<std::int64_t> integers;
  for (const Arg& arg : *given) {
    if (const auto* truth = std::get_if<bool>(&arg.value))
      integers.push_back(*truth ? 1 : 0);
    else if (const auto* integer = std::get_if<std::int64_t>(&arg.value))
      integers.push_back(*integer);
    else if (!std::holds_alternative<double>(arg.value))
      return tl::unexpected(std::string("values holds what is neither a number nor a truth value"));
    const auto* real = std::get_if<double>(&arg.value);
    numbers.push_back(real != nullptr ? *real : static_cast<double>(integers.back()));
  }
  const bool whole = integers.size() == given->size();
  return (whole ? at::tensor(integers, at::kLong) : at::tensor(numbers, at::kDouble)).view(sizes);
}

tl::expected<PreparedArguments, std::string> prepare_arguments(const Op& op, const c10::FunctionSchema& schema) {
  PreparedArguments prepared;
  std::size_t keywords = remarks(op);
  const auto& formals = schema.arguments();
  if (op.args.size() > formals.size()) return tl::unexpected(std::string("more arguments than the schema has"));
  for (std::size_t i = 0; i < formals.size(); ++i) {
    const Arg* given = i < op.args.size() ? &op.args[i] : keyword(op, formals[i].name());
    if (given != nullptr && i >= op.args.size()) ++keywords;
    if (given == nullptr) {
      if (!formals[i].default_value()) return tl::unexpected(fmt::format("argument {} is missing", formals[i].name()));
      prepared.list.push_back({PreparedArgument::Kind::Constant, *formals[i].default_value(), {}});
      continue;
    }
    auto argument = prepare(*given, formals[i]);
    if (!argument) return tl::unexpected(argument.error());
    for (const Arg& tensor : argument->tensors) {
      if (const auto* value = std::get_if<ValueRef>(&tensor.value)) prepared.values.push_back(value->id);
    }
    prepared.list.push_back(std::move(*argument));
  }
  if (keywords != op.kwargs.size()) return tl::unexpected(std::string("a keyword that the schema does not have"));
  return prepared;
}

void push_arguments(const PreparedArguments& arguments, TensorLookup& tensors, torch::jit::Stack& stack) {
  for (const PreparedArgument& argument : arguments.list) {
    switch (argument.kind) {
      case PreparedArgument::Kind::Constant: stack.push_back(argument.constant); break;
      case PreparedArgument::Kind::Tensor: stack.emplace_back(look_up(argument.tensors.front(), tensors)); break;
      case PreparedArgument::Kind::TensorList: {
        c10::List<at::Tensor> list;
        for (const Arg& arg : argument.tensors) list.push_back(look_up(arg, tensors));
        stack.emplace_back(std::move(list));
        break;
      }
      case PreparedArgument::Kind::OptionalTensorList: {
        c10::List<std::optional<at::Tensor>> list;
        for (const Arg& arg : argument.tensors) {
          list.push_back(is_reference(arg) ? std::optional(look_up(arg, tensors)) : std::nullopt);
        }
        stack.emplace_back(std::move(list));
        break;
      }
    }
  }
}

void take_results(torch::jit::Stack& stack, const std::function<void(at::Tensor)>& f) {
  for (c10::IValue& result : stack) {
    if (result.isTensor()) {
      f(std::move(result).toTensor());
    } else if (result.isTensorList()) {
      for (at::Tensor tensor : result.toTensorVector()) f(std::move(tensor));
    } else {
      f(at::Tensor());
    }
  }
}

}  // namespace foreshard::exec
