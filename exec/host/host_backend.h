// The host backend: a stream is a worker thread with a FIFO, an event is a latch, memory comes from LibTorch's CPU
// allocator. Runs everywhere; nobody waits busily.
//
// Who waits on whom: a worker sleeps until its FIFO has an entry; a wait_event entry sleeps until the latch is open;
// the issuer sleeps in host_wait and synchronize. A worker's waits only ever point at work that was issued earlier, so
// the order of issue is a proof that they end. The thread that creates the backend is its issuer.
#pragma once

#include <memory>

#include "exec/backend/arena_places.h"
#include "exec/backend/backend.h"

namespace foreshard::exec {

class Recorder;

struct HostBackendOptions {
  int rank = 0;                  // named in failures that reach other ranks
  int intra_op_threads = 0;      // LibTorch's threads inside one operator, per worker; 0 = leave as they are
  Recorder* recorder = nullptr;  // of spans and memory; outlives the backend. None: recording costs nothing
  std::shared_ptr<const ArenaPlaces> arena =
      nullptr;  // of the plan that runs; buffers that it places are parts of blocks
};

/// Streams have no priorities here: the kernel's scheduler shares the cores.
std::unique_ptr<Backend> make_host_backend(const HostBackendOptions& options = {});

}  // namespace foreshard::exec
