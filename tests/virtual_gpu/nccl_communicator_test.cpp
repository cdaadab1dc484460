// What NCCL is asked for, and on which stream. The virtual device plays one rank of a group of any size.
#include "exec/communicators/nccl_communicator.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <thread>

#include "exec/cuda/allocator_settings.h"
#include "exec/cuda/cuda_backend.h"
#include "exec/cuda/loaded_libraries.h"
#include "tests/virtual_gpu/call_log.h"

namespace foreshard::exec {
namespace {

class Nccl : public ::testing::Test {
 protected:
  void SetUp() override {
    auto made = make_cuda_backend();
    ASSERT_TRUE(made) << to_text(made.error());
    backend = std::move(*made);
    compute = backend->create_stream("D", 0);
    gather = backend->create_stream("A", -1);
    const auto id = nccl_unique_id();
    ASSERT_TRUE(id);
    const auto group = nccl_communicator({.rank = 3, .size = 8}, *id);
    ASSERT_TRUE(group) << to_text(group.error());
    communicator = *group;
    memory = backend->allocate({compute, InstructionId(0)}, 1 << 16, MemoryCategory::ReduceBuffers);
    calls_since_last();
  }

  /// The NCCL calls that a collective makes on the gather stream.
  std::vector<DeviceCall> calls_of(CollectiveWork work) {
    backend->collective({gather, InstructionId(1)}, communicator, std::move(work));
    std::vector<DeviceCall> calls;
    for (DeviceCall& call : calls_since_last()) {
      if (call.api.rfind("nccl", 0) == 0) calls.push_back(std::move(call));
    }
    return calls;
  }

  /// The id that the log gives to the gather stream.
  std::int64_t gather_id() {
    backend->record_event({gather, InstructionId(2)});
    const auto calls = calls_since_last();
    return calls.empty() ? -1 : calls.back().stream;
  }

  std::unique_ptr<Backend> backend;
  StreamIndex compute, gather;
  std::shared_ptr<Communicator> communicator;
  Buffer memory;
};

TEST_F(Nccl, EvenCollectivesAreOneCallOnThePlansStream) {
  const std::int64_t stream = gather_id();
  ASSERT_GT(stream, 0);
  const auto gathered =
      calls_of([&](Communicator& group) { group.all_gather(memory.data(), memory.data(), 100, DType::BFloat16); });
  ASSERT_EQ(gathered.size(), 1u);
  EXPECT_EQ(gathered[0].api, "ncclAllGather");
  EXPECT_EQ(gathered[0].stream, stream);
  EXPECT_EQ(gathered[0].ranks, 8);
  EXPECT_EQ(gathered[0].bytes, 8 * 100 * 2);

  const auto scattered = calls_of([&](Communicator& group) {
    group.reduce_scatter(memory.data(), memory.data(), 100, DType::Float32, ReduceOp::Avg);
  });
  ASSERT_EQ(scattered.size(), 1u);
  EXPECT_EQ(scattered[0].api, "ncclReduceScatter");
  EXPECT_EQ(scattered[0].op, "avg");
  EXPECT_EQ(scattered[0].bytes, 8 * 100 * 4);

  const auto reduced =
      calls_of([&](Communicator& group) { group.all_reduce(memory.data(), 1, DType::Float32, ReduceOp::Sum); });
  ASSERT_EQ(reduced.size(), 1u);
  EXPECT_EQ(reduced[0].api, "ncclAllReduce");
  EXPECT_EQ(reduced[0].op, "sum");
}

TEST_F(Nccl, UnevenPartsAreOneGroupWithACallPerRank) {
  const std::vector<Numel> counts = {1, 2, 3, 4, 5, 6, 7, 0};
  const auto calls = calls_of(
      [&](Communicator& group) { group.all_gather_uneven(memory.data(), memory.data(), counts, DType::Float32); });
  ASSERT_EQ(calls.size(), 10u);
  EXPECT_EQ(calls.front().api, "ncclGroupStart");
  EXPECT_EQ(calls.back().api, "ncclGroupEnd");
  for (std::size_t r = 0; r < counts.size(); ++r) EXPECT_EQ(calls[r + 1].bytes, counts[r] * 4) << r;
}

TEST_F(Nccl, AfterAnAbortCallsFailWithTheReason) {
  communicator->abort("rank 5 was lost");
  backend->collective({gather, InstructionId(9)}, communicator,
                      [&](Communicator& group) { group.all_reduce(memory.data(), 1, DType::Float32, ReduceOp::Sum); });
  const auto outcome = backend->synchronize();
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().instruction, InstructionId(9));
  EXPECT_NE(outcome.error().text.find("rank 5 was lost"), std::string::npos) << outcome.error().text;
}

TEST_F(Nccl, AFailureOfOurOwnAbortsTheCommunicator) {
  backend->collective({gather, InstructionId(4)}, communicator,
                      [](Communicator&) { throw std::runtime_error("out of luck"); });
  EXPECT_FALSE(backend->synchronize());
  EXPECT_THROW(communicator->all_reduce(nullptr, 0, DType::Float32, ReduceOp::Sum), std::runtime_error);
}

TEST_F(Nccl, TypesThatItDoesNotCarryAreNamed) {
  backend->collective({gather, InstructionId(5)}, communicator, [&](Communicator& group) {
    group.all_gather(memory.data(), memory.data(), 1, DType::Complex64);
  });
  const auto outcome = backend->synchronize();
  ASSERT_FALSE(outcome);
  EXPECT_NE(outcome.error().text.find("complex64"), std::string::npos) << outcome.error().text;
}

TEST_F(Nccl, MemoryIsHeldForAnotherStreamWhereItsUseIsNotedAndNowhereElse) {
  constexpr Bytes kBytes = 4 << 20;
  const auto active = [&] { return backend->memory().allocator->active; };
  ASSERT_TRUE(backend->synchronize());
  const Bytes before = active();
  for (const bool noted : {false, true}) {
    const Buffer full = backend->allocate({gather, InstructionId(1)}, kBytes, MemoryCategory::FullParameters);
    const Buffer uses[] = {full};
    backend->launch({compute, InstructionId(2), uses}, [] {});
    if (noted) backend->note_use({compute, InstructionId(3)}, full);
    backend->free(full, InstructionId(4));
    EXPECT_EQ(active(), noted ? before + kBytes : before) << "noted: " << noted;
  }
  // The device is done: the allocator notices when it is asked next.
  ASSERT_TRUE(backend->synchronize());
  backend->free(backend->allocate({compute, InstructionId(5)}, 512, MemoryCategory::Temporaries), InstructionId(6));
  EXPECT_EQ(active(), before);
}

TEST_F(Nccl, TheAllocatorsSettingsComeBeforeItsFirstMemory) {
  EXPECT_EQ(allocator_settings({}), "");
  const AllocatorOptions options{true, 128, 4, 0.8};
  EXPECT_EQ(
      allocator_settings(options),
      "expandable_segments:True,max_split_size_mb:128,roundup_power2_divisions:4,garbage_collection_threshold:0.8");
  EXPECT_TRUE(apply_allocator_settings({}));
  const auto late = apply_allocator_settings(options);
  ASSERT_FALSE(late);
  EXPECT_NE(to_text(late.error()).find("has handed out memory already"), std::string::npos) << to_text(late.error());
}

TEST(LoadedLibraries, AreOneOfEachFromOnePlace) {
  EXPECT_EQ(wrong_with(loaded_libraries()), "") << "of this program";
  const std::string wheel = "/venv/site-packages/nvidia/cu13/lib/", toolkit = "/usr/local/cuda/lib64/";
  const LoadedLibrary runtime{"libcudart", {wheel + "libcudart.so.13"}}, nccl{"libnccl", {"/usr/lib/libnccl.so.2"}};
  EXPECT_EQ(wrong_with({runtime, {"libcupti", {"/venv/site-packages/nvidia/cupti/lib/libcupti.so.13"}}, nccl}), "");
  EXPECT_EQ(wrong_with({runtime, {"libcupti", {toolkit + "libcupti.so.13"}}, nccl}),
            "they come from several places: /usr/local/cuda/lib64, /venv/site-packages/nvidia");
  EXPECT_EQ(wrong_with({{"libcudart", {wheel + "libcudart.so.13", toolkit + "libcudart.so.13"}}})
                .find("libcudart is loaded 2 times: "),
            0u);
  EXPECT_EQ(wrong_with({runtime, {"libcupti", {}}}), "libcupti is not loaded");
}

/// A group that is begun and never ended would hold back what the thread asks of NCCL afterwards, the abort as well.
TEST_F(Nccl, ATypeThatItDoesNotCarryLeavesNoGroupOpen) {
  const std::vector<Numel> counts(8, 1);
  const std::vector<CollectiveWork> works = {
      [&](Communicator& group) { group.all_gather_uneven(memory.data(), memory.data(), counts, DType::Complex64); },
      [&](Communicator& group) {
        group.reduce_scatter_uneven(memory.data(), memory.data(), counts, DType::Float32, ReduceOp::None);
      },
      [&](Communicator& group) { group.all_to_all(memory.data(), memory.data(), counts, counts, DType::Complex64); }};
  for (const CollectiveWork& work : works) {
    const auto group = nccl_communicator({.rank = 3, .size = 8}, *nccl_unique_id());
    ASSERT_TRUE(group) << to_text(group.error());
    EXPECT_THROW(work(**group), std::runtime_error);
    (*group)->abort("it failed");
  }
  EXPECT_EQ(races_of_device(), "");
}

/// A backend with little patience, whose peers are what a test says. Failures begin behind the group's meeting.
class Hang : public ::testing::Test {
 protected:
  void TearDown() override {
    fail_calls("");
    EXPECT_EQ(races_of_device(), "");
  }

  void begin(const std::string& failures, NcclPeers peers = {}, int device = 0) {
    fail_calls(failures);
    auto made = make_cuda_backend({.device = device, .timeout = kTimeout});
    ASSERT_TRUE(made) << to_text(made.error());
    backend = std::move(*made);
    compute = backend->create_stream("D", 0);
    gather = backend->create_stream("A", -1);
    const auto group =
        nccl_communicator({.rank = 3, .size = 8, .device = device, .peers = std::move(peers)}, *nccl_unique_id());
    ASSERT_TRUE(group) << to_text(group.error());
    communicator = *group;
    memory = backend->allocate({compute, InstructionId(0)}, 1 << 16, MemoryCategory::ReduceBuffers);
  }
  void all_gather(int instruction) { all_gather(instruction, communicator); }
  void all_gather(int instruction, const std::shared_ptr<Communicator>& on) {
    backend->collective({gather, InstructionId(instruction)}, on, [&](Communicator& group) {
      group.all_gather(memory.data(), memory.data(), 100, DType::BFloat16);
    });
  }
  void expect_failure(int instruction, const std::string& text) {
    const auto outcome = backend->synchronize();
    ASSERT_FALSE(outcome);
    EXPECT_EQ(outcome.error().instruction, InstructionId(instruction));
    EXPECT_NE(outcome.error().text.find(text), std::string::npos) << outcome.error().text;
  }

  static constexpr std::chrono::milliseconds kTimeout{300};
  std::unique_ptr<Backend> backend;
  StreamIndex compute, gather;
  std::shared_ptr<Communicator> communicator;
  Buffer memory;
};

TEST_F(Hang, AnIssuerThatStandsBeforeAFullQueueGoesOn) {
  begin("ncclHang@2=1");
  all_gather(1);
  ASSERT_TRUE(backend->synchronize());
  all_gather(2);
  for (int i = 0; i < 3000; ++i) backend->copy({gather, InstructionId(3)}, memory, memory, 512);
  expect_failure(2, "all_gather (call 2 of its group of 8) has not ended for 0.3 s: a peer does not take part");
}

TEST_F(Hang, ACallThatNeverComesBackIsEnded) {
  begin("ncclStall@2=1");
  all_gather(1);
  ASSERT_TRUE(backend->synchronize());  // this device is done with nothing that nobody waits for
  all_gather(2);
  expect_failure(2, "all_gather (call 2 of its group of 8) has not come back for 0.3 s");
}

TEST_F(Hang, ABackendThatGoesWaitsNoLonger) {
  begin("ncclHang@1=1");
  all_gather(1);
  backend.reset();
}

/// An abort frees memory of the device and waits for what runs there: for the other one's collective, which only the
/// other one's abort ends.
TEST_F(Hang, NoAbortWaitsForTheNextOne) {
  begin("ncclHang@2=1");
  const auto first = nccl_communicator({.rank = 3, .size = 8}, *nccl_unique_id());
  ASSERT_TRUE(first) << to_text(first.error());
  all_gather(1, *first);
  ASSERT_TRUE(backend->synchronize());
  all_gather(2);
  all_gather(3, *first);
  expect_failure(2, "has not ended for 0.3 s");
}

/// Threads begin on card 0: whoever aborts from there, and comes back, leaves a context on it.
TEST_F(Hang, AnAbortWorksOnItsOwnCardWhoeverAsksForIt) {
  begin("ncclHang@1=1", {.failure = [] { return std::string("rank 5 has left"); }}, /*device=*/1);
  all_gather(1);
  expect_failure(1, "rank 5 has left");
  backend.reset();
  const auto other = nccl_communicator({.rank = 3, .size = 8, .device = 1}, *nccl_unique_id());
  ASSERT_TRUE(other) << to_text(other.error());
  std::thread([&] { (*other)->abort("a heartbeat stopped"); }).join();
}

TEST_F(Hang, TheMissingAreNamed) {
  std::atomic<std::int64_t> told = -1, asked = -1;
  begin("ncclHang@2=1", {.answer = [&](std::int64_t calls) { told = calls; },
                         .missing_at =
                             [&](std::int64_t call) {
                               asked = call;
                               return std::string("rank 5 has made 1 of 2 calls");
                             }});
  all_gather(1);
  ASSERT_TRUE(backend->synchronize());
  all_gather(2);
  expect_failure(2, "has not ended for 0.3 s: rank 5 has made 1 of 2 calls");
  EXPECT_EQ(told, 2);
  EXPECT_EQ(asked, 2);
  backend.reset();
}

TEST_F(Hang, AStoreThatDoesNotAnswerHoldsUpNobody) {
  std::promise<void> answers;
  begin("ncclHang@1=1", {.failure = [&] {
          answers.get_future().wait();
          return std::string();
        }});
  all_gather(1);
  expect_failure(1, "a peer does not take part");
  answers.set_value();
  backend.reset();
}

TEST_F(Hang, WithoutACollectiveThereIsNoTimeout) {
  begin("");
  all_gather(1);
  ASSERT_TRUE(backend->synchronize());
  std::this_thread::sleep_for(2 * kTimeout);
  EXPECT_TRUE(backend->synchronize());
}

TEST_F(Hang, AMeetingThatNobodyComesToIsGivenUp) {
  fail_calls("ncclStallInit@1=1");
  const auto group = nccl_communicator({.rank = 3, .size = 8, .timeout = kTimeout}, *nccl_unique_id());
  ASSERT_FALSE(group);
  EXPECT_NE(to_text(group.error()).find("the ranks do not meet"), std::string::npos) << to_text(group.error());
}

}  // namespace
}  // namespace foreshard::exec
