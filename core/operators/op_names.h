// What the names of operators say.
#pragma once

#include <string>
#include <string_view>

namespace foreshard {

/// As eager PyTorch dispatches it: Python's operators and old names are others' aliases.
std::string op_name(std::string_view target);

/// aten.add_.Tensor writes into its first argument; aten.__and__.Tensor does not.
bool is_in_place(std::string_view name);

/// Activations in place whose derivative reads what they overwrite: autograd copies it first, so that as much is held
/// as without "in place". Empty: another operator.
std::string without_overwriting(std::string_view name);

}  // namespace foreshard
