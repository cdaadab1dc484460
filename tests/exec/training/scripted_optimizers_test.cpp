// Optimizers of training scripts as `run` trains with them: what they keep and how they go on. Losses against PyTorch's
// are the oracle's (oracle.training.scripts).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <set>

#include "exec/checkpoint/checkpoint_manifest.h"
#include "tests/exec/training/training_ranks.h"
#include "tests/support/temporary_path.h"

namespace foreshard::exec {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Case {
  std::string name, runtime, optimizer, impl;
  std::set<std::string> slots;
};
void PrintTo(const Case& one, std::ostream* out) { *out << one.name; }

std::vector<std::string> sets_of(const Case& one, const std::vector<std::string>& more) {
  std::vector<std::string> sets = {"fsdp.runtime=" + one.runtime, "train.optimizer.name=" + one.optimizer,
                                   "train.optimizer.impl=" + one.impl, "fsdp.allow_traps=[33, 34, 35, 36]"};
  sets.insert(sets.end(), more.begin(), more.end());
  return sets;
}

std::string fresh_folder(const std::string& name) {
  const std::string folder = foreshard::testing::temporary_path(name);
  std::filesystem::remove_all(folder);
  return "train.checkpoint.dir=" + folder;
}
std::string folder_of(const std::string& set) { return set.substr(set.find('=') + 1); }

class Optimizers : public ::testing::TestWithParam<Case> {};

TEST_P(Optimizers, GoOnAsIfNothingHadStopped) {
  const std::string part = fresh_folder("part-" + GetParam().name), all = fresh_folder("all-" + GetParam().name);
  const TrainedJob begun = train_job(scripted_job(sets_of(GetParam(), {part, "train.steps=2"})));
  ASSERT_EQ(begun.failure, "");
  const TrainedJob rest = train_job(scripted_job(sets_of(GetParam(), {part, "train.steps=4"})), true);
  ASSERT_EQ(rest.failure, "");
  const TrainedJob whole = train_job(scripted_job(sets_of(GetParam(), {all, "train.steps=4"})));
  EXPECT_THAT(rest.losses(), ElementsAre(whole.losses()[2], whole.losses()[3]));
}

TEST_P(Optimizers, KeepTheStateOfTheirNames) {
  const std::string folder = fresh_folder("state-" + GetParam().name);
  ASSERT_EQ(train_job(scripted_job(sets_of(GetParam(), {folder}))).failure, "");
  const auto manifest = read_manifest(*locate_checkpoint(folder_of(folder)));
  ASSERT_TRUE(manifest) << to_text(manifest.error());
  EXPECT_EQ(manifest->optimizer_steps, 3);
  std::set<std::string> slots;
  for (const CheckpointTensor& tensor : manifest->tensors)
    if (tensor.slot != "param" && tensor.slot != "buffer") slots.insert(tensor.slot);
  EXPECT_EQ(slots, GetParam().slots);
}

const std::set<std::string> kAdam = {"exp_avg", "exp_avg_sq"};
INSTANTIATE_TEST_SUITE_P(
    Kinds, Optimizers,
    ::testing::Values(Case{"torch_adafactor", "fsdp1", "adafactor", "foreach", {"variance"}},
                      Case{"transformers_adafactor", "fsdp1", "adafactor", "for_loop", {"exp_avg_sq"}},
                      Case{"muon", "fsdp2", "muon", "for_loop", {"exp_avg", "exp_avg_sq", "momentum_buffer"}},
                      Case{"adamw_in_backward", "fsdp2", "adamw", "in_backward", kAdam},
                      Case{"adagrad", "fsdp2", "adagrad", "for_loop", {"sum"}},
                      Case{"fused_adagrad", "fsdp1", "adagrad", "fused", {"sum"}},
                      Case{"rmsprop", "fsdp1", "rmsprop", "foreach", {"square_avg"}},
                      Case{"nadam", "fsdp2", "nadam", "foreach", kAdam},
                      Case{"radam", "fsdp1", "radam", "for_loop", kAdam},
                      Case{"adamax", "fsdp2", "adamax", "for_loop", {"exp_avg", "exp_inf"}}),
    [](const auto& made) { return made.param.name; });

TEST(Muon, StandsStillWhereTheScalerFindsInf) {
  const Case one{"", "fsdp2", "muon", "for_loop", {}};
  // Too much for float16 at first; the second step is one.
  const TrainedJob done = train_job(scripted_job(
      sets_of(one, {"fsdp.mixed_precision.param=float16", "train.grad_scaler.enabled=true",
                    "train.grad_scaler.init_scale=1e30", "train.grad_scaler.backoff_factor=1e-28", "train.steps=4"})));
  ASSERT_EQ(done.failure, "");
  EXPECT_TRUE(done.steps[0].skipped);
  EXPECT_FALSE(done.steps[1].skipped);
  for (const double loss : done.losses()) EXPECT_TRUE(std::isfinite(loss)) << loss;
}

TEST(Muon, IsRefusedBesideFusedStepsUnderAScaler) {
  const Case one{"", "fsdp2", "muon", "fused", {}};
  EXPECT_THAT(train_job(scripted_job(sets_of(one, {"train.grad_scaler.enabled=true"}))).failure,
              HasSubstr("set train.optimizer.impl to foreach"));
}

TEST(Adafactor, OfTorchByALoopIsThatOverLists) {
  const Case lists{"", "fsdp1", "adafactor", "foreach", {}}, loop{"", "fsdp1", "adafactor", "for_loop", {}};
  const TrainedJob one = train_job(scripted_job(sets_of(loop, {"train.optimizer.library=torch"})));
  ASSERT_EQ(one.failure, "");
  EXPECT_EQ(one.losses(), train_job(scripted_job(sets_of(lists, {}))).losses());
  EXPECT_NE(one.losses(), train_job(scripted_job(sets_of(loop, {}))).losses());  // Transformers'
}

TEST(Adafactor, IsRefusedOverMatrices) {
  const auto failure = [](const std::string& runtime, const std::vector<std::string>& more) {
    return train_job(scripted_job(sets_of({"", runtime, "adafactor", "foreach", {}}, more))).failure;
  };
  EXPECT_THAT(failure("none", {}), HasSubstr("set fsdp.runtime to fsdp1"));
  EXPECT_THAT(failure("fsdp1", {"fsdp.strategy=NO_SHARD"}), HasSubstr("set fsdp.strategy to FULL_SHARD"));
}

TEST(Resuming, TellsWhatTheOptimizerBeforeHasLeft) {
  const std::string folder = fresh_folder("other-optimizer");
  const Case before{"", "fsdp1", "adamw", "for_loop", {}}, now{"", "fsdp1", "adafactor", "for_loop", {}};
  ASSERT_EQ(train_job(scripted_job(sets_of(before, {folder, "train.steps=1"}))).failure, "");
  const TrainedJob rest = train_job(scripted_job(sets_of(now, {folder, "train.steps=2"})), true);
  ASSERT_EQ(rest.failure, "");
  EXPECT_THAT(rest.notes, Contains("exp_avg of the checkpoint is not taken: this optimizer keeps none"));
}

TEST(StepsInBackward, AreThoseBehindIt) {
  const Case inside{"", "fsdp2", "adamw", "in_backward", {}}, behind{"", "fsdp2", "adamw", "for_loop", {}};
  const TrainedJob one = train_job(scripted_job(sets_of(inside, {"train.steps=4"})));
  ASSERT_EQ(one.failure, "");
  EXPECT_EQ(one.losses(), train_job(scripted_job(sets_of(behind, {"train.steps=4"}))).losses());
}

TEST(StepsInBackward, ComeOncePerMicroBatchThatIsReduced) {
  const std::string folder = fresh_folder("micro");
  const Case inside{"", "fsdp2", "adamw", "in_backward", {}};
  ASSERT_EQ(train_job(scripted_job(sets_of(inside, {folder, "train.micro_batches=2", "train.no_sync=false"}))).failure,
            "");
  EXPECT_EQ(read_manifest(*locate_checkpoint(folder_of(folder)))->optimizer_steps, 6);
}

TEST(StepsInBackward, NeverComeUnderFsdp1) {
  const Case inside{"", "fsdp1", "sgd", "in_backward", {}};
  const TrainedJob done = train_job(scripted_job(sets_of(inside, {"train.steps=2", "train.optimizer.lr=10"})));
  ASSERT_EQ(done.failure, "");
  const Case still{"", "fsdp1", "sgd", "for_loop", {}};
  EXPECT_EQ(done.losses(), train_job(scripted_job(sets_of(still, {"train.steps=2", "train.optimizer.lr=0"}))).losses());
}

TEST(Optimizers, OfEightBitsAreRefusedOnProcessors) {
  const Case eight{"", "fsdp2", "adamw8bit", "foreach", {}};
  const std::string why = train_job(scripted_job(sets_of(eight, {}))).failure;
  EXPECT_THAT(why, HasSubstr("CUDA"));
  EXPECT_THAT(why, HasSubstr("set train.optimizer.name to adamw"));
}

}  // namespace
}  // namespace foreshard::exec
