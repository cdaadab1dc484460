#include "exec/host/kept_memory.h"

#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>
#include <thread>
#include <vector>

#include "exec/host/counting_allocator.h"

namespace foreshard::exec {
namespace {

constexpr std::size_t kMiB = 1 << 20;
constexpr std::size_t kMost = 1024 * kMiB;  // that the source has in one piece

/// LibTorch's own, counted; from any thread, as allocators are asked.
class Source final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    if (refuses_.exchange(false) || bytes > kMost) throw std::bad_alloc();
    ++taken;
    return c10::GetDefaultCPUAllocator()->allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &given_back; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }
  void refuse_once() { refuses_ = true; }

  std::atomic<int> taken = 0;

 private:
  static void given_back(void* data) { c10::GetDefaultCPUAllocator()->raw_deallocate(data); }
  std::atomic<bool> refuses_ = false;
};

/// Ranks that are threads: one counts first, while the others work already. What can go wrong the thread sanitizer sees
/// (scripts/test); it has to be the first that counts here.
TEST(CountingAllocator, IsSetWhileOtherThreadsAllocate) {
  std::atomic<bool> set = false;
  std::atomic<int> kept = 0;
  std::vector<std::thread> workers;
  for (int k = 0; k < 3; ++k) {
    workers.emplace_back([&] {
      for (bool last = false; !last;) {
        last = set;
        kept += c10::GetCPUAllocator()->allocate(kMiB).get() != nullptr ? 1 : 0;
      }
    });
  }
  install_counting_allocator();
  set = true;
  for (std::thread& worker : workers) worker.join();
  EXPECT_GE(kept, 3);
}

TEST(KeptMemory, GivesTheLatestBlockOfNearlyTheSameSizeAgain) {
  Source source;
  KeptMemory memory(source);
  void* const first = memory.take(9 * kMiB);
  void* const second = memory.take(9 * kMiB);
  memory.give_back(first, 9 * kMiB);
  memory.give_back(second, 9 * kMiB);
  EXPECT_EQ(memory.take(9 * kMiB - 64), second);
  EXPECT_EQ(memory.take(9 * kMiB), first);
  EXPECT_EQ(source.taken, 2);
  EXPECT_EQ(memory.kept(), 0U);
  memory.give_back(second, 9 * kMiB - 64);
  memory.give_back(first, 9 * kMiB);
}

TEST(KeptMemory, SmallBlocksAreTheSources) {
  Source source;
  KeptMemory memory(source);
  memory.give_back(memory.take(1024), 1024);
  EXPECT_EQ(memory.kept(), 0U);
  memory.give_back(memory.take(1024), 1024);
  EXPECT_EQ(source.taken, 2);
}

TEST(KeptMemory, KeepsAQuarterMoreThanWasEverUsed) {
  Source source;
  KeptMemory memory(source);
  for (std::size_t size = 8; size < 16; ++size) {  // one after the other: 15 MiB at most
    void* const data = memory.take(size * kMiB);
    memory.give_back(data, size * kMiB);
    EXPECT_LE(memory.kept(), size * kMiB * 5 / 4);
  }
  EXPECT_GE(memory.kept(), 15 * kMiB);  // the latest is there
  memory.give_back(memory.take(15 * kMiB), 15 * kMiB);
  EXPECT_EQ(source.taken, 8);
}

TEST(KeptMemory, GivesAllBackBeforeItFails) {
  Source source;
  KeptMemory memory(source);
  memory.give_back(memory.take(64 * kMiB), 64 * kMiB);
  source.refuse_once();
  void* const data = memory.take(32 * kMiB);
  EXPECT_NE(data, nullptr);
  EXPECT_EQ(memory.kept(), 0U);
  memory.give_back(data, 32 * kMiB);
}

TEST(KeptMemory, KeepsNoMoreWhereSizesChange) {
  Source source;
  KeptMemory memory(source);
  std::vector<void*> blocks(32);
  std::size_t most = 0;
  for (const std::size_t size : {kMiB, kMiB * 3 / 2, kMiB * 5 / 4}) {
    std::size_t used = 0;
    for (void*& block : blocks) {
      block = memory.take(size);
      used += size;
      most = std::max(most, used);
      EXPECT_LE(memory.kept() + used, most + most / 4);
    }
    for (void* const block : blocks) memory.give_back(block, size);
  }
}

TEST(KeptMemory, WhatTheSourceRefusesWasNeverUsed) {
  Source source;
  KeptMemory memory(source);
  EXPECT_THROW(memory.take(2 * kMost), std::bad_alloc);
  std::vector<void*> blocks(4);
  for (int phase = 0; phase < 4; ++phase) {
    const std::size_t size = (8U + static_cast<unsigned>(phase)) * kMiB;
    for (void*& block : blocks) block = memory.take(size);
    for (void* const block : blocks) memory.give_back(block, size);
    EXPECT_LE(memory.kept(), 4 * size * 5 / 4);
  }
}

TEST(KeptMemory, BlocksMayComeBackFromOtherThreads) {
  Source source;
  KeptMemory memory(source);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&memory, t] {
      for (std::size_t k = 1; k < 200; ++k) {
        const std::size_t bytes = (k % 7 + 1) * 40'000;
        auto* const data = static_cast<char*>(memory.take(bytes));
        std::memset(data, t, bytes);
        EXPECT_EQ(data[bytes - 1], t);  // nobody else has it
        memory.give_back(data, bytes);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(memory.kept(), 0U);
}

}  // namespace
}  // namespace foreshard::exec
