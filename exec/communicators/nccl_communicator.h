// Collectives between GPUs: one NCCL communicator for one group of ranks of the plan.
//
// Calls enqueue on the current CUDA stream and return; the first ones of a group connect its ranks, and may stand until
// an abort from another thread (exec/cuda/collective_watch.h). The ranks meet through an id that rank 0 makes and the
// launch's rendezvous carries (exec/communicators/nccl_meeting.h). abort() ends kernels that wait for a lost peer,
// and throws nothing, on a device that is broken too; asynchronous_error() tells what NCCL's network noticed meanwhile.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "core/result.h"
#include "exec/communicators/communicator.h"

namespace foreshard::exec {

/// What is known of the peers beside NCCL, which sees only those behind a network go. Each may take as long as the
/// launch's store takes to answer; failure() from any thread, the others from one.
struct NcclPeers {
  std::function<std::string()> failure = {};                      // why one will not come, or come back; empty: no word
  std::function<void(std::int64_t calls)> answer = {};            // tells those that ask how many calls this rank made
  std::function<std::string(std::int64_t call)> missing_at = {};  // as Communicator::missing_at
};

struct NcclOptions {
  int rank = 0;  // in the group
  int size = 1;
  int device = 0;
  std::chrono::milliseconds timeout = std::chrono::minutes(5);  // of the meeting, and of connections made later
  bool register_buffers = false;  // the allocator's segments (exec/communicators/nccl_buffers.h)
  int max_ctas = 0;               // thread blocks of a collective at most; 0: NCCL's choice
  /// false: NCCL gives each call to a thread of its own and is asked until it is done, some 100 us of the issuer's time
  /// a call. As NCCL_COMM_BLOCKING=0 says for a whole process.
  bool blocking = true;
  NcclPeers peers = {};
};

/// Made by one rank of the group, opaque bytes for the others.
Result<std::string> nccl_unique_id();

/// All ranks of the group call it with the same id. Errors: peers that do not come within the timeout, another NCCL
/// version at a peer, NCCL's own words.
Result<std::shared_ptr<Communicator>> nccl_communicator(const NcclOptions& options, const std::string& unique_id);

/// "2.28.9", of the library that is loaded.
std::string nccl_version();
/// Of the headers that this was built with.
std::string nccl_built_version();
/// NCCL keeps its interface within a major version, and adds to it.
bool nccl_serves(const std::string& loaded, const std::string& built);

}  // namespace foreshard::exec
