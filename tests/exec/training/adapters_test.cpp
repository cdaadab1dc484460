// Low-rank adapters trained beside a frozen base: what moves, what is saved, what PEFT reads. Losses against PyTorch's
// are the oracle's (oracle.training).
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "exec/checkpoint/checkpoint_export.h"
#include "exec/checkpoint/checkpoint_manifest.h"
#include "exec/checkpoint/safetensors.h"
#include "exec/run/weight_source.h"
#include "tests/exec/training/training_ranks.h"
#include "tests/support/temporary_path.h"

namespace foreshard::exec {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> adapters_in(const std::string& folder, const std::vector<std::string>& more = {}) {
  std::vector<std::string> sets = {"adapters.kind=lora", "adapters.rank=4", "adapters.alpha=8",
                                   "adapters.targets=[\"q_proj\", \"v_proj\"]", "train.checkpoint.dir=" + folder};
  sets.insert(sets.end(), more.begin(), more.end());
  return sets;
}

std::string fresh_folder(const std::string& name) {
  const std::string folder = foreshard::testing::temporary_path(name);
  std::filesystem::remove_all(folder);
  return folder;
}

const std::string kLayer = "base_model.model.model.layers.0.self_attn.q_proj";

class Adapters : public ::testing::TestWithParam<std::string> {};

TEST_P(Adapters, MoveAndTheBaseStandsStill) {
  const std::string folder = fresh_folder("adapters-" + GetParam());
  const TrainedJob done = train_job(scripted_job(adapters_in(folder, {"fsdp.runtime=" + GetParam()})));
  ASSERT_EQ(done.failure, "");
  const auto saved = open_weights(folder);
  ASSERT_TRUE(saved) << to_text(saved.error());
  const auto first = read_safetensors(FORESHARD_TEST_DATA "/exec/llama_tiny/model.safetensors");
  ASSERT_TRUE(first);
  const at::Tensor base = *(*saved)->tensor(kLayer + ".base_layer.weight");
  EXPECT_TRUE(base.equal(first->at("model.layers.0.self_attn.q_proj.weight")));
  const at::Tensor up = *(*saved)->tensor(kLayer + ".lora_B.default.weight");
  EXPECT_GT(up.abs().max().item<float>(), 0);  // began with zeros
}

TEST_P(Adapters, AloneHaveStateOfTheOptimizer) {
  const std::string folder = fresh_folder("state-" + GetParam());
  ASSERT_EQ(train_job(scripted_job(adapters_in(folder, {"fsdp.runtime=" + GetParam()}))).failure, "");
  const auto manifest = read_manifest(*locate_checkpoint(folder));
  ASSERT_TRUE(manifest) << to_text(manifest.error());
  std::size_t moments = 0;
  for (const CheckpointTensor& tensor : manifest->tensors) {
    if (tensor.slot != "exp_avg") continue;
    EXPECT_THAT(tensor.fqn, HasSubstr(".lora_")) << tensor.fqn;
    ++moments;
  }
  EXPECT_EQ(moments, 8U);  // two matrices for two targets in two layers
}

TEST_P(Adapters, GoOnAsIfNothingHadStopped) {
  const std::string folder = fresh_folder("resumed-" + GetParam()), other = fresh_folder("whole-" + GetParam());
  const std::string runtime = "fsdp.runtime=" + GetParam();
  ASSERT_EQ(train_job(scripted_job(adapters_in(folder, {runtime, "train.steps=2"}))).failure, "");
  const TrainedJob rest = train_job(scripted_job(adapters_in(folder, {runtime, "train.steps=4"})), true);
  ASSERT_EQ(rest.failure, "");
  const TrainedJob whole = train_job(scripted_job(adapters_in(other, {runtime, "train.steps=4"})));
  EXPECT_THAT(rest.losses(), ElementsAre(whole.losses()[2], whole.losses()[3]));
}

INSTANTIATE_TEST_SUITE_P(Runtimes, Adapters, ::testing::Values("fsdp1", "fsdp2", "none"),
                         [](const auto& made) { return made.param; });

std::vector<double> losses_of(const std::string& name, std::vector<std::string> sets) {
  sets.emplace_back("train.steps=4");
  const TrainedJob done = train_job(scripted_job(adapters_in(fresh_folder(name), sets)));
  EXPECT_EQ(done.failure, "");
  return done.losses();
}

/// A base in bfloat16 beside adapters in float32: cast for the gather, it is the float32 base's own cast.
TEST(AdaptersOfTwoTypes, TrainToTheBitsOfABaseThatIsCast) {
  const std::vector<std::string> precision = {"fsdp.mixed_precision.param=bfloat16",
                                              "fsdp.mixed_precision.reduce=float32", "fsdp.allow_traps=[30]"};
  std::vector<std::string> stored = precision;
  stored.insert(stored.end(), {"model.dtype=bfloat16", "adapters.dtype=float32"});
  EXPECT_EQ(losses_of("stored", stored), losses_of("cast", precision));
}

/// Without mixed precision they are gathered as bytes.
TEST(AdaptersOfTwoTypes, TrainAsTheyAreUnsharded) {
  const std::vector<std::string> types = {"model.dtype=bfloat16", "adapters.dtype=float32"};
  std::vector<std::string> whole = types;
  whole.emplace_back("fsdp.runtime=none");
  const std::vector<double> sharded = losses_of("bytes", types), plain = losses_of("whole", whole);
  ASSERT_EQ(sharded.size(), plain.size());
  EXPECT_EQ(sharded.front(), plain.front());
  for (std::size_t step = 1; step < plain.size(); ++step) EXPECT_NEAR(sharded[step], plain[step], 1e-3 * plain[step]);
}

TEST(AdapterFiles, AreThoseOfPeft) {
  const std::string folder = fresh_folder("peft"), out = fresh_folder("peft-out");
  ASSERT_EQ(train_job(scripted_job(adapters_in(folder))).failure, "");
  const auto exported = export_checkpoint(folder, out);
  ASSERT_TRUE(exported) << to_text(exported.error());
  EXPECT_THAT(exported->files, ElementsAre("adapter_model.safetensors"));
  const auto tensors = read_safetensors(out + "/adapter_model.safetensors");
  ASSERT_TRUE(tensors) << to_text(tensors.error());
  EXPECT_EQ(tensors->size(), 8U);
  const auto down = tensors->find(kLayer + ".lora_A.weight"), up = tensors->find(kLayer + ".lora_B.weight");
  ASSERT_NE(down, tensors->end());
  ASSERT_NE(up, tensors->end());
  EXPECT_THAT(down->second.sizes().vec(), ElementsAre(4, 64));
  EXPECT_THAT(up->second.sizes().vec(), ElementsAre(64, 4));
  std::ifstream file(out + "/adapter_config.json");
  const nlohmann::json config = nlohmann::json::parse(file);
  EXPECT_EQ(config["peft_type"], "LORA");
  EXPECT_EQ(config["task_type"], "CAUSAL_LM");
  EXPECT_EQ(config["r"], 4);
  EXPECT_EQ(config["lora_alpha"], 8);
  EXPECT_EQ(config["fan_in_fan_out"], false);
  EXPECT_EQ(config["target_modules"], (nlohmann::json{"q_proj", "v_proj"}));
}

TEST(AdapterFiles, NameTheLayersThatAPatternMeans) {
  const std::string folder = fresh_folder("pattern"), out = fresh_folder("pattern-out");
  const Job job = scripted_job(adapters_in(folder, {"adapters.targets=[\"*.1.self_attn.?_proj\"]"}));
  ASSERT_EQ(train_job(job).failure, "");
  ASSERT_TRUE(export_checkpoint(folder, out));
  std::ifstream file(out + "/adapter_config.json");
  const std::string layer = "model.layers.1.self_attn.";
  EXPECT_EQ(nlohmann::json::parse(file)["target_modules"],
            (nlohmann::json{layer + "k_proj", layer + "o_proj", layer + "q_proj", layer + "v_proj"}));
}

TEST(AdapterValues, AreALinearLayersOwnAndZeros) {
  const std::string folder = fresh_folder("first");
  // A step of no size: what is saved is what it began with.
  const Job job = scripted_job(adapters_in(folder, {"train.steps=1", "train.optimizer.lr=0"}));
  ASSERT_EQ(train_job(job).failure, "");
  const auto saved = open_weights(folder);
  ASSERT_TRUE(saved);
  const at::Tensor down = *(*saved)->tensor(kLayer + ".lora_A.default.weight");
  const double bound = 1.0 / 8.0;  // of 64 inputs
  EXPECT_LE(down.abs().max().item<double>(), bound);
  EXPECT_GT(down.abs().max().item<double>(), 0.9 * bound);
  EXPECT_NEAR(down.std().item<double>(), bound / std::sqrt(3.0), 0.1 * bound);
  EXPECT_EQ((*saved)->tensor(kLayer + ".lora_B.default.weight")->abs().max().item<double>(), 0);
}

}  // namespace
}  // namespace foreshard::exec
