// The CUDA side of an emulation (exec/communicators/emulated_communicator.h): copies on the current stream, kernels
// that hold it.
#pragma once

#include <memory>

#include "exec/communicators/emulated_communicator.h"

namespace foreshard::exec {

/// `blocks`: thread blocks that NCCL's kernel would occupy (its channels).
std::unique_ptr<EmulatedDevice> emulated_cuda(int device, int blocks);

}  // namespace foreshard::exec
