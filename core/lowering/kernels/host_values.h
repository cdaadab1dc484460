// Operators that hand values of the device to the host, which waits until the stream that makes them has come there:
// single values, and numbers of rows that only the values tell. Pure functions of an operator and its operands.
#pragma once

#include "core/model/model.h"

namespace foreshard {

/// As ATen's CUDA kernels do it (a copy, then cudaStreamSynchronize).
bool hands_to_host(const Model& model, const Op& op);

}  // namespace foreshard
