// Collectives between processes over TCP: Debian's Gloo, met through LibTorch's TCPStore, so that torchrun's
// MASTER_ADDR and MASTER_PORT work as they are.
//
// Gloo ends at fp16 and has no reduce-scatter of its own into a tensor: bytes are moved by Gloo (all-to-all,
// all-gather), sums are ours (exec/reduce_parts.h), in the order of ranks. A ProcessRendezvous outlives the
// communicators made by it; each makes its own connections, so that those of different streams run side by side.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>

#include "core/result.h"
#include "exec/communicator.h"

namespace foreshard::exec {

struct RendezvousOptions {
  std::string host = "127.0.0.1";  // MASTER_ADDR
  int port = 29500;                // MASTER_PORT
  int rank = 0;
  int size = 1;
  std::string interface = "lo";                                 // network interface that Gloo listens on
  std::chrono::milliseconds timeout = std::chrono::minutes(5);  // of the meeting
};

class ProcessRendezvous {
 public:
  virtual ~ProcessRendezvous() = default;

  /// Rank 0 opens the port, the others come to it. Errors: a port that is taken, ranks that do not come in time.
  static Result<std::unique_ptr<ProcessRendezvous>> meet(const RendezvousOptions& options);

  /// All ranks ask for the same names in the same order. `timeout` is that of each collective.
  virtual Result<std::shared_ptr<Communicator>> communicator(
      std::string_view name, std::chrono::milliseconds timeout = std::chrono::minutes(5)) = 0;
};

}  // namespace foreshard::exec
