#include "exec/host/host_backend.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <array>
#include <atomic>
#include <cstring>
#include <stdexcept>
#include <utility>
#include <vector>

#include "core/result.h"
#include "exec/backend/collective_order.h"
#include "exec/backend/failure_board.h"
#include "exec/communicators/communicator.h"
#include "exec/host/host_stream.h"
#include "exec/record/memory_ledger.h"
#include "exec/record/recorder.h"

namespace foreshard::exec {
namespace {

HostEvent& host_event(const Event& event) { return static_cast<HostEvent&>(*event.record()); }

/// Made by the issuer, filled by the pool's stream, emptied by the last of the streams that used it.
class HostBuffer final : public Buffer::Record, public StreamMemory {
 public:
  HostBuffer(MemoryLedger& ledger, StreamIndex pool, MemoryCategory category, Bytes bytes)
      : ledger_(ledger), pool_(pool), category_(category), bytes_(bytes) {}
  /// A part of a block of the same pool, which counts as a whole.
  HostBuffer(std::shared_ptr<const HostBuffer> block, Bytes offset, MemoryCategory category, Bytes bytes)
      : HostBuffer(block->ledger_, block->pool_, category, bytes) {
    block_ = std::move(block);
    offset_ = offset;
  }

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

  void come_to_be() override {
    if (bytes_ == 0) return;
    if (is_part()) return data_.store(static_cast<std::byte*>(block_->data()) + offset_, std::memory_order_release);
    memory_ = c10::GetCPUAllocator()->allocate(static_cast<std::size_t>(bytes_));
    ledger_.resident(pool_, category_, bytes_);
    data_.store(memory_.get(), std::memory_order_release);
  }

  /// One of the streams that used it is past the free.
  void passed() override {
    if (users_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    if (data_.exchange(nullptr) == nullptr || is_part()) return;
    memory_.clear();
    ledger_.resident(pool_, category_, -bytes_);
  }

  // The issuer's side.
  void used_on(StreamIndex stream) { used_ |= std::uint64_t{1} << stream.index(); }
  bool is_used_on(StreamIndex stream) const { return (used_ >> stream.index() & 1) != 0; }
  void expect(int users) { users_.store(users); }
  bool freed() const { return users_.load() >= 0; }
  bool is_part() const { return block_ != nullptr; }
  Bytes offset() const { return offset_; }

 private:
  MemoryLedger& ledger_;
  StreamIndex pool_;
  MemoryCategory category_;
  Bytes bytes_;
  std::shared_ptr<const HostBuffer> block_;  // that this is a part of; none: memory of its own
  Bytes offset_ = 0;                         // in it
  std::uint64_t used_ = 0;                   // streams, by index
  std::atomic<int> users_{-1};               // streams that have yet to pass the free; -1 = not freed
  c10::DataPtr memory_;
  std::atomic<void*> data_{nullptr};
};

std::shared_ptr<HostBuffer> host_buffer(const Buffer& buffer) {
  return std::static_pointer_cast<HostBuffer>(buffer.record());
}
HostBuffer& host_record(const Buffer& buffer) { return static_cast<HostBuffer&>(*buffer.record()); }

/// The streams of one backend by their threads' own names for them. Filled by the issuer, asked by the streams.
class StreamsHere {
 public:
  static constexpr std::size_t kMost = 64;

  void add(const HostStream* stream) { streams_[count_.fetch_add(1)].store(stream); }
  /// Invalid for another backend's, and for none.
  StreamIndex index_of(const HostStream* stream) const {
    for (std::size_t s = 0; stream != nullptr && s < count_.load(); ++s) {
      if (streams_[s].load() == stream) return StreamIndex(s);
    }
    return {};
  }

 private:
  std::array<std::atomic<const HostStream*>, kMost> streams_{};
  std::atomic<std::size_t> count_{0};
};

/// Operators' tensors of one stream's work. Outlives the backend where tensors do.
class OperatorLedger final : public OperatorMemory {
 public:
  OperatorLedger(std::shared_ptr<MemoryLedger> ledger, std::shared_ptr<const StreamsHere> streams, StreamIndex pool)
      : ledger_(std::move(ledger)), streams_(std::move(streams)), pool_(pool) {}

  void changed(MemoryCategory category, Bytes change) override {
    // Where a tensor goes on another stream (gradients that are concatenated there), that work's place counts.
    const HostStream::Running& here = HostStream::running();
    ledger_->operators(pool_, category, change, streams_->index_of(here.stream), here.place);
  }

 private:
  std::shared_ptr<MemoryLedger> ledger_;
  std::shared_ptr<const StreamsHere> streams_;
  StreamIndex pool_;
};

class HostBackend final : public Backend {
 public:
  explicit HostBackend(const HostBackendOptions& options) : options_(options), board_(options.rank) {}

  DeviceKind device() const override { return DeviceKind::Host; }

  StreamIndex create_stream(std::string_view name, int priority) override {
    FORESHARD_CHECK(streams_.size() < StreamsHere::kMost, "a backend has at most 64 streams");
    const StreamIndex index(streams_.size());
    ledger_->add_stream(name == stream_name(Stream::Host));
    auto operators = std::make_shared<OperatorLedger>(ledger_, here_, index);
    RecordedLane* lane = options_.recorder != nullptr ? &options_.recorder->add_lane(name, priority) : nullptr;
    streams_.push_back(std::make_unique<HostStream>(
        HostStreamOptions{std::string(name), options_.intra_op_threads, lane, operators}, board_));
    here_->add(streams_.back().get());
    names_.emplace_back(name);
    blocks_.emplace_back();
    return index;
  }

  Buffer allocate(const Issue& issue, Bytes bytes, MemoryCategory category) override {
    if (options_.arena != nullptr) {
      const Bytes offset = options_.arena->offset(issue.instruction);
      if (offset != Arena::kElsewhere) return place(issue, offset, bytes, category);
    }
    auto buffer = std::make_shared<HostBuffer>(*ledger_, issue.stream, category, bytes);
    buffer->used_on(issue.stream);
    ledger_->allocated(issue.stream, category, bytes, place_of(issue.instruction));
    push(issue, {.what = HostEntry::What::Allocate, .memory = buffer});
    return Buffer(std::move(buffer));
  }

  void free(const Buffer& buffer, InstructionId instruction) override {
    const std::shared_ptr<HostBuffer> host = host_buffer(buffer);
    FORESHARD_CHECK(!host->freed(), "a buffer is freed twice");
    if (!host->is_part()) ledger_->allocated(host->pool(), host->category(), -host->bytes(), place_of(instruction));
    int users = 0;
    for (std::size_t s = 0; s < streams_.size(); ++s) users += host->is_used_on(StreamIndex(s)) ? 1 : 0;
    host->expect(users);
    for (std::size_t s = 0; s < streams_.size(); ++s) {
      if (!host->is_used_on(StreamIndex(s))) continue;
      push({StreamIndex(s), instruction}, {.what = HostEntry::What::Release, .memory = host});
    }
    if (host->is_part()) leave(*host, instruction);
  }

  void note_use(const Issue& issue, const Buffer& buffer) override { host_record(buffer).used_on(issue.stream); }

  void launch(const Issue& issue, Work work) override {
    for (const Buffer& buffer : issue.uses) host_record(buffer).used_on(issue.stream);
    push(issue, {.what = HostEntry::What::Run, .work = std::move(work)});
  }

  void copy(const Issue& issue, const Buffer& to, const Buffer& from, Bytes bytes) override {
    FORESHARD_CHECK(bytes <= to.bytes() && bytes <= from.bytes(), "a copy is larger than its buffers");
    host_record(to).used_on(issue.stream);
    host_record(from).used_on(issue.stream);
    launch(issue, [to, from, bytes] {
      if (bytes > 0) std::memcpy(to.data(), from.data(), static_cast<std::size_t>(bytes));
    });
  }

  void collective(const Issue& issue, std::shared_ptr<Communicator> communicator, CollectiveWork work) override {
    board_.tell(communicator);
    order_.in_turn(*this, issue, communicator,
                   [&] { launch(issue, [communicator, work = std::move(work)] { work(*communicator); }); });
  }

  Event record_event(const Issue& issue) override {
    // A stream that has nothing to do is past the event already.
    if (stream(issue.stream).idle()) return Event(std::make_shared<HostEvent>(true));
    auto event = std::make_shared<HostEvent>();
    push(issue, {.what = HostEntry::What::Fire, .event = event});
    return Event(std::move(event));
  }

  void wait_event(const Issue& issue, const Event& event) override {
    auto host = std::static_pointer_cast<HostEvent>(event.record());
    if (host->fired()) return;
    push(issue, {.what = HostEntry::What::Wait, .event = std::move(host)});
  }

  Outcome<void> host_wait(const Event& event) override {
    const std::int64_t start = options_.recorder != nullptr ? steady_now() : 0;
    host_event(event).wait();
    if (options_.recorder != nullptr) options_.recorder->host_waited(start);
    return board_.outcome();
  }

  Outcome<void> synchronize() override {
    const std::int64_t start = options_.recorder != nullptr ? steady_now() : 0;
    std::vector<Event> ends;
    for (std::size_t s = 0; s < streams_.size(); ++s) ends.push_back(record_event({StreamIndex(s), {}}));
    for (const Event& end : ends) host_event(end).wait();
    settle();
    if (options_.recorder != nullptr) options_.recorder->host_waited(start);
    return board_.outcome();
  }

  MemoryReport memory() const override { return ledger_->report(); }

  void reset_peak_memory() override {
    settle();
    ledger_->reset_peaks();
  }

  void at_instruction(std::int32_t step, InstructionId instruction) override {
    step_ = step;
    if (options_.recorder != nullptr) options_.recorder->at_instruction(step, instruction);
  }

 private:
  /// One stream's memory for all buffers of the arena, and who may still be at work where a buffer was freed.
  struct ArenaBlock {
    struct Left {
      Bytes begin = 0, end = 0;
      std::vector<Event> used;  // other streams' work on it
    };
    std::shared_ptr<HostBuffer> memory;  // made for the first buffer
    std::vector<Left> left;
  };

  /// A part of the stream's block. It comes to be when those that lay there before are done with.
  Buffer place(const Issue& issue, Bytes offset, Bytes bytes, MemoryCategory category) {
    ArenaBlock& block = blocks_[issue.stream.index()];
    if (block.memory == nullptr) {
      const Bytes all = options_.arena->block(names_[issue.stream.index()]);
      block.memory = host_buffer(allocate({issue.stream, {}}, all, MemoryCategory::ReduceBuffers));
    }
    std::erase_if(block.left, [&](const ArenaBlock::Left& left) {
      if (left.end <= offset || offset + bytes <= left.begin) return false;
      for (const Event& event : left.used) wait_event(issue, event);
      return true;
    });
    auto buffer = std::make_shared<HostBuffer>(block.memory, offset, category, bytes);
    buffer->used_on(issue.stream);
    push(issue, {.what = HostEntry::What::Allocate, .memory = buffer});
    return Buffer(std::move(buffer));
  }
  void leave(const HostBuffer& part, InstructionId instruction) {
    ArenaBlock::Left left{part.offset(), part.offset() + part.bytes(), {}};
    for (std::size_t s = 0; s < streams_.size(); ++s) {
      if (s == part.pool().index() || !part.is_used_on(StreamIndex(s))) continue;
      left.used.push_back(record_event({StreamIndex(s), instruction}));
    }
    if (!left.used.empty()) blocks_[part.pool().index()].left.push_back(std::move(left));
  }

  HostStream& stream(StreamIndex index) { return *streams_[index.index()]; }
  PlanPlace place_of(InstructionId instruction) const { return {step_, instruction.value}; }

  void push(const Issue& issue, HostEntry entry) {
    entry.place = place_of(issue.instruction);
    stream(issue.stream).push(std::move(entry));
  }

  void settle() {
    const std::vector<MemoryChange> changes = ledger_->settle();
    if (options_.recorder != nullptr) options_.recorder->memory_changed(changes);
  }

  HostBackendOptions options_;
  std::shared_ptr<MemoryLedger> ledger_ = std::make_shared<MemoryLedger>();
  std::shared_ptr<StreamsHere> here_ = std::make_shared<StreamsHere>();
  FailureBoard board_;
  CollectiveOrder order_;
  std::int32_t step_ = 0;
  std::vector<std::string> names_;                    // of the streams
  std::vector<ArenaBlock> blocks_;                    // by stream
  std::vector<std::unique_ptr<HostStream>> streams_;  // last: the workers use the members above
};

}  // namespace

const std::shared_ptr<OperatorMemory>& OperatorMemory::current() { return HostStream::operator_memory_here(); }

std::unique_ptr<Backend> make_host_backend(const HostBackendOptions& options) {
  return std::make_unique<HostBackend>(options);
}

}  // namespace foreshard::exec
