#include "core/plan/planned/arena.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/core/fsdp2/chain.h"

namespace foreshard {
namespace {

using ::testing::HasSubstr;

constexpr BufferWhat kGather = BufferWhat::AgBuffer, kReduce = BufferWhat::RsInput;

/// One iteration of allocations and frees, by hand.
class Buffers {
 public:
  Buffers() {
    plan_.units.resize(4);
    for (std::size_t u = 0; u < 4; ++u) plan_.units[u].name = "b" + std::to_string(u);
    plan_.iterations.resize(1);
  }
  std::size_t alloc(BufferWhat what, std::size_t unit, Bytes bytes, Stream stream = Stream::A) {
    return add(InstructionKind::Alloc, what, unit, stream, bytes);
  }
  void free(BufferWhat what, std::size_t unit, Stream stream = Stream::A) {
    add(InstructionKind::Free, what, unit, stream, 0);
  }
  void note_use(BufferWhat what, std::size_t unit) { add(InstructionKind::NoteUse, what, unit, Stream::A, 0); }
  const Plan& plan() const { return plan_; }

 private:
  std::size_t add(InstructionKind kind, BufferWhat what, std::size_t unit, Stream stream, Bytes bytes) {
    Instruction i;
    i.kind = kind;
    i.stream = stream;
    i.unit = UnitId(unit);
    i.buffer = {what, UnitId(unit), {}};
    i.bytes = bytes;
    plan_.iterations[0].instructions.push_back(i);
    return plan_.iterations[0].instructions.size() - 1;
  }

  Plan plan_;
};

Bytes block(const Arena& arena, Stream stream) { return arena.bytes[static_cast<std::size_t>(stream)]; }

TEST(Arena, ReusesAPlaceOnceItsBufferIsFreed) {
  Buffers b;
  const std::size_t first = b.alloc(kGather, 0, 3000);
  const std::size_t beside = b.alloc(kGather, 1, 1000);
  b.free(kGather, 0);
  const std::size_t again = b.alloc(kGather, 2, 2000);
  b.free(kGather, 1);
  b.free(kGather, 2);
  const Arena arena = lay_out_arena(b.plan());
  EXPECT_EQ(arena.offset(0, first), 0);
  EXPECT_EQ(arena.offset(0, beside), 3072);  // 3000 in whole blocks of 512
  EXPECT_EQ(arena.offset(0, again), 0);
  EXPECT_EQ(block(arena, Stream::A), 3072 + 1024);
  EXPECT_EQ(block(arena, Stream::A), arena.at_once[static_cast<std::size_t>(Stream::A)]);
}

TEST(Arena, EveryStreamHasABlockOfItsOwn) {
  Buffers b;
  b.alloc(kGather, 0, 512, Stream::A);
  b.free(kGather, 0, Stream::A);
  b.alloc(kReduce, 0, 1024, Stream::S);
  b.free(kReduce, 0, Stream::S);
  const Arena arena = lay_out_arena(b.plan());
  EXPECT_EQ(block(arena, Stream::A), 512);
  EXPECT_EQ(block(arena, Stream::S), 1024);
  EXPECT_EQ(block(arena, Stream::D), 0);
}

TEST(Arena, LeavesToTheAllocatorWhatLivesOnIsUsedElsewhereOrIsTheHosts) {
  Buffers b;
  const std::size_t lives_on = b.alloc(kGather, 0, 512);
  const std::size_t used = b.alloc(kGather, 1, 512);
  b.note_use(kGather, 1);
  b.free(kGather, 1);
  const std::size_t host = b.alloc(kGather, 2, 512, Stream::Host);
  b.free(kGather, 2, Stream::Host);
  const std::size_t twice = b.alloc(kGather, 3, 512);
  b.alloc(kGather, 3, 512);
  b.free(kGather, 3);
  const Arena arena = lay_out_arena(b.plan());
  for (const std::size_t at : {lives_on, used, host, twice}) EXPECT_EQ(arena.offset(0, at), Arena::kElsewhere) << at;
  EXPECT_EQ(block(arena, Stream::A), 0);
}

/// A hole of 3 beside two of 1 that go at different times: the order of time alone leaves it unused.
TEST(Arena, TakesTheBestOfItsOrders) {
  Buffers b;
  b.alloc(kGather, 0, 1024);
  b.alloc(kGather, 1, 512);
  b.free(kGather, 0);
  b.alloc(kGather, 2, 512);  // first fit: into the hole of two, which the next one would fill
  b.alloc(kReduce, 0, 1024);
  b.free(kGather, 1);
  b.free(kGather, 2);
  b.free(kReduce, 0);
  const Arena arena = lay_out_arena(b.plan());
  EXPECT_EQ(arena.at_once[static_cast<std::size_t>(Stream::A)], 2048);
  EXPECT_EQ(block(arena, Stream::A), 2048);
}

TEST(Arena, AClashIsNamed) {
  Buffers b;
  const std::size_t first = b.alloc(kGather, 0, 1024);
  const std::size_t second = b.alloc(kGather, 1, 1024);
  b.free(kGather, 0);
  b.free(kGather, 1);
  Arena arena = lay_out_arena(b.plan());
  EXPECT_FALSE(arena_clash(b.plan(), arena).has_value());
  Arena over = arena;
  over.offsets[0][second] = over.offset(0, first) + 512;
  EXPECT_THAT(arena_clash(b.plan(), over).value_or(""), HasSubstr("#1 of iteration 0 (ag_buffer:b1) lies over #0"));
  Arena beyond = arena;
  beyond.bytes[static_cast<std::size_t>(Stream::A)] -= 1;
  EXPECT_THAT(arena_clash(b.plan(), beyond).value_or(""), HasSubstr("lies beyond its block"));
}

TEST(Arena, OfAChainHoldsItsGathersAndReductions) {
  for (const std::int64_t micro_batches : {1, 3}) {
    Job job = chain_job(2);
    job.fsdp.runtime = Runtime::Planned;
    job.schedule.objective = "given";
    job.train.micro_batches = micro_batches;
    const Plan plan = plan_chain(job).value();
    const Arena arena = lay_out_arena(plan);
    EXPECT_EQ(arena.bytes, arena.at_once);
    for (std::size_t k = 0; k < plan.iterations.size(); ++k) {
      for (std::size_t at = 0; at < plan.iterations[k].instructions.size(); ++at) {
        const Instruction& i = plan.iterations[k].instructions[at];
        if (i.kind != InstructionKind::Alloc || i.buffer.what != kGather) continue;
        EXPECT_NE(arena.offset(k, at), Arena::kElsewhere) << at;
      }
    }
  }
}

}  // namespace
}  // namespace foreshard
