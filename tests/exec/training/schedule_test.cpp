#include "exec/training/schedule.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/exec/tiny_llama.h"

namespace foreshard::exec {
namespace {

TrainOptions options(const std::string& name, std::int64_t warmup, double min_ratio) {
  TrainOptions train;
  train.steps = 20;
  train.optimizer.lr = 1.0;
  train.schedule = {name, warmup, min_ratio};
  return train;
}

TEST(Schedule, ConstantStaysAfterTheWarmUp) {
  const TrainOptions train = options("constant", 4, 0.5);
  EXPECT_DOUBLE_EQ(learning_rate(train, 0), 0.25);
  EXPECT_DOUBLE_EQ(learning_rate(train, 3), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(train, 4), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(train, 1000), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(options("constant", 0, 0.0), 0), 1.0);
}

TEST(Schedule, CosineFallsFromTheWarmUpsEndToItsSmallestRatio) {
  const TrainOptions train = options("cosine", 4, 0.1);
  EXPECT_DOUBLE_EQ(learning_rate(train, 4), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(train, 12), 0.1 + 0.9 * 0.5);
  EXPECT_NEAR(learning_rate(train, 20), 0.1, 1e-12);
  EXPECT_NEAR(learning_rate(train, 500), 0.1, 1e-12) << "and stays there";
}

TEST(Schedule, ARunThatIsAllWarmUpEndsAtTheFullRate) {
  EXPECT_DOUBLE_EQ(learning_rate(options("cosine", 20, 0.0), 19), 1.0);
}

TEST(Schedule, GivesTheRatesOfTheRecordedRuns) {
  const RecordedRun recorded = recorded_run("fp32-adamw-cosine-clip/fsdp2-w2");
  TrainOptions train = options("cosine", 4, 0.0);
  train.optimizer.lr = recorded.lr[3];  // the last of the warm-up
  for (std::size_t step = 0; step < recorded.lr.size(); ++step) {
    EXPECT_NEAR(learning_rate(train, static_cast<std::int64_t>(step)), recorded.lr[step], 1e-12) << step;
  }
}

}  // namespace
}  // namespace foreshard::exec
