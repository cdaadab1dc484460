// What operators of the program read.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/model/model.h"

namespace foreshard {

/// Calls on_value(ValueId) and on_param(ParamId) for the references in an argument, lists and all, in their order.
template <class OnValue, class OnParam>
void for_each_reference(const Arg& arg, const OnValue& on_value, const OnParam& on_param) {
  if (const auto* value = std::get_if<ValueRef>(&arg.value)) on_value(value->id);
  if (const auto* param = std::get_if<ParamRef>(&arg.value)) on_param(param->id);
  if (const auto* list = std::get_if<ArgList>(&arg.value)) {
    for (const Arg& item : *list) for_each_reference(item, on_value, on_param);
  }
}

/// ... of an operator.
template <class OnValue, class OnParam>
void for_each_reference(const Op& op, const OnValue& on_value, const OnParam& on_param) {
  for (const Arg& arg : op.args) for_each_reference(arg, on_value, on_param);
  for (const NamedArg& named : op.kwargs) for_each_reference(named.arg, on_value, on_param);
}

/// The references of a whole program side by side, for those who go through it several times. A value.
class References {
 public:
  explicit References(const std::vector<Op>& ops) {
    value_begin_.reserve(ops.size() + 1);
    param_begin_.reserve(ops.size() + 1);
    for (const Op& op : ops) {
      end_operator();
      for_each_reference(
          op, [&](ValueId id) { values_.push_back(id); }, [&](ParamId id) { params_.push_back(id); });
    }
    end_operator();
  }

  /// In the order of the arguments; valid as long as this.
  std::span<const ValueId> values(std::size_t op) const { return of(values_, value_begin_, op); }
  std::span<const ParamId> params(std::size_t op) const { return of(params_, param_begin_, op); }

 private:
  void end_operator() {
    value_begin_.push_back(static_cast<std::uint32_t>(values_.size()));
    param_begin_.push_back(static_cast<std::uint32_t>(params_.size()));
  }
  template <class Reference>
  static std::span<const Reference> of(const std::vector<Reference>& all, const std::vector<std::uint32_t>& begin,
                                       std::size_t op) {
    return {all.data() + begin[op], all.data() + begin[op + 1]};
  }

  std::vector<ValueId> values_;
  std::vector<ParamId> params_;
  std::vector<std::uint32_t> value_begin_, param_begin_;  // by operator, and the end of the last
};

}  // namespace foreshard
