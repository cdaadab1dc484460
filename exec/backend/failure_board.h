// What the streams of one backend share: its first failure, and the communicators whose peers must hear of it.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "exec/backend/backend.h"

namespace foreshard::exec {

/// Usable from any thread.
class FailureBoard {
 public:
  /// `rank` is named in what reaches the peers.
  explicit FailureBoard(int rank) : rank_(rank) {}

  bool failed() const { return failed_.load(std::memory_order_acquire); }

  /// Keeps the first failure and aborts every communicator that was told of.
  void report(Failure failure);

  /// A communicator whose peers wait for this rank.
  void tell(const std::shared_ptr<Communicator>& communicator);

  Outcome<void> outcome() const;

 private:
  int rank_;
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  Failure first_;  // written once, before failed_
  std::vector<std::shared_ptr<Communicator>> communicators_;
};

}  // namespace foreshard::exec
