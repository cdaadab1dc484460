// Losses and masks as training scripts have them, and recomputation by operator: against Transformers' own losses
// (tests/data/exec/padded/record.py), and against the plain loop.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/exec/training/training_ranks.h"
#include "tests/support/temporary_path.h"

namespace foreshard::exec {
namespace {

using ::testing::HasSubstr;

const std::string kPadded = FORESHARD_TEST_DATA "/exec/padded/";

std::vector<double> recorded(const std::string& loss) {
  std::ifstream file(kPadded + "losses.json");
  return nlohmann::json::parse(file).at(loss);
}

void expect_near(const std::vector<double>& got, const std::vector<double>& expected, double bound) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t step = 0; step < got.size(); ++step)
    EXPECT_NEAR(got[step], expected[step], bound * expected[step]) << "step " << step;
}

std::vector<std::string> padded(const std::string& loss, int ranks, int micro_batches) {
  return {"model.loss=" + loss,
          "model.attention_mask=true",
          "model.batch=" + std::to_string(4 / ranks / micro_batches),
          "cluster.world_size=" + std::to_string(ranks),
          "train.micro_batches=" + std::to_string(micro_batches),
          "train.steps=10",
          "train.optimizer.impl=for_loop",
          "train.data.kind=tensors",
          "train.data.file=" + kPadded + "batches.safetensors"};
}

TEST(PaddingMasks, GiveTheLossesOfTransformers) {
  const TrainedJob done = train_job(scripted_job(padded("auto", 1, 1)));
  ASSERT_EQ(done.failure, "");
  expect_near(done.losses(), recorded("auto"), 1e-5);
}

struct Cut {
  int ranks, micro_batches;
};
class PerToken : public ::testing::TestWithParam<Cut> {};

/// Sequences of very different lengths: a mean of means would be another number.
TEST_P(PerToken, IsTheMeanOverAllTokensHoweverTheyAreCut) {
  const TrainedJob done = train_job(scripted_job(padded("per_token", GetParam().ranks, GetParam().micro_batches)));
  ASSERT_EQ(done.failure, "");
  expect_near(done.losses(), recorded("per_token"), 1e-5);
}
INSTANTIATE_TEST_SUITE_P(Cuts, PerToken, ::testing::Values(Cut{1, 1}, Cut{1, 2}, Cut{2, 1}, Cut{2, 2}),
                         [](const auto& made) {
                           return std::to_string(made.param.ranks) + "ranks" +
                                  std::to_string(made.param.micro_batches) + "micro";
                         });

TEST(PaddingMasks, OfSyntheticDataHideLabelsToo) {
  const TrainedJob some = train_job(scripted_job({"model.attention_mask=true"}));
  const TrainedJob all = train_job(scripted_job({}));
  ASSERT_EQ(some.failure, "");
  EXPECT_NE(some.losses(), all.losses());
}

/// One row of four sequences and four rows of one have the same loss and the same steps.
TEST(PackedRows, TrainAsTheirSequencesDo) {
  const std::string file = testing::temporary_path("packed_rows.u16");
  const std::array<std::uint16_t, 16> tokens{3, 9, 4, 1, 7, 7, 2, 8, 5, 0, 6, 9, 1, 2, 3, 4};
  std::ofstream(file, std::ios::binary).write(reinterpret_cast<const char*>(tokens.data()), sizeof tokens);
  const auto losses = [&](std::vector<std::string> sets) {
    for (const char* set :
         {"cluster.world_size=1", "cluster.ranks_per_node=1", "train.steps=4", "train.data.kind=tokens"})
      sets.emplace_back(set);
    sets.push_back("train.data.file=" + file);
    const TrainedJob done = train_job(scripted_job(sets));
    EXPECT_EQ(done.failure, "");
    return done.losses();
  };
  const std::vector<double> rows = losses({"model.batch=4", "model.seq=4"});
  expect_near(losses({"model.batch=1", "model.seq=16", "model.packed=true"}), rows, 1e-5);
  EXPECT_GT(std::abs(losses({"model.batch=1", "model.seq=16"}).front() - rows.front()), 1e-3 * rows.front());
}

TEST(ChunkedLosses, AreTheWholeLoss) {
  const std::vector<std::string> steps = {"train.steps=4", "train.optimizer.impl=for_loop"};
  const auto losses = [&](std::vector<std::string> sets) {
    sets.insert(sets.end(), steps.begin(), steps.end());
    const TrainedJob done = train_job(scripted_job(sets));
    EXPECT_EQ(done.failure, "");
    return done.losses();
  };
  const std::vector<double> whole = losses({});
  for (const std::string kind : {"chunked_cross_entropy", "chunked_logits_cross_entropy"})
    expect_near(losses({"model.loss=" + kind, "model.loss_chunks=4"}), whole, 1e-6);
}

class OperatorsKept : public ::testing::TestWithParam<std::string> {};

TEST_P(OperatorsKept, TrainToTheSameBits) {
  const auto train = [&](const std::vector<std::string>& more) {
    std::vector<std::string> sets = {"fsdp.runtime=" + GetParam(), "train.steps=4"};
    sets.insert(sets.end(), more.begin(), more.end());
    TrainedJob done = train_job(scripted_job(sets));
    EXPECT_EQ(done.failure, "");
    return done;
  };
  const TrainedJob plain = train({}), whole = train({"checkpointing.policy=block"});
  const TrainedJob kept = train(
      {"checkpointing.policy=ops",
       "checkpointing.save=[\"mm:2\", \"aten._scaled_dot_product_flash_attention_for_cpu\", \"aten.mul.Tensor\"]"});
  EXPECT_EQ(kept.losses(), plain.losses());
  // What is kept is memory that a block run again as a whole does not hold.
  EXPECT_GT(kept.steps.back().peak_allocated_bytes, whole.steps.back().peak_allocated_bytes);
  EXPECT_LT(kept.steps.back().peak_allocated_bytes, plain.steps.back().peak_allocated_bytes);
}
INSTANTIATE_TEST_SUITE_P(Runtimes, OperatorsKept, ::testing::Values("fsdp1", "fsdp2", "none"),
                         [](const auto& made) { return made.param; });

}  // namespace
}  // namespace foreshard::exec
