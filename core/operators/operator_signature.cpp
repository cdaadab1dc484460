#include "core/operators/operator_signature.h"
#include "core/text/format_append.h"

#include <fmt/format.h>

#include <iterator>
#include <type_traits>
#include <variant>

namespace foreshard {
namespace {

class Signature {
 public:
  explicit Signature(const Model& model) : model_(model) {}

  std::string of(const Op& op) {
    text_ = op.name;
    for (const Arg& arg : op.args) add(arg);
    for (const NamedArg& arg : op.kwargs) {
      format_append(text_, " {}:", arg.name);
      add(arg.arg);
    }
    return std::move(text_);
  }

 private:
  void tensor(DType dtype, const Shape& shape) {
    format_append(text_, " {}[", dtype_short_name(dtype));
    for (std::size_t i = 0; i < shape.size(); ++i) {
      format_append(text_, "{}{}", i > 0 ? "," : "", shape[i]);
    }
    text_ += ']';
  }

  void add(const Arg& arg) {
    std::visit(
        [this](const auto& value) {
          using T = std::decay_t<decltype(value)>;
          if constexpr (std::is_same_v<T, std::monostate>) {
            text_ += " -";
          } else if constexpr (std::is_same_v<T, ValueRef>) {
            const ValueInfo& info = model_.values[value.id.index()];
            tensor(info.dtype, info.shape);
          } else if constexpr (std::is_same_v<T, ParamRef>) {
            const ParamInfo& info = model_.params[value.id.index()];
            tensor(info.dtype, info.shape);
          } else if constexpr (std::is_same_v<T, BufferRef>) {
            const BufferInfo& info = model_.buffers[static_cast<std::size_t>(value.index)];
            tensor(info.dtype, info.shape);
          } else if constexpr (std::is_same_v<T, ArgList>) {
            text_ += " (";
            for (const Arg& item : value) add(item);
            text_ += " )";
          } else if constexpr (std::is_same_v<T, DType>) {
            format_append(text_, " {}", dtype_name(value));
          } else {
            format_append(text_, " {}", value);
          }
        },
        arg.value);
  }

  const Model& model_;
  std::string text_;
};

}  // namespace

std::string operator_signature(const Model& model, const Op& op) { return Signature(model).of(op); }

}  // namespace foreshard
