// Communicator: collectives of one group of ranks on raw memory.
//
// A Backend calls these as work of a stream, so that they are asynchronous for the issuer: on the host they block the
// stream's thread, on CUDA they are enqueued on the stream that is current. A communicator is a group of ranks, as the
// plan lists them: its calls may come from several streams, but one after the other (exec/backend/collective_order.h),
// and every rank of the group makes the same calls in the same order. Whatever goes wrong (a peer that does not come
// within the timeout, calls that do not match, an abort) is thrown as std::runtime_error with the names involved.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "core/dtype.h"
#include "core/plan.h"
#include "core/units.h"

namespace foreshard::exec {

/// How far a rank is in its calls of one communicator.
struct CallsMade {
  std::int64_t ended = 0;      // calls that came back to their caller; what they put on a stream may still run
  std::string_view last = {};  // the one that began last: "all_gather", ...
};

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Whether calls on several streams run in the order of the calls without anybody else's doing.
  virtual bool orders_streams() const { return false; }

  /// output is [size, numel], input is [numel] and may be the caller's own slice of output.
  virtual void all_gather(void* output, const void* input, Numel numel, DType dtype) = 0;
  /// Rank r gives counts[r] elements; output holds them one after another.
  virtual void all_gather_uneven(void* output, const void* input, std::span<const Numel> counts, DType dtype) = 0;
  /// input is [size, numel], output is [numel].
  virtual void reduce_scatter(void* output, const void* input, Numel numel, DType dtype, ReduceOp op) = 0;
  /// Rank r receives counts[r] elements; input holds the parts of all ranks one after another.
  virtual void reduce_scatter_uneven(void* output, const void* input, std::span<const Numel> counts, DType dtype,
                                     ReduceOp op) = 0;
  virtual void all_reduce(void* data, Numel numel, DType dtype, ReduceOp op) = 0;
  /// Rank r is sent send[r] elements of input and sends receive[r] elements of output; the parts of all ranks lie one
  /// after another, in their order, and may be empty. What a rank sends is what the other expects of it, or both throw.
  virtual void all_to_all(void* output, const void* input, std::span<const Numel> send, std::span<const Numel> receive,
                          DType dtype) = 0;
  virtual void broadcast(void* data, Numel numel, DType dtype, int root) = 0;
  virtual void barrier() = 0;

  /// From any thread: calls of all ranks, running and later ones, throw and quote `why`. Does not wait for a call that
  /// is under way.
  virtual void abort(std::string_view why) = 0;

  /// What went wrong outside of any call: a peer lost while work was already on the device. Empty: nothing so far. From
  /// any thread; asks nobody over a network.
  virtual std::string asynchronous_error() const { return {}; }

  /// From any thread. {0}: calls end where they are made, nobody has to watch them.
  virtual CallsMade calls_made() const { return {}; }
  /// What a peer left word of, and an answer to the peers that ask how far this rank is. From one thread; as long as
  /// the launch's store takes to answer. Empty: no word.
  virtual std::string word_of_peers() { return {}; }
  /// Which ranks of the group have not made call number `call` (from 1), in words; as word_of_peers(). The peers are
  /// asked first and answer when next they look: empty until then.
  virtual std::string missing_at(std::int64_t call) {
    static_cast<void>(call);
    return {};
  }
};

}  // namespace foreshard::exec
