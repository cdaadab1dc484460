// The end of several communicators at once.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "exec/communicators/communicator.h"

namespace foreshard::exec {

/// Aborts all of them, each on a thread of its own, and waits until that is done: an abort frees memory of the device,
/// which waits for what runs there, and that may be a collective of another one of them, whose abort would come next
/// (NVIDIA/nccl issue 1013, pytorch issue 119797). Throws nothing: one whose abort fails, or for which there is no
/// thread, keeps the others from nothing.
void abort_all(const std::vector<std::shared_ptr<Communicator>>& communicators, std::string_view why) noexcept;

}  // namespace foreshard::exec
