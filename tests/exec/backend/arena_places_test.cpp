// Buffers of the host backend at places that were chosen for them.
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <future>
#include <thread>

#include "exec/host/host_backend.h"

namespace foreshard::exec {
namespace {

constexpr Bytes kPartBytes = 512;

/// Instruction n of 8 lies at offsets[n] of the stream A.
class ArenaPlacesTest : public ::testing::Test {
 protected:
  void open(std::vector<Bytes> offsets) {
    auto places = std::make_shared<ArenaPlaces>();
    places->offsets = std::move(offsets);
    places->blocks["A"] = 4 * kPartBytes;
    backend = make_host_backend({.arena = places});
    compute = backend->create_stream("D", 0);
    gather = backend->create_stream("A", 0);
  }
  Issue on(StreamIndex stream, int instruction, std::span<const Buffer> uses = {}) const {
    return {stream, InstructionId(instruction), uses};
  }
  Buffer allocate(int instruction) {
    return backend->allocate(on(gather, instruction), kPartBytes, MemoryCategory::FullParameters);
  }
  /// Where the buffer lies, once the gather stream has come to it.
  std::byte* address(const Buffer& buffer) {
    std::byte* at = nullptr;
    backend->launch(on(gather, 7, {&buffer, 1}), [&] { at = static_cast<std::byte*>(buffer.data()); });
    EXPECT_TRUE(backend->synchronize());
    return at;
  }

  std::unique_ptr<Backend> backend;
  StreamIndex compute, gather;
};

TEST_F(ArenaPlacesTest, BuffersLieAtTheirOffsetsOfOneBlock) {
  open({kPartBytes, 0, Arena::kElsewhere, kPartBytes});
  const Buffer first = allocate(0), second = allocate(1), elsewhere = allocate(2);
  std::byte* const base = address(second);
  EXPECT_EQ(address(first), base + kPartBytes);
  const bool inside = address(elsewhere) >= base && address(elsewhere) < base + 4 * kPartBytes;
  EXPECT_FALSE(inside);
  backend->free(first, InstructionId(4));
  EXPECT_EQ(address(allocate(3)), base + kPartBytes);
}

TEST_F(ArenaPlacesTest, TheBlockCountsAsAWholeAndItsPartsDoNot) {
  open({0, kPartBytes});
  const Buffer first = allocate(0);
  EXPECT_EQ(backend->memory().total.allocated, 4 * kPartBytes);
  const Buffer second = allocate(1);
  backend->free(first, InstructionId(2));
  ASSERT_TRUE(backend->synchronize());
  EXPECT_EQ(backend->memory().total.allocated, 4 * kPartBytes);
  EXPECT_EQ(backend->memory().total.resident, 4 * kPartBytes);
}

TEST_F(ArenaPlacesTest, APlaceIsNotGivenAgainWhileAnotherStreamReadsIt) {
  open({0, 0});
  const Buffer first = allocate(0);
  std::promise<void> door;
  std::future<void> opened = door.get_future();
  char read = 0;
  backend->launch(on(gather, 2, {&first, 1}), [&] { std::memset(first.data(), 'a', kPartBytes); });
  const Event written = backend->record_event(on(gather, 2));
  backend->wait_event(on(compute, 3), written);
  backend->launch(on(compute, 3, {&first, 1}), [&] {
    opened.wait();
    read = *static_cast<const char*>(first.data());
  });
  backend->free(first, InstructionId(4));
  const Buffer second = allocate(1);
  backend->launch(on(gather, 5, {&second, 1}), [&] { std::memset(second.data(), 'b', kPartBytes); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // time enough to write over it
  door.set_value();
  ASSERT_TRUE(backend->synchronize());
  EXPECT_EQ(read, 'a');
}

TEST_F(ArenaPlacesTest, AFreedPartIsUsedNoMore) {
  open({0});
  const Buffer first = allocate(0);
  backend->free(first, InstructionId(1));
  backend->launch(on(gather, 2), [&] { static_cast<void>(first.data()); });
  EXPECT_FALSE(backend->synchronize());
}

}  // namespace
}  // namespace foreshard::exec
