// Operators that only CUDA has a kernel for, as what they compute on the host: programs captured for the card name
// them.
//
// Functions without state; usable from any thread.
#pragma once

#include <ATen/core/stack.h>

#include <string_view>

namespace foreshard::exec {

/// Takes the arguments of the operator's own schema from the stack and leaves the results that a forward reads; the
/// others (states of generators, workspaces) are left out. Differentiable. Throws LibTorch's exceptions.
using HostEquivalent = void (*)(torch::jit::Stack& stack);

/// Of "aten::_scaled_dot_product_flash_attention", say; nullptr: LibTorch's own kernel serves.
HostEquivalent host_equivalent(std::string_view schema_name);

}  // namespace foreshard::exec
