// The watch over a backend's collectives: a kernel of NCCL waits for its peers for ever, and so does a call that
// connects them; only an abort from another thread ends either.
//
//   issuer   [ call 7 ] event 7   [ call 8, stands ...        whatever it does: launches, cudaMalloc, waits, the end
//   watch      .    .    .    event 7 over?   call 8 begun 300 s ago: reported, communicators aborted
//   peers      .         .         .         who is missing? (the launch's store, which may not answer either)
//
// Each collective has an event behind it, which the watch asks. The timeout runs for the oldest collective of a
// communicator that has not ended, from its call or from the end of the one before it; without one it does not run.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/plan.h"
#include "exec/backend/failure_board.h"
#include "exec/communicators/communicator.h"

namespace foreshard::exec {

class CollectiveWatch {
 public:
  struct Options {
    int device = 0;
    std::chrono::milliseconds timeout = std::chrono::minutes(5);
    const Plan* plan = nullptr;  // names the collective's unit; outlives the watch
  };
  /// What goes wrong goes to the board, once.
  CollectiveWatch(FailureBoard& board, const Options& options) : board_(board), options_(options) {}
  ~CollectiveWatch();
  CollectiveWatch(const CollectiveWatch&) = delete;
  CollectiveWatch& operator=(const CollectiveWatch&) = delete;

  /// Issuer: `call` puts a collective of the communicator on the stream. REQUIRES that call does not throw.
  template <class F>
  void during(const std::shared_ptr<Communicator>& communicator, InstructionId instruction, cudaStream_t stream,
              F&& call) {
    begins(communicator, instruction);
    call();
    issued(communicator, stream);
  }

 private:
  using Clock = std::chrono::steady_clock;

  struct Pending {
    InstructionId instruction;
    std::int64_t number = 0;      // of the communicator's calls, from 1
    cudaEvent_t event = nullptr;  // none: the call has not come back
    Clock::time_point since;      // it is the oldest
  };
  /// Of one communicator, oldest first.
  struct Queue {
    std::shared_ptr<Communicator> communicator;
    std::deque<Pending> pending;
    std::string missing;  // as the peers were last found
  };
  /// The oldest collective of a communicator, as it stood.
  struct Oldest {
    std::shared_ptr<Communicator> communicator;
    std::optional<Pending> pending;
    std::string missing;
  };

  void begins(const std::shared_ptr<Communicator>& communicator, InstructionId instruction);
  void issued(const std::shared_ptr<Communicator>& communicator, cudaStream_t stream);
  Queue& queue_of(const Communicator* communicator);
  cudaEvent_t take_event();

  void watch();
  void ask_peers();
  std::vector<Oldest> oldest();
  bool ended(const Oldest& oldest);
  std::optional<Failure> failure_of(const Oldest& oldest) const;
  std::string timed_out(const Oldest& oldest) const;
  void report(const Failure& failure);

  FailureBoard& board_;
  Options options_;
  std::mutex mutex_;  // of what follows; never held over a call of CUDA, NCCL or the store
  std::condition_variable changed_;
  std::deque<Queue> queues_;
  std::vector<cudaEvent_t> free_events_;
  bool closing_ = false;
  std::thread watch_, peers_;  // begin with the first collective
};

}  // namespace foreshard::exec
