// Products in 8 bits: torchao's matmul_with_hp_or_float8_args under Float8Linear (torchao 0.18), kernel by kernel as it
// runs without a compiler. What autograd keeps is what came in; both operands of each of the three products are scaled
// and cast anew, but for a matrix that FSDP2 gathered in 8 bits. Selective checkpointing by operators looks inside.
#pragma once

#include <vector>

#include "core/lowering/backward/backward.h"

namespace foreshard::lowering {

/// y = x W^T; args: x, the layer's matrix [out, in].
std::vector<Ref> float8_linear(Emitter& emit, const std::vector<Ref>& args, const Layout& result);
/// Gradients of x and of the matrix.
std::vector<Ref> float8_linear_backward(Emitter& emit, BackwardInput& in, const Ref& g);

}  // namespace foreshard::lowering
