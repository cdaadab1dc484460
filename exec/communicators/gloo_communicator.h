// Collectives between processes over TCP: Debian's Gloo, met through a Rendezvous.
//
// Gloo ends at fp16 and has no reduce-scatter of its own into a tensor: bytes are moved by Gloo (all-to-all,
// all-gather), sums are ours (exec/communicators/reduce_parts.h), in the order of ranks. Each communicator has its own
// connections and its own thread for them (asleep in epoll while nothing comes), so that those of different streams run
// side by side.
//
// Who is lost is named: a connection that closes is traced back to its rank, and the word that a failing rank or the
// launcher left at the Rendezvous is quoted. The Rendezvous outlives the communicators made with it.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "core/result.h"
#include "exec/communicators/communicator.h"
#include "exec/launch/rendezvous.h"

namespace foreshard::exec {

struct GlooGroup {
  std::string name;        // one per group and purpose: "A", "replicate of 1,3"
  std::vector<int> ranks;  // of the world, in the order of the group; this rank among them. Empty: the whole world
  std::chrono::milliseconds timeout = std::chrono::minutes(5);  // of each collective, and of connecting
};

/// Blocks until the group's ranks have come. A rank that makes several communicators makes them in an order that agrees
/// with that of its peers. Errors: ranks that do not come in time, addresses that cannot be reached.
Result<std::shared_ptr<Communicator>> make_gloo_communicator(Rendezvous& rendezvous, const GlooGroup& group);

}  // namespace foreshard::exec
