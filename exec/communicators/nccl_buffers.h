// NCCL's user buffer registration (run --nccl-register): segments of LibTorch's caching allocator are registered with
// communicators, so that NCCL reads and writes them in place instead of through its own staging buffers.
//
// The allocator tells of segments under its lock, from any thread; it cannot be left again, so the list of
// communicators lives as long as the process.
#pragma once

#include <nccl.h>

namespace foreshard::exec {

/// All segments of `device`, those that are there and those to come. To be taken back before the communicator goes.
void register_allocator(ncclComm_t comm, int device);
void deregister_allocator(ncclComm_t comm);
/// Of a communicator that is aborted: it takes what was registered with it.
void forget_allocator(ncclComm_t comm);

}  // namespace foreshard::exec
