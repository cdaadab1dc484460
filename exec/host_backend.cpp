#include "exec/host_backend.h"

#include <ATen/Parallel.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>

#include "core/result.h"
#include "exec/communicator.h"
#include "exec/memory_ledger.h"

namespace foreshard::exec {
namespace {

class HostEvent final : public Event::Record {
 public:
  void fire() {
    {
      std::lock_guard lock(mutex_);
      fired_ = true;
    }
    opened_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    opened_.wait(lock, [this] { return fired_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable opened_;
  bool fired_ = false;
};

HostEvent& host_event(const Event& event) { return static_cast<HostEvent&>(*event.record()); }

/// Made by the issuer, filled by the pool's stream, emptied by the last of the streams that used it.
class HostBuffer final : public Buffer::Record {
 public:
  HostBuffer(MemoryLedger& ledger, StreamIndex pool, MemoryCategory category, Bytes bytes)
      : ledger_(ledger), pool_(pool), category_(category), bytes_(bytes) {}

  void* data() const override {
    void* data = data_.load(std::memory_order_acquire);
    if (data == nullptr && bytes_ > 0) {
      throw std::runtime_error("a buffer is used before its pool's stream has allocated it, or after it was freed");
    }
    return data;
  }
  Bytes bytes() const override { return bytes_; }
  StreamIndex pool() const { return pool_; }
  MemoryCategory category() const { return category_; }

  void come_to_be() {
    if (bytes_ == 0) return;
    memory_ = c10::GetCPUAllocator()->allocate(static_cast<std::size_t>(bytes_));
    ledger_.resident(pool_, category_, bytes_);
    data_.store(memory_.get(), std::memory_order_release);
  }

  /// One of the streams that used it is past the free.
  void passed() {
    if (users_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    if (data_.exchange(nullptr) == nullptr) return;
    memory_.clear();
    ledger_.resident(pool_, category_, -bytes_);
  }

  // The issuer's side.
  void used_on(StreamIndex stream) { used_ |= std::uint64_t{1} << stream.index(); }
  bool is_used_on(StreamIndex stream) const { return (used_ >> stream.index() & 1) != 0; }
  void expect(int users) { users_.store(users); }
  bool freed() const { return users_.load() >= 0; }

 private:
  MemoryLedger& ledger_;
  StreamIndex pool_;
  MemoryCategory category_;
  Bytes bytes_;
  std::uint64_t used_ = 0;      // streams, by index
  std::atomic<int> users_{-1};  // streams that have yet to pass the free; -1 = not freed
  c10::DataPtr memory_;
  std::atomic<void*> data_{nullptr};
};

HostBuffer& host_buffer(const std::shared_ptr<Buffer::Record>& record) { return static_cast<HostBuffer&>(*record); }

/// What the streams of one backend share: the first failure, and whom to tell of it.
class FailureBoard {
 public:
  explicit FailureBoard(int rank) : rank_(rank) {}

  bool failed() const { return failed_.load(std::memory_order_acquire); }

  void report(Failure failure) {
    std::vector<std::shared_ptr<Communicator>> to_abort;
    {
      std::lock_guard lock(mutex_);
      if (failed()) return;
      first_ = std::move(failure);
      failed_.store(true, std::memory_order_release);
      to_abort = communicators_;
    }
    const std::string why =
        fmt::format("rank {} failed in instruction {}: {}", rank_, first_.instruction.value, first_.text);
    for (const auto& communicator : to_abort) communicator->abort(why);
  }

  void tell(const std::shared_ptr<Communicator>& communicator) {
    std::lock_guard lock(mutex_);
    if (std::find(communicators_.begin(), communicators_.end(), communicator) == communicators_.end()) {
      communicators_.push_back(communicator);
    }
  }

  Outcome<void> outcome() const {
    if (failed()) return tl::unexpected<Failure>(first_);  // written once, before failed_
    return {};
  }

 private:
  int rank_;
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  Failure first_;
  std::vector<std::shared_ptr<Communicator>> communicators_;
};

/// A worker thread with its FIFO. Entries marked `always` run after a failure too: latches and releases of memory.
class HostStream {
 public:
  HostStream(std::string name, FailureBoard& board, int intra_op_threads)
      : name_(std::move(name)), board_(board), worker_([this, intra_op_threads] { run(intra_op_threads); }) {}

  ~HostStream() {
    {
      std::lock_guard lock(mutex_);
      closing_ = true;
    }
    filled_.notify_one();
    worker_.join();
  }

  void push(InstructionId instruction, bool always, Work work) {
    bool was_empty;
    {
      std::lock_guard lock(mutex_);
      was_empty = entries_.empty();
      entries_.push_back({instruction, always, std::move(work)});
    }
    if (was_empty) filled_.notify_one();
  }

 private:
  struct Entry {
    InstructionId instruction;
    bool always;
    Work work;
  };

  void run(int intra_op_threads) {
    if (intra_op_threads > 0) at::set_num_threads(intra_op_threads);
    std::deque<Entry> batch;
    while (take(batch)) {
      for (; !batch.empty(); batch.pop_front()) run_entry(batch.front());
    }
  }

  bool take(std::deque<Entry>& batch) {
    std::unique_lock lock(mutex_);
    filled_.wait(lock, [this] { return closing_ || !entries_.empty(); });
    batch.swap(entries_);
    return !batch.empty();
  }

  void run_entry(Entry& entry) {
    if (board_.failed() && !entry.always) return;
    try {
      entry.work();
    } catch (const std::exception& error) {
      board_.report({entry.instruction, name_, error.what()});
    } catch (...) {
      board_.report({entry.instruction, name_, "something that is no std::exception was thrown"});
    }
  }

  std::string name_;
  FailureBoard& board_;
  std::mutex mutex_;
  std::condition_variable filled_;
  std::deque<Entry> entries_;
  bool closing_ = false;
  std::thread worker_;  // last: it uses the members above
};

class HostBackend final : public Backend {
 public:
  explicit HostBackend(const HostBackendOptions& options) : options_(options), board_(options.rank) {}

  StreamIndex create_stream(std::string_view name, int /*priority*/) override {
    FORESHARD_CHECK(streams_.size() < 64, "a backend has at most 64 streams");
    ledger_.add_stream();
    streams_.push_back(std::make_unique<HostStream>(std::string(name), board_, options_.intra_op_threads));
    return StreamIndex(streams_.size() - 1);
  }

  Buffer allocate(const Issue& issue, Bytes bytes, MemoryCategory category) override {
    auto buffer = std::make_shared<HostBuffer>(ledger_, issue.stream, category, bytes);
    buffer->used_on(issue.stream);
    ledger_.allocated(issue.stream, category, bytes);
    stream(issue.stream).push(issue.instruction, false, [buffer] { buffer->come_to_be(); });
    return Buffer(std::move(buffer));
  }

  void free(const Buffer& buffer, InstructionId instruction) override {
    HostBuffer& host = host_buffer(buffer.record());
    FORESHARD_CHECK(!host.freed(), "a buffer is freed twice");
    ledger_.allocated(host.pool(), host.category(), -host.bytes());
    std::vector<HostStream*> users;
    for (std::size_t s = 0; s < streams_.size(); ++s) {
      if (host.is_used_on(StreamIndex(s))) users.push_back(streams_[s].get());
    }
    host.expect(static_cast<int>(users.size()));
    for (HostStream* user : users) {
      user->push(instruction, true, [record = buffer.record()] { host_buffer(record).passed(); });
    }
  }

  void launch(const Issue& issue, Work work) override {
    note_uses(issue);
    stream(issue.stream).push(issue.instruction, false, std::move(work));
  }

  void copy(const Issue& issue, const Buffer& to, const Buffer& from, Bytes bytes) override {
    FORESHARD_CHECK(bytes <= to.bytes() && bytes <= from.bytes(), "a copy is larger than its buffers");
    host_buffer(to.record()).used_on(issue.stream);
    host_buffer(from.record()).used_on(issue.stream);
    launch(issue, [to, from, bytes] {
      if (bytes > 0) std::memcpy(to.data(), from.data(), static_cast<std::size_t>(bytes));
    });
  }

  void collective(const Issue& issue, std::shared_ptr<Communicator> communicator, CollectiveWork work) override {
    board_.tell(communicator);
    launch(issue, [communicator = std::move(communicator), work = std::move(work)] { work(*communicator); });
  }

  Event record_event(const Issue& issue) override {
    auto event = std::make_shared<HostEvent>();
    stream(issue.stream).push(issue.instruction, true, [event] { event->fire(); });
    return Event(std::move(event));
  }

  void wait_event(const Issue& issue, const Event& event) override {
    stream(issue.stream).push(issue.instruction, true, [event] { host_event(event).wait(); });
  }

  Outcome<void> host_wait(const Event& event) override {
    host_event(event).wait();
    return board_.outcome();
  }

  Outcome<void> synchronize() override {
    std::vector<Event> ends;
    for (std::size_t s = 0; s < streams_.size(); ++s) ends.push_back(record_event({StreamIndex(s), {}}));
    for (const Event& end : ends) host_event(end).wait();
    return board_.outcome();
  }

  MemoryReport memory() const override { return ledger_.report(); }

 private:
  HostStream& stream(StreamIndex index) { return *streams_[index.index()]; }

  static void note_uses(const Issue& issue) {
    for (const Buffer& buffer : issue.uses) host_buffer(buffer.record()).used_on(issue.stream);
  }

  HostBackendOptions options_;
  MemoryLedger ledger_;
  FailureBoard board_;
  std::vector<std::unique_ptr<HostStream>> streams_;  // last: the workers use the members above
};

}  // namespace

std::unique_ptr<Backend> make_host_backend(const HostBackendOptions& options) {
  return std::make_unique<HostBackend>(options);
}

}  // namespace foreshard::exec
