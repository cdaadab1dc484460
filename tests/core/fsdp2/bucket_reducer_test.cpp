#include "core/plan/unsharded/bucket_reducer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace foreshard::unsharded {
namespace {

using ::testing::ElementsAre;

Model model_of(const std::vector<std::int64_t>& numels) {
  Model model;
  model.modules.push_back({"", "Bag", {}, {}, {}, {}, {}});
  for (std::size_t k = 0; k < numels.size(); ++k) {
    model.params.push_back({"p" + std::to_string(k), {numels[k]}, DType::Float32, true, ModuleId(0), {}});
  }
  return model;
}

std::vector<ParamId> all(const Model& model) {
  std::vector<ParamId> params;
  for (std::size_t k = 0; k < model.params.size(); ++k) params.push_back(ParamId(k));
  return params;
}

TEST(Buckets, TheFirstIsFullAtOneMebibyteTheOthersAtTwentyFive) {
  constexpr std::int64_t kMebi = 1024 * 1024 / 4;
  const Model model = model_of({kMebi / 2, kMebi / 2, 20 * kMebi, 5 * kMebi, kMebi});
  const auto buckets = cut_buckets(model, all(model));
  ASSERT_EQ(buckets.size(), 3U);
  EXPECT_THAT(buckets[0], ElementsAre(ParamId(0), ParamId(1)));
  EXPECT_THAT(buckets[1], ElementsAre(ParamId(2), ParamId(3)));
  EXPECT_THAT(buckets[2], ElementsAre(ParamId(4)));
}

TEST(Buckets, AreReducedInOrderHoweverTheirGradientsCome) {
  const Model model = model_of({300'000, 300'000});
  Plan plan;
  BucketReducer reducer(model, {true, true}, 4, plan);  // buckets: parameter 1, then parameter 0
  PlanIteration iteration;
  for (const int p : {0, 1}) {
    Instruction grad;
    grad.phase = Phase::Backward;
    grad.buffer = {BufferWhat::Grad, {}, ParamId(p)};
    iteration.instructions.push_back(grad);
  }
  reducer.apply(iteration, {true});
  std::vector<std::int32_t> reduced;
  for (const Instruction& i : iteration.instructions) {
    if (i.kind == InstructionKind::AllReduce) reduced.push_back(i.arg);
  }
  EXPECT_THAT(reduced, ElementsAre(0, 1));
  PlanIteration held;
  held.instructions = {iteration.instructions.front()};
  reducer.apply(held, {false});
  for (const Instruction& i : held.instructions) EXPECT_NE(i.kind, InstructionKind::AllReduce);
}

}  // namespace
}  // namespace foreshard::unsharded
