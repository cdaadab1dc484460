// Keyword arguments of an operator: PyTorch's own, and what a recording says beside them (docs/formats/model.md).
#pragma once

#include <algorithm>
#include <string_view>
#include <variant>

#include "core/model/model.h"

namespace foreshard {

/// nullptr: there is none of that name.
inline const Arg* keyword(const Op& op, std::string_view name) {
  const auto at =
      std::find_if(op.kwargs.begin(), op.kwargs.end(), [&](const NamedArg& arg) { return arg.name == name; });
  return at == op.kwargs.end() ? nullptr : &at->arg;
}

/// nullptr: there is none of that name, or it is no list.
inline const ArgList* keyword_list(const Op& op, std::string_view name) {
  const Arg* const given = keyword(op, name);
  return given == nullptr ? nullptr : std::get_if<ArgList>(&given->value);
}

/// Collectives inside of an operator that nobody looks into, of forward or `backward`: [kind, dimension, bytes] each.
inline const ArgList* collectives_inside(const Op& op, bool backward = false) {
  return op.opaque < 0 ? nullptr : keyword_list(op, backward ? "meets_backward" : "meets");
}

/// Whether autograd's engine ran it in the midst of a forward (torch.autograd.grad, torch.func.grad), in its own
/// thread.
inline bool is_run_by_engine(const Op& op) {
  const Arg* const said = keyword(op, "engine");
  const bool* const by_engine = said == nullptr ? nullptr : std::get_if<bool>(&said->value);
  return by_engine != nullptr && *by_engine;
}

}  // namespace foreshard
