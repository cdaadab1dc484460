// What every backend promises (exec/backend.h), typed over the backends. A new backend adds its factory to `Backends`.
#include "exec/backend.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "exec/communicator.h"
#include "exec/host_backend.h"
#include "exec/in_process_communicator.h"

namespace foreshard::exec {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

struct HostFactory {
  static std::unique_ptr<Backend> make() { return make_host_backend(); }
};

/// A door that a test opens: work that stands before it keeps its stream busy for exactly as long as the test wants.
class Door {
 public:
  ~Door() { open(); }
  void open() {
    std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void pass() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
};

template <class Factory>
class BackendContract : public ::testing::Test {
 protected:
  std::unique_ptr<Backend> backend = Factory::make();
  StreamIndex compute = backend->create_stream("D", 0);
  StreamIndex gather = backend->create_stream("A", -1);

  static InstructionId id(int value) { return InstructionId(static_cast<std::int32_t>(value)); }
  Issue on(StreamIndex stream, int instruction, std::span<const Buffer> uses = {}) const {
    return {stream, id(instruction), uses};
  }
};

using Backends = ::testing::Types<HostFactory>;
TYPED_TEST_SUITE(BackendContract, Backends);

TYPED_TEST(BackendContract, WorkOfOneStreamRunsInTheOrderOfIssue) {
  std::vector<int> order;
  for (int i = 0; i < 1000; ++i) this->backend->launch(this->on(this->compute, i), [&order, i] { order.push_back(i); });
  ASSERT_TRUE(this->backend->synchronize());
  ASSERT_EQ(order.size(), 1000u);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
}

TYPED_TEST(BackendContract, LaunchDoesNotWaitForTheWork) {
  Door door;
  std::atomic<bool> ran{false};
  this->backend->launch(this->on(this->compute, 0), [&] { door.pass(); });
  this->backend->launch(this->on(this->compute, 1), [&] { ran = true; });
  EXPECT_FALSE(ran);
  door.open();
  ASSERT_TRUE(this->backend->synchronize());
  EXPECT_TRUE(ran);
}

TYPED_TEST(BackendContract, AStreamThatWaitsForAnEventSeesAllWorkBeforeIt) {
  Door door;
  int value = 0;  // plain: a race here is an error of the backend, and of the thread sanitizer
  int seen = -1;
  this->backend->launch(this->on(this->gather, 0), [&] {
    door.pass();
    value = 7;
  });
  const Event done = this->backend->record_event(this->on(this->gather, 1));
  this->backend->wait_event(this->on(this->compute, 2), done);
  this->backend->launch(this->on(this->compute, 3), [&] { seen = value; });
  door.open();
  ASSERT_TRUE(this->backend->synchronize());
  EXPECT_EQ(seen, 7);
}

TYPED_TEST(BackendContract, AnEventDoesNotWaitForWorkIssuedBehindIt) {
  Door door;
  const Event early = this->backend->record_event(this->on(this->gather, 0));
  this->backend->launch(this->on(this->gather, 1), [&] { door.pass(); });
  EXPECT_TRUE(this->backend->host_wait(early));  // would hang otherwise
  this->backend->wait_event(this->on(this->compute, 2), early);
  const Event after = this->backend->record_event(this->on(this->compute, 3));
  EXPECT_TRUE(this->backend->host_wait(after));
}

TYPED_TEST(BackendContract, TwoStreamsOverlap) {
  // D |==== 150 ms ====|
  // A |==== 150 ms ====|   less than the 300 ms of one after the other
  const auto start = Clock::now();
  for (const StreamIndex stream : {this->compute, this->gather}) {
    this->backend->launch(this->on(stream, 0), [] { std::this_thread::sleep_for(150ms); });
  }
  ASSERT_TRUE(this->backend->synchronize());
  EXPECT_LT(Clock::now() - start, 295ms);
}

TYPED_TEST(BackendContract, MemoryLivesUntilEveryStreamThatUsesItIsPastTheFree) {
  Door door;
  int seen = 0;
  Buffer buffer = this->backend->allocate(this->on(this->gather, 0), 4096, MemoryCategory::FullParameters);
  const Buffer uses[] = {buffer};
  this->backend->launch(this->on(this->gather, 1, uses), [=] { *static_cast<int*>(buffer.data()) = 42; });
  const Event filled = this->backend->record_event(this->on(this->gather, 2));
  this->backend->wait_event(this->on(this->compute, 3), filled);
  this->backend->launch(this->on(this->compute, 4, uses), [&, buffer] {
    door.pass();
    seen = *static_cast<const int*>(buffer.data());
  });
  this->backend->free(buffer, this->id(5));
  const Event gather_is_past = this->backend->record_event(this->on(this->gather, 6));
  ASSERT_TRUE(this->backend->host_wait(gather_is_past));
  EXPECT_EQ(this->backend->memory().total.allocated, 0) << "as the issuer counts";
  EXPECT_EQ(this->backend->memory().total.resident, 4096) << "the compute stream still reads it";
  door.open();
  ASSERT_TRUE(this->backend->synchronize());
  EXPECT_EQ(seen, 42);
  EXPECT_EQ(this->backend->memory().total.resident, 0);
}

TYPED_TEST(BackendContract, MemoryIsCountedPerStreamAndCategory) {
  const Buffer full = this->backend->allocate(this->on(this->compute, 0), 1000, MemoryCategory::FullParameters);
  const Buffer grad = this->backend->allocate(this->on(this->compute, 1), 30, MemoryCategory::Gradients);
  const Buffer reduce = this->backend->allocate(this->on(this->gather, 2), 500, MemoryCategory::ReduceBuffers);
  this->backend->free(full, this->id(3));
  const Buffer again = this->backend->allocate(this->on(this->compute, 4), 100, MemoryCategory::FullParameters);
  ASSERT_TRUE(this->backend->synchronize());
  const MemoryReport report = this->backend->memory();
  const auto& of_compute = report.by_stream[this->compute.index()];
  const auto& of_gather = report.by_stream[this->gather.index()];
  EXPECT_EQ(of_compute[static_cast<std::size_t>(MemoryCategory::FullParameters)].allocated, 100);
  EXPECT_EQ(of_compute[static_cast<std::size_t>(MemoryCategory::FullParameters)].peak_allocated, 1000);
  EXPECT_EQ(of_compute[static_cast<std::size_t>(MemoryCategory::Gradients)].allocated, 30);
  EXPECT_EQ(of_gather[static_cast<std::size_t>(MemoryCategory::ReduceBuffers)].allocated, 500);
  EXPECT_EQ(report.total.allocated, 30 + 500 + 100);
  EXPECT_EQ(report.total.peak_allocated, 1000 + 30 + 500);
  EXPECT_EQ(report.total.resident, 30 + 500 + 100);
}

TYPED_TEST(BackendContract, CopyMovesBytesInStreamOrder) {
  const Buffer from = this->backend->allocate(this->on(this->compute, 0), 8, MemoryCategory::Temporaries);
  const Buffer to = this->backend->allocate(this->on(this->compute, 1), 8, MemoryCategory::Temporaries);
  std::int64_t got = 0;
  this->backend->launch(this->on(this->compute, 2), [&] { *static_cast<std::int64_t*>(from.data()) = 11; });
  this->backend->copy(this->on(this->compute, 3), to, from, 8);
  this->backend->launch(this->on(this->compute, 4), [&] { got = *static_cast<std::int64_t*>(to.data()); });
  ASSERT_TRUE(this->backend->synchronize());
  EXPECT_EQ(got, 11);
}

TYPED_TEST(BackendContract, AFailureComesBackFromTheWaitWithItsInstruction) {
  this->backend->launch(this->on(this->gather, 17), [] { throw std::runtime_error("the link is down"); });
  const Event event = this->backend->record_event(this->on(this->gather, 18));
  const Outcome<void> outcome = this->backend->host_wait(event);
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error(), (Failure{this->id(17), "A", "the link is down"}));
  EXPECT_EQ(this->backend->synchronize().error().instruction, this->id(17)) << "and stays";
}

TYPED_TEST(BackendContract, AfterAFailureNoWorkRunsButMemoryIsReleasedAndEventsFire) {
  bool ran = false;
  const Buffer buffer = this->backend->allocate(this->on(this->compute, 0), 64, MemoryCategory::Temporaries);
  this->backend->launch(this->on(this->compute, 1), [] { throw std::runtime_error("no"); });
  EXPECT_FALSE(this->backend->synchronize());
  this->backend->launch(this->on(this->compute, 2), [&] { ran = true; });
  this->backend->launch(this->on(this->gather, 3), [&] { ran = true; });
  this->backend->free(buffer, this->id(4));
  EXPECT_FALSE(this->backend->synchronize());
  EXPECT_FALSE(ran);
  EXPECT_EQ(this->backend->memory().total.resident, 0);
}

TYPED_TEST(BackendContract, AFailureReachesThePeersThatWaitInACollective) {
  const auto ranks = in_process_communicators(2);
  auto peer = TypeParam::make();
  const StreamIndex peer_stream = peer->create_stream("A", 0);
  peer->collective({peer_stream, this->id(5)}, ranks[1], [](Communicator& group) { group.barrier(); });
  Door told;
  this->backend->collective(this->on(this->gather, 5), ranks[0], [&](Communicator&) {
    told.pass();
    throw std::runtime_error("out of luck");
  });
  told.open();
  const Outcome<void> outcome = peer->synchronize();
  ASSERT_FALSE(outcome);
  EXPECT_NE(outcome.error().text.find("rank 0"), std::string::npos) << outcome.error().text;
  EXPECT_NE(outcome.error().text.find("out of luck"), std::string::npos) << outcome.error().text;
}

TYPED_TEST(BackendContract, UsingMemoryBeforeItsPoolHasItIsAFailureNotACrash) {
  Door door;
  this->backend->launch(this->on(this->gather, 0), [&] { door.pass(); });
  const Buffer buffer = this->backend->allocate(this->on(this->gather, 1), 8, MemoryCategory::Temporaries);
  this->backend->launch(this->on(this->compute, 2), [=] { *static_cast<char*>(buffer.data()) = 1; });
  const Event event = this->backend->record_event(this->on(this->compute, 3));
  const Outcome<void> outcome = this->backend->host_wait(event);
  door.open();
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().instruction, this->id(2));
}

TYPED_TEST(BackendContract, ShutdownFinishesWhatWasIssued) {
  std::atomic<int> ran{0};
  for (int i = 0; i < 100; ++i) {
    this->backend->launch(this->on(this->compute, i), [&] { ++ran; });
    const Event event = this->backend->record_event(this->on(this->compute, i));
    this->backend->wait_event(this->on(this->gather, i), event);
    this->backend->launch(this->on(this->gather, i), [&] { ++ran; });
  }
  this->backend.reset();
  EXPECT_EQ(ran, 200);
}

}  // namespace
}  // namespace foreshard::exec
