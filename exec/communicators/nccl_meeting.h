// The ranks of a group meet over the launch's rendezvous and become a NCCL communicator: rank 0 of the group leaves an
// id there, and the version of its NCCL, which all must share.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "core/result.h"
#include "exec/communicators/communicator.h"
#include "exec/launch/rendezvous.h"

namespace foreshard::exec {

struct NcclGroup {
  std::string name;        // one per group and purpose, as all its ranks call it
  std::vector<int> ranks;  // of the world, in the order of the group; this rank among them
  int device = 0;
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
  bool register_buffers = false;  // as in NcclOptions
  int max_ctas = 0;               // as in NcclOptions
};

/// Blocks until the group's ranks have come. A rank that makes several communicators makes them in an order that agrees
/// with that of its peers; the rendezvous outlives them, and the word that a rank leaves there ends the waiting of the
/// others. Errors: a peer that does not come within the timeout, one with another version of NCCL, NCCL's own words.
Result<std::shared_ptr<Communicator>> connect_nccl(Rendezvous& rendezvous, const NcclGroup& group);

}  // namespace foreshard::exec
