// A stream of the host backend: a worker thread with its FIFO, and the latches between threads.
//
// The issuer pushes, the worker takes the whole queue at once and runs it; whoever has nothing to do sleeps. What an
// entry does is one of five things, so that most of them need no allocation. Entries other than work run after a
// failure too: latches and releases of memory. Owned by one backend.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "exec/backend/backend.h"
#include "exec/backend/failure_board.h"
#include "exec/record/memory_ledger.h"
#include "exec/record/recorder.h"

namespace foreshard::exec {

/// A latch. Fired once, waited for by anybody; waiting is sleeping.
class HostEvent final : public Event::Record {
 public:
  explicit HostEvent(bool fired = false) : fired_(fired) {}
  bool fired() const { return fired_.load(std::memory_order_acquire); }
  void fire();
  void wait() const;

 private:
  std::atomic<bool> fired_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
};

/// Memory as the streams see it: made by the pool's stream, gone when the last stream that used it is past the free.
class StreamMemory {
 public:
  virtual ~StreamMemory() = default;
  virtual void come_to_be() = 0;
  virtual void passed() = 0;
};

struct HostEntry {
  enum class What : std::uint8_t { Run, Allocate, Release, Fire, Wait };
  What what = What::Run;
  PlanPlace place;
  Work work;                             // Run
  std::shared_ptr<StreamMemory> memory;  // Allocate, Release
  std::shared_ptr<HostEvent> event;      // Fire, Wait
};

struct HostStreamOptions {
  std::string name;
  int intra_op_threads = 0;
  RecordedLane* lane = nullptr;                     // where spans go, or nowhere
  std::shared_ptr<OperatorMemory> operator_memory;  // of work on this stream
};

class HostStream {
 public:
  HostStream(HostStreamOptions options, FailureBoard& board);
  ~HostStream();

  void push(HostEntry entry);
  /// Everything pushed so far is done. The issuer only.
  bool idle() const { return done_.load(std::memory_order_acquire) == issued_; }

  /// The place of the work that the calling thread runs, and its stream; null on threads that are no stream's.
  struct Running {
    const HostStream* stream = nullptr;
    PlanPlace place;
  };
  static const Running& running();
  static const std::shared_ptr<OperatorMemory>& operator_memory_here();

 private:
  void run();
  bool take(std::vector<HostEntry>& batch);
  void run_entry(HostEntry& entry);
  void run_work(HostEntry& entry);

  HostStreamOptions options_;
  FailureBoard& board_;
  std::mutex mutex_;
  std::condition_variable filled_;
  std::vector<HostEntry> entries_;
  bool closing_ = false;
  std::uint64_t issued_ = 0;  // the issuer's
  std::atomic<std::uint64_t> done_{0};
  std::thread worker_;  // last: it uses the members above
};

}  // namespace foreshard::exec
