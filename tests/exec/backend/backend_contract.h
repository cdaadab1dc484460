// What every backend promises (exec/backend/backend.h), over a factory per backend. A backend's test file defines its
// factory and instantiates the suite:
//
//   struct Factory {
//     static std::unique_ptr<Backend> make();
//     static void run(Backend&, const Issue&, Work);                           // host code, in the stream's order
//     static void write(Backend&, const Issue&, Buffer, std::int64_t value);   // to the buffer's first 8 bytes
//     static void read(Backend&, const Issue&, Buffer, std::int64_t* to);      // to hold once the stream is done
//     static bool streams_wait_for_host_code();     // false where run() does not hold its stream (a virtual device)
//     static constexpr bool kWorkRunsOnStreams;     // Work is the stream's own; false: Work enqueues, on the issuer
//   };
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

#include "exec/backend/backend.h"
#include "exec/communicators/communicator.h"
#include "exec/communicators/in_process_communicator.h"

namespace foreshard::exec {

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
  bool pass_within(std::chrono::seconds time) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, time, [this] { return open_; });
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
  void run(const Issue& issue, Work work) { Factory::run(*backend, issue, std::move(work)); }
};

TYPED_TEST_SUITE_P(BackendContract);

TYPED_TEST_P(BackendContract, WorkOfOneStreamRunsInTheOrderOfIssue) {
  std::vector<int> order;
  for (int i = 0; i < 1000; ++i) this->run(this->on(this->compute, i), [&order, i] { order.push_back(i); });
  ASSERT_TRUE(this->backend->synchronize());
  ASSERT_EQ(order.size(), 1000u);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
}

TYPED_TEST_P(BackendContract, LaunchDoesNotWaitForTheWork) {
  if (!TypeParam::streams_wait_for_host_code()) GTEST_SKIP() << "host code does not hold a stream of this device";
  Door door;
  std::atomic<bool> ran{false};
  this->run(this->on(this->compute, 0), [&] { door.pass(); });
  this->run(this->on(this->compute, 1), [&] { ran = true; });
  EXPECT_FALSE(ran);
  door.open();
  ASSERT_TRUE(this->backend->synchronize());
  EXPECT_TRUE(ran);
}

TYPED_TEST_P(BackendContract, AStreamThatWaitsForAnEventSeesAllWorkBeforeIt) {
  if (!TypeParam::streams_wait_for_host_code()) GTEST_SKIP() << "host code does not hold a stream of this device";
  Door door;
  int value = 0;  // plain: a race here is an error of the backend, and of the thread sanitizer
  int seen = -1;
  this->run(this->on(this->gather, 0), [&] {
    door.pass();
    value = 7;
  });
  const Event done = this->backend->record_event(this->on(this->gather, 1));
  this->backend->wait_event(this->on(this->compute, 2), done);
  this->run(this->on(this->compute, 3), [&] { seen = value; });
  door.open();
  ASSERT_TRUE(this->backend->synchronize());
  EXPECT_EQ(seen, 7);
}

TYPED_TEST_P(BackendContract, AnEventDoesNotWaitForWorkIssuedBehindIt) {
  if (!TypeParam::streams_wait_for_host_code()) GTEST_SKIP() << "host code does not hold a stream of this device";
  Door door;
  const Event early = this->backend->record_event(this->on(this->gather, 0));
  this->run(this->on(this->gather, 1), [&] { door.pass(); });
  EXPECT_TRUE(this->backend->host_wait(early));  // would hang otherwise
  this->backend->wait_event(this->on(this->compute, 2), early);
  const Event after = this->backend->record_event(this->on(this->compute, 3));
  EXPECT_TRUE(this->backend->host_wait(after));
  door.open();
  EXPECT_TRUE(this->backend->synchronize());  // nobody is in the door when it goes
}

TYPED_TEST_P(BackendContract, TwoStreamsOverlap) {
  if (!TypeParam::kWorkRunsOnStreams) GTEST_SKIP() << "work of this backend enqueues, on the issuer";
  // Each opens the other's door and waits at its own: one after the other they would never come through.
  Door compute_door, gather_door;
  bool met[2] = {false, false};
  this->backend->launch(this->on(this->compute, 0), [&] {
    gather_door.open();
    met[0] = compute_door.pass_within(std::chrono::seconds(60));
  });
  this->backend->launch(this->on(this->gather, 1), [&] {
    compute_door.open();
    met[1] = gather_door.pass_within(std::chrono::seconds(60));
  });
  ASSERT_TRUE(this->backend->synchronize());
  EXPECT_TRUE(met[0] && met[1]);
}

TYPED_TEST_P(BackendContract, MemoryLivesUntilEveryStreamThatUsesItIsPastTheFree) {
  if (!TypeParam::kWorkRunsOnStreams) GTEST_SKIP() << "work of this backend enqueues, on the issuer";
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

TYPED_TEST_P(BackendContract, MemoryIsCountedPerStreamAndCategory) {
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

TYPED_TEST_P(BackendContract, CopyMovesBytesInStreamOrder) {
  const Buffer from = this->backend->allocate(this->on(this->compute, 0), 8, MemoryCategory::Temporaries);
  const Buffer to = this->backend->allocate(this->on(this->compute, 1), 8, MemoryCategory::Temporaries);
  std::int64_t got = 0;
  TypeParam::write(*this->backend, this->on(this->compute, 2), from, 11);
  this->backend->copy(this->on(this->compute, 3), to, from, 8);
  TypeParam::read(*this->backend, this->on(this->compute, 4), to, &got);
  ASSERT_TRUE(this->backend->synchronize());
  EXPECT_EQ(got, 11);
}

TYPED_TEST_P(BackendContract, AFailureComesBackFromTheWaitWithItsInstruction) {
  this->backend->launch(this->on(this->gather, 17), [] { throw std::runtime_error("the link is down"); });
  const Event event = this->backend->record_event(this->on(this->gather, 18));
  const Outcome<void> outcome = this->backend->host_wait(event);
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error(), (Failure{this->id(17), "A", "the link is down"}));
  EXPECT_EQ(this->backend->synchronize().error().instruction, this->id(17)) << "and stays";
}

TYPED_TEST_P(BackendContract, AfterAFailureNoWorkRunsButMemoryIsReleasedAndEventsFire) {
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

TYPED_TEST_P(BackendContract, AFailureReachesThePeersThatWaitInACollective) {
  if (!TypeParam::kWorkRunsOnStreams) GTEST_SKIP() << "work of this backend enqueues, on the issuer";
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

TYPED_TEST_P(BackendContract, CollectivesOfOneCommunicatorRunInTheOrderOfIssueWhateverTheirStreams) {  // R4
  const auto one = in_process_communicators(1).front(), other = in_process_communicators(1).front();
  std::mutex mutex;
  std::vector<int> order;
  const auto collective = [&](StreamIndex stream, const std::shared_ptr<Communicator>& group, int number) {
    this->backend->collective(this->on(stream, number), group, [&, number](Communicator&) {
      const std::lock_guard lock(mutex);
      order.push_back(number);
    });
  };
  const StreamIndex reduce = this->backend->create_stream("S", 0);
  for (int k = 0; k < 4; ++k) {
    this->backend->launch(this->on(this->gather, 0),
                          [] { std::this_thread::sleep_for(std::chrono::milliseconds(10)); });
  }
  collective(this->gather, one, 1);
  collective(this->compute, one, 2);
  collective(reduce, other, 3);
  collective(this->gather, one, 4);
  ASSERT_TRUE(this->backend->synchronize());
  if (TypeParam::kWorkRunsOnStreams) {
    EXPECT_EQ(order.front(), 3) << "another communicator's waits for nobody";
  }
  std::erase(order, 3);
  EXPECT_EQ(order, (std::vector{1, 2, 4}));
}

TYPED_TEST_P(BackendContract, UsingMemoryBeforeItsPoolHasItIsAFailureNotACrash) {
  if (!TypeParam::kWorkRunsOnStreams) GTEST_SKIP() << "work of this backend enqueues, on the issuer";
  Door door;
  this->backend->launch(this->on(this->gather, 0), [&] { door.pass(); });
  const Buffer buffer = this->backend->allocate(this->on(this->gather, 1), 8, MemoryCategory::Temporaries);
  this->backend->launch(this->on(this->compute, 2), [=] { *static_cast<char*>(buffer.data()) = 1; });
  const Event event = this->backend->record_event(this->on(this->compute, 3));
  const Outcome<void> outcome = this->backend->host_wait(event);
  door.open();
  EXPECT_FALSE(this->backend->synchronize());  // nobody is in the door when it goes
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().instruction, this->id(2));
}

TYPED_TEST_P(BackendContract, ShutdownFinishesWhatWasIssued) {
  std::atomic<int> ran{0};
  for (int i = 0; i < 100; ++i) {
    this->run(this->on(this->compute, i), [&] { ++ran; });
    const Event event = this->backend->record_event(this->on(this->compute, i));
    this->backend->wait_event(this->on(this->gather, i), event);
    this->run(this->on(this->gather, i), [&] { ++ran; });
  }
  this->backend.reset();
  EXPECT_EQ(ran, 200);
}

TYPED_TEST_P(BackendContract, UsingMemoryAfterItsFreeIsAFailureNotACrash) {
  const Buffer buffer = this->backend->allocate(this->on(this->compute, 1), 8, MemoryCategory::Temporaries);
  this->backend->free(buffer, this->id(2));
  this->backend->launch(this->on(this->compute, 3), [=] { static_cast<void>(buffer.data()); });
  const Outcome<void> outcome = this->backend->synchronize();
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().instruction, this->id(3));
}

TYPED_TEST_P(BackendContract, ABufferOfNoBytesIsABuffer) {
  const Buffer empty = this->backend->allocate(this->on(this->compute, 0), 0, MemoryCategory::Gradients);
  this->backend->note_use(this->on(this->gather, 1), empty);
  this->backend->copy(this->on(this->gather, 2), empty, empty, 0);
  this->backend->free(empty, this->id(3));
  EXPECT_TRUE(this->backend->synchronize());
  EXPECT_EQ(this->backend->memory().total.allocated, 0);
}

TYPED_TEST_P(BackendContract, MemoryThatAnotherStreamWasNotedToUseKeepsItsContents) {
  // gather fills, compute reads late; a buffer that gather asks for meanwhile must be another one
  const Buffer first = this->backend->allocate(this->on(this->gather, 0), 1 << 20, MemoryCategory::FullParameters);
  const Buffer uses[] = {first};
  TypeParam::write(*this->backend, this->on(this->gather, 1, uses), first, 42);
  const Event filled = this->backend->record_event(this->on(this->gather, 2));
  this->backend->wait_event(this->on(this->compute, 3), filled);
  this->backend->note_use(this->on(this->compute, 4), first);
  std::int64_t seen = 0;
  TypeParam::read(*this->backend, this->on(this->compute, 5, uses), first, &seen);
  this->backend->free(first, this->id(6));
  const Buffer second = this->backend->allocate(this->on(this->gather, 7), 1 << 20, MemoryCategory::FullParameters);
  TypeParam::write(*this->backend, this->on(this->gather, 8), second, 7);
  ASSERT_TRUE(this->backend->synchronize());
  EXPECT_EQ(seen, 42);
}

REGISTER_TYPED_TEST_SUITE_P(BackendContract, WorkOfOneStreamRunsInTheOrderOfIssue, LaunchDoesNotWaitForTheWork,
                            AStreamThatWaitsForAnEventSeesAllWorkBeforeIt, AnEventDoesNotWaitForWorkIssuedBehindIt,
                            TwoStreamsOverlap, MemoryLivesUntilEveryStreamThatUsesItIsPastTheFree,
                            MemoryIsCountedPerStreamAndCategory, CopyMovesBytesInStreamOrder,
                            AFailureComesBackFromTheWaitWithItsInstruction,
                            AfterAFailureNoWorkRunsButMemoryIsReleasedAndEventsFire,
                            AFailureReachesThePeersThatWaitInACollective,
                            CollectivesOfOneCommunicatorRunInTheOrderOfIssueWhateverTheirStreams,
                            UsingMemoryBeforeItsPoolHasItIsAFailureNotACrash, ShutdownFinishesWhatWasIssued,
                            UsingMemoryAfterItsFreeIsAFailureNotACrash, ABufferOfNoBytesIsABuffer,
                            MemoryThatAnotherStreamWasNotedToUseKeepsItsContents);

}  // namespace foreshard::exec
