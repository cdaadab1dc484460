// Communicators between threads of one process: for tests with several ranks, and for plans tried out without
// launching.
//
// Ranks meet twice per collective: when all have published their arguments, and when all are done with the others'
// memory. In between each rank computes its own part straight from its peers' memory; nothing is staged. Sums of bf16
// and fp16 are added in fp32 and rounded once, in the order of ranks: the same bits on every rank and in every run.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "exec/communicators/communicator.h"

namespace foreshard::exec {

/// One communicator per rank. A rank that does not come within `timeout` is named in the error of those that wait.
std::vector<std::shared_ptr<Communicator>> in_process_communicators(
    int size, std::chrono::milliseconds timeout = std::chrono::minutes(5));

}  // namespace foreshard::exec
