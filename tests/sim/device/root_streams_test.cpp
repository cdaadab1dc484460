// Several roots of fsdp2 in a step: each plays on streams of its own, whose memory comes from pools of their own.
#include "sim/device/root_streams.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/units.h"
#include "tests/sim/hand_made_plan.h"

namespace foreshard {
namespace {

using ::testing::ElementsAre;
using testing_sim::HandMadePlan;
using enum InstructionKind;

/// Each root gathers once, by a buffer that is gone when the other's is made.
class TwoRoots : public HandMadePlan {
 public:
  explicit TwoRoots(bool roots) {
    plan.runtime = job.fsdp.runtime = Runtime::Fsdp2;
    plan.streams = {{Stream::C, -1}, {Stream::A, -1}, {Stream::S, -1}, {Stream::H, 0}};
    job.fsdp.wrap.root = !roots;
    for (const char* const name : {"", "a", "b"}) {
      const UnitId id = unit(name, 1000);
      plan.units[id.index()].modules = {ModuleId(id.index())};
    }
    for (const std::size_t u : {1, 2}) {
      const UnitId id(u);
      alloc(Stream::C, BufferWhat::AgBuffer, id, 40'000'000);
      kernel(Stream::C, 40'000'000);
      wait_stream(Stream::A, Stream::C);
      collective(AllGather, Stream::A, 40'000'000);
      wait_stream(Stream::C, Stream::A);
      free(Stream::C, BufferWhat::AgBuffer, id);
    }
    std::size_t at = 0;
    for (Instruction& i : plan.iterations.back().instructions) i.unit = UnitId(std::size_t{1} + at++ / 6);
  }
};

TEST(RootStreams, TheFirstRootHasTheLettersAndOthersStreamsBehindThem) {
  std::vector<std::string> names;
  for (const Stream letter : {Stream::D, Stream::C, Stream::A, Stream::S, Stream::H, Stream::M})
    for (const std::size_t root : {0, 1})
      names.push_back(played_stream_name(stream_of_root(letter, root), Runtime::Fsdp2));
  EXPECT_THAT(names, ElementsAre("D", "D", "C", "C2", "A", "A2", "S", "S2", "H", "H2", "M", "M"));
}

TEST(RootStreams, TorchGivesThirtyTwoStreamsOutRound) {
  EXPECT_EQ(played_stream_name(stream_of_root(Stream::A, 10), Runtime::Fsdp2), "A11");
  EXPECT_EQ(stream_of_root(Stream::S, 10), Stream::C);
  EXPECT_EQ(stream_of_root(Stream::C, 32), Stream::C);
  for (const Stream letter : {Stream::C, Stream::A, Stream::S, Stream::H})
    for (std::size_t root = 0; root < 100; ++root)
      EXPECT_LT(static_cast<std::size_t>(stream_of_root(letter, root)), kPlayedStreams);
}

TEST(RootStreams, EachHasPoolsOfItsOwn) {
  const Bytes shared = TwoRoots(false).run().value().iterations.back().peak_reserved;
  const Prediction own = TwoRoots(true).run().value();
  EXPECT_EQ(own.iterations.back().peak_reserved, shared + 40 * kMiB);  // 40 MB, rounded up to 2 MiB
  EXPECT_EQ(own.iterations.back().peak_allocated, TwoRoots(false).run().value().iterations.back().peak_allocated);
}

TEST(RootStreams, TheTimelineHasALaneForEach) {
  SimulateOptions options;
  options.timeline = true;
  const Prediction prediction = TwoRoots(true).run("virtual", options).value();
  std::vector<std::string> lanes;
  for (const Lane& lane : prediction.timeline.lanes) lanes.push_back(lane.stream);
  EXPECT_THAT(lanes, ElementsAre("host", "C", "A", "C2", "A2"));
}

TEST(RootStreams, APlanOfOneRootIsPlayedAsItIs) {
  const TwoRoots one(false), two(true);
  EXPECT_FALSE(with_root_streams(one.plan, one.model, one.job));
  EXPECT_TRUE(with_root_streams(two.plan, two.model, two.job));
  TwoRoots alone(true);
  for (Instruction& i : alone.plan.iterations.back().instructions) i.unit = UnitId(std::size_t{1});
  EXPECT_FALSE(with_root_streams(alone.plan, alone.model, alone.job));
}

}  // namespace
}  // namespace foreshard
