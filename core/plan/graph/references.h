// What an operator of the program reads.
#pragma once

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

}  // namespace foreshard
