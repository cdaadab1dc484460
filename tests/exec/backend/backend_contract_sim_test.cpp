// The simulator's device under the backends' contract: its streams, events and caching allocator driven as a Backend.
//
// Each piece of work takes simulated time, and its host code runs in the order of simulated starts, not of issue. So a
// wait that the clock forgot, or a block that the allocator replica gave out too early, shows as a wrong value.
#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <stdexcept>
#include <vector>

#include "exec/backend/collective_order.h"
#include "exec/backend/failure_board.h"
#include "exec/record/memory_ledger.h"
#include "sim/device/allocator/caching_allocator.h"
#include "sim/device/device_clock.h"
#include "sim/device/driver_memory.h"
#include "tests/exec/backend/backend_contract.h"

namespace foreshard::exec {
namespace {

constexpr Bytes kDeviceMemory = 64 * kMiB;
constexpr SimDuration kIssue = 1000, kWork = 50'000;  // streams fall far behind the host

class SimulatedBackend;

class SimulatedBuffer final : public Buffer::Record {
 public:
  SimulatedBuffer(SimulatedBackend& device, StreamIndex of, MemoryCategory kind, Bytes size)
      : backend(device), pool(of), category(kind), size_(size) {}
  void* data() const override;
  Bytes bytes() const override { return size_; }

  SimulatedBackend& backend;
  StreamIndex pool;
  MemoryCategory category;
  BlockHandle block = kNoBlock;
  Bytes address = 0;  // the handle goes with the free; work that was issued before still means this place
  std::int64_t freed_at = std::numeric_limits<std::int64_t>::max();  // number of the call

 private:
  Bytes size_;
};

class SimulatedEvent final : public Event::Record {
 public:
  explicit SimulatedEvent(EventStamp made) : stamp(made) {}
  EventStamp stamp;
};

class SimulatedBackend final : public Backend {
 public:
  ~SimulatedBackend() override { run_until(clock_.device_tail()); }

  DeviceKind device() const override { return DeviceKind::Host; }

  StreamIndex create_stream(std::string_view name, int /*priority*/) override {
    names_.emplace_back(name);
    ledger_.add_stream();
    return StreamIndex(names_.size() - 1);
  }

  Buffer allocate(const Issue& issue, Bytes bytes, MemoryCategory category) override {
    auto buffer = std::make_shared<SimulatedBuffer>(*this, issue.stream, category, bytes);
    ++calls_;
    clock_.host_cost(kIssue);
    buffer->block = allocator_.allocate(bytes, issue.stream.value);
    if (buffer->block == kNoBlock) throw std::runtime_error("the simulated device is full");
    buffer->address = allocator_.address(buffer->block);
    ledger_.allocated(issue.stream, category, bytes, {0, issue.instruction.value});
    ledger_.resident(issue.stream, category, bytes);
    return Buffer(std::move(buffer));
  }

  void free(const Buffer& buffer, InstructionId instruction) override {
    auto& record = static_cast<SimulatedBuffer&>(*buffer.record());
    record.freed_at = ++calls_;
    allocator_.free(record.block);
    ledger_.allocated(record.pool, record.category, -record.bytes(), {0, instruction.value});
    ledger_.resident(record.pool, record.category, -record.bytes());
  }

  void note_use(const Issue& issue, const Buffer& buffer) override {
    allocator_.record_stream(static_cast<SimulatedBuffer&>(*buffer.record()).block, issue.stream.value);
  }

  void launch(const Issue& issue, Work work) override {
    clock_.host_cost(kIssue);
    const WorkSpan when = clock_.enqueue(issue.stream.value, kWork);
    work_.push_back({when.start, ++calls_, issue.instruction, issue.stream, std::move(work)});
  }

  void copy(const Issue& issue, const Buffer& to, const Buffer& from, Bytes bytes) override {
    launch(issue, [=] {
      if (bytes > 0) std::memcpy(to.data(), from.data(), static_cast<std::size_t>(bytes));
    });
  }

  void collective(const Issue& issue, std::shared_ptr<Communicator> communicator, CollectiveWork work) override {
    order_.in_turn(*this, issue, communicator,
                   [&] { launch(issue, [communicator, work = std::move(work)] { work(*communicator); }); });
  }

  Event record_event(const Issue& issue) override {
    return Event(std::make_shared<SimulatedEvent>(clock_.record(issue.stream.value)));
  }
  void wait_event(const Issue& issue, const Event& event) override {
    clock_.stream_wait(issue.stream.value, static_cast<SimulatedEvent&>(*event.record()).stamp);
  }

  Outcome<void> host_wait(const Event& event) override {
    const EventStamp stamp = static_cast<SimulatedEvent&>(*event.record()).stamp;
    clock_.host_wait(stamp);
    run_until(stamp.time);
    return board_.outcome();
  }
  Outcome<void> synchronize() override {
    clock_.device_synchronize();
    run_until(clock_.device_tail());
    ledger_.settle();
    return board_.outcome();
  }

  MemoryReport memory() const override {
    MemoryReport report = ledger_.report();
    const AllocatorStats& stats = allocator_.stats();
    report.allocator = AllocatorCount{stats.allocated.current, stats.allocated.peak,   stats.active.current,
                                      stats.active.peak,       stats.reserved.current, stats.reserved.peak};
    return report;
  }
  void reset_peak_memory() override { ledger_.reset_peaks(); }
  void at_instruction(std::int32_t, InstructionId) override {}

  void* address(const SimulatedBuffer& buffer) {
    if (running_ > buffer.freed_at) throw std::runtime_error("a buffer is used after it was freed");
    const Bytes at = buffer.address;
    const auto region = at / kDeviceMemory;  // the driver's addresses need not begin at 0
    auto& memory = memory_[region];
    memory.resize(static_cast<std::size_t>(2 * kDeviceMemory));
    return memory.data() + at % kDeviceMemory;
  }

 private:
  struct Pending {
    SimTime start = 0;
    std::int64_t number = 0;
    InstructionId instruction;
    StreamIndex stream;
    Work work;
  };
  CollectiveOrder order_;

  void run_until(SimTime time) {
    std::stable_sort(work_.begin(), work_.end(), [](const Pending& a, const Pending& b) { return a.start < b.start; });
    std::size_t done = 0;
    for (; done < work_.size() && work_[done].start < time; ++done) {
      if (board_.failed()) continue;
      Pending& next = work_[done];
      running_ = next.number;
      try {
        next.work();
      } catch (const std::exception& error) {
        board_.report({next.instruction, names_[next.stream.index()], error.what()});
      }
    }
    work_.erase(work_.begin(), work_.begin() + static_cast<std::ptrdiff_t>(done));
  }

  std::vector<std::string> names_;
  DriverMemory driver_{kDeviceMemory};
  DeviceClock clock_{ClockMode::Model, 8};
  CachingAllocator allocator_{{}, driver_, clock_, 8};
  MemoryLedger ledger_;
  FailureBoard board_{0};
  std::vector<Pending> work_;
  std::map<Bytes, std::vector<char>> memory_;
  std::int64_t calls_ = 0, running_ = 0;
};

void* SimulatedBuffer::data() const { return backend.address(*this); }

struct Simulated {
  static constexpr bool kWorkRunsOnStreams = false;
  static bool streams_wait_for_host_code() { return false; }
  static std::unique_ptr<Backend> make() { return std::make_unique<SimulatedBackend>(); }
  static void run(Backend& backend, const Issue& issue, Work work) { backend.launch(issue, std::move(work)); }
  static void write(Backend& backend, const Issue& issue, Buffer buffer, std::int64_t value) {
    backend.launch(issue, [=] { *static_cast<std::int64_t*>(buffer.data()) = value; });
  }
  static void read(Backend& backend, const Issue& issue, Buffer buffer, std::int64_t* to) {
    backend.launch(issue, [=] { *to = *static_cast<const std::int64_t*>(buffer.data()); });
  }
};

INSTANTIATE_TYPED_TEST_SUITE_P(Simulator, BackendContract, Simulated);

/// Without note_use the replica gives the block out again at once, as PyTorch's allocator does: the other stream reads
/// what was written later. The contract's test would not notice a simulator in which that cannot happen.
TEST(SimulatedDevice, ABlockWhoseOtherUserWasNotNotedIsGivenOutAgain) {
  SimulatedBackend device;
  const StreamIndex compute = device.create_stream("D", 0), gather = device.create_stream("A", -1);
  const auto on = [](StreamIndex stream, int id) { return Issue{stream, InstructionId(id)}; };
  const Buffer first = device.allocate(on(gather, 0), 1 << 20, MemoryCategory::FullParameters);
  Simulated::write(device, on(gather, 1), first, 42);
  device.wait_event(on(compute, 2), device.record_event(on(gather, 2)));
  device.launch(on(compute, 3), [] {});  // compute is late
  std::int64_t seen = 0;
  Simulated::read(device, on(compute, 4), first, &seen);
  device.free(first, InstructionId(5));
  const Buffer second = device.allocate(on(gather, 6), 1 << 20, MemoryCategory::FullParameters);
  Simulated::write(device, on(gather, 7), second, 7);
  ASSERT_TRUE(device.synchronize());
  EXPECT_EQ(seen, 7);
}

}  // namespace
}  // namespace foreshard::exec
