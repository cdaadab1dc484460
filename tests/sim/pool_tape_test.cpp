// What a tape answers is what the pools would have done: random calls, beside an allocator without a tape.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "sim/device/allocator/caching_allocator.h"

namespace foreshard {
namespace {

constexpr int kStreams = 3;

struct Call {
  enum class Kind : std::uint8_t { Allocate, Free, Use } kind = Kind::Allocate;
  Bytes bytes = 0;
  int stream = 0;
  std::size_t which = 0;  // allocation, counted from 0
};

/// Sizes of layers: few distinct ones, large and small.
std::vector<Call> random_calls(std::uint64_t seed, std::size_t count) {
  std::mt19937_64 random(seed);
  std::vector<Call> calls;
  std::vector<std::size_t> live;
  std::size_t made = 0;
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  for (std::size_t k = 0; k < count; ++k) {
    if (live.empty() || below(9) < 5) {
      const Bytes bytes = below(3) == 0 ? static_cast<Bytes>(1 + below(40) * 700)
                                        : static_cast<Bytes>((1 + below(12)) * 3 * kMiB / (1 + below(4)));
      calls.push_back({Call::Kind::Allocate, bytes, static_cast<int>(below(5) < 4 ? 0 : 1 + below(2)), made});
      live.push_back(made++);
    } else {
      const std::size_t at = below(live.size());
      if (below(8) == 0) calls.push_back({Call::Kind::Use, 0, static_cast<int>(below(kStreams)), live[at]});
      calls.push_back({Call::Kind::Free, 0, 0, live[at]});
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(at));
    }
  }
  return calls;
}

struct Machine {
  explicit Machine(Bytes memory)
      : driver(memory), clock(ClockMode::Model, kStreams), allocator(settings(), driver, clock, kStreams) {}
  static AllocatorSettings settings() {
    AllocatorSettings settings;
    settings.driver_ns = 1000;
    settings.query_ns = 10;
    return settings;
  }
  void run(const Call& call) {
    clock.host_cost(50);
    switch (call.kind) {
      case Call::Kind::Allocate:
        clock.enqueue(call.stream, 900);
        blocks.push_back(allocator.allocate(call.bytes, call.stream));
        break;
      case Call::Kind::Free: allocator.free(blocks[call.which]); break;
      case Call::Kind::Use: allocator.record_stream(blocks[call.which], call.stream); break;
    }
  }
  DriverMemory driver;
  DeviceClock clock;
  CachingAllocator allocator;
  std::vector<BlockHandle> blocks;
};

void expect_same(Machine& plain, Machine& taped, const std::vector<Call>& calls, const char* what) {
  for (std::size_t k = 0; k < calls.size(); ++k) {
    plain.run(calls[k]);
    taped.run(calls[k]);
    ASSERT_EQ(plain.allocator.stats(), taped.allocator.stats()) << what << ", call " << k;
    ASSERT_EQ(plain.clock.host(), taped.clock.host()) << what << ", call " << k;
  }
  // From here on everything is real: the segments must stand where they would.
  plain.allocator.empty_cache();
  taped.allocator.empty_cache();
  EXPECT_EQ(plain.allocator.segments(), taped.allocator.segments()) << what;
  EXPECT_EQ(plain.allocator.stats(), taped.allocator.stats()) << what;
}

void check(std::uint64_t seed, Bytes memory) {
  const std::vector<Call> calls = random_calls(seed, 400);
  PoolTape tape;
  {
    Machine plain(memory), recorded(memory);
    recorded.allocator.tapes().record(0, &tape);
    expect_same(plain, recorded, calls, "recording");
  }
  {
    Machine plain(memory), follower(memory);
    follower.allocator.tapes().follow(0, tape);
    expect_same(plain, follower, calls, "the same calls");
  }
  // Another plan: the same for a while, then its own way.
  std::vector<Call> other(calls.begin(), calls.begin() + static_cast<std::ptrdiff_t>(seed * 37 % calls.size()));
  std::size_t made = 0;
  std::vector<bool> freed(calls.size(), false);
  for (const Call& call : other) {
    if (call.kind == Call::Kind::Allocate) ++made;
    if (call.kind == Call::Kind::Free) freed[call.which] = true;
  }
  for (std::size_t which = 0; which < made; which += 2) {
    if (!freed[which]) other.push_back({Call::Kind::Free, 0, 0, which});
  }
  for (int k = 0; k < 60; ++k) other.push_back({Call::Kind::Allocate, (1 + k % 7) * kMiB, k % kStreams, made++});
  Machine plain(memory), follower(memory);
  follower.allocator.tapes().follow(0, tape);
  expect_same(plain, follower, other, "another plan");
}

TEST(PoolTape, AnswersAsThePoolsWould) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) check(seed, 40 * kGiB);
}

TEST(PoolTape, EndsWhereTheCardIsFull) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) check(seed, 700 * kMiB);
}

TEST(PoolTape, IsForPlainSettingsOnly) {
  DriverMemory driver(kGiB);
  DeviceClock clock(ClockMode::Model, 1);
  AllocatorSettings settings;
  EXPECT_TRUE(CachingAllocator(settings, driver, clock, 1).tapes().can_follow());
  settings.expandable_segments = true;
  EXPECT_FALSE(CachingAllocator(settings, driver, clock, 1).tapes().can_follow());
  settings = {};
  settings.max_split_size = 100 * kMiB;
  EXPECT_FALSE(CachingAllocator(settings, driver, clock, 1).tapes().can_follow());
}

}  // namespace
}  // namespace foreshard
