// Families against small recordings of the Transformers library: every family has one, with uneven sizes.
#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <string>

#include "core/model/families/config_model.h"
#include "tests/oracle/models/model_truth.h"

namespace foreshard {
namespace {

const std::string kModels = std::string(FORESHARD_TEST_DATA) + "/models/";

class Family : public testing::TestWithParam<const char*> {};

void expect_pass(const oracle::RowResult& row, const std::string& what) {
  EXPECT_NE(row.verdict, oracle::Verdict::Fail)
      << what << " at " << row.place << ": expected " << row.expected << ", got " << row.got << row.detail;
}

TEST_P(Family, EqualsTheRecordingInStructureAndOperators) {
  const std::string folder = kModels + GetParam();
  const oracle::RowResult structure = oracle::compare_structure(folder);
  EXPECT_EQ(structure.verdict, oracle::Verdict::Pass)
      << structure.place << ": " << structure.expected << ", got " << structure.got << structure.detail;
  for (const char* route : {"cuda", "meta_math", "cpu"}) {
    for (const char* dtype : {"bf16", "f32"}) {
      if (std::filesystem::exists(folder + "/ops." + route + "." + dtype + ".json.gz"))
        expect_pass(oracle::compare_route(folder, route, dtype), std::string(route) + " " + dtype);
    }
  }
  if (std::filesystem::exists(folder + "/ops.loss_tail.bf16.json.gz"))
    expect_pass(oracle::compare_loss_tail(folder), "loss");
  if (std::filesystem::exists(folder + "/summary.json")) expect_pass(oracle::compare_flops(folder), "FLOPs");
}

INSTANTIATE_TEST_SUITE_P(Recorded, Family,
                         testing::Values("bert-tiny", "bert-body-tiny", "t5-encoder-tiny", "vit-body-tiny",
                                         "deepseek_v2-tiny", "deepseek_v2-tiny-lite", "deepseek_v3-tiny", "gemma-tiny",
                                         "gemma2-tiny", "gpt_neox-tiny", "mixtral-tiny", "opt-tiny",
                                         "opt-tiny-post-norm", "phi3-tiny", "phi3-tiny-longrope", "phi3-tiny-partial",
                                         "qwen2_moe-tiny", "qwen3-tiny", "qwen3_moe-tiny", "t5-tiny", "vit-tiny",
                                         "whisper-tiny"),
                         [](const auto& made) {
                           std::string name = made.param;
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

TEST(Families, ABodysLossIsTheScripts) {
  ModelOptions options;
  const auto model = model_from_config(kModels + "vit-body-tiny/config.json", options);
  ASSERT_TRUE(model) << to_text(model.error());
  ASSERT_EQ(model->outputs.size(), 3U);  // the sum of what the pooler gives, then what the forward returns
  EXPECT_EQ(model->loss_begin, static_cast<std::int32_t>(model->ops.size()) - 1);
  EXPECT_EQ(model->values[model->outputs[2].index()].shape.size(), 2U);
  EXPECT_EQ(std::get<ValueRef>(model->ops.back().args[0].value).id, model->outputs[2]);
  options.loss = "cross_entropy";
  const auto refused = model_from_config(kModels + "bert-body-tiny/config.json", options);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().place, "model.loss");
}

TEST(Families, FactsAreWrittenWithTheOperators) {
  ModelOptions options;
  const auto model = model_from_config(kModels + "llama-3.2-1b/config.json", options);
  ASSERT_TRUE(model) << to_text(model.error());
  EXPECT_EQ(model->lifetimes, Lifetimes::Built);
  EXPECT_EQ(model->loss_begin, -1);                                               // its own
  EXPECT_EQ(model->values[model->inputs[1].index()].alias_of, model->inputs[0]);  // labels are the ids
  ASSERT_EQ(model->module_calls.size(), 16U);                                     // blocks
  EXPECT_EQ(model->modules[model->module_calls[3].module.index()].fqn, "model.layers.3");
  options.loss = "cross_entropy";
  const auto scripted = model_from_config(kModels + "llama-3.2-1b/config.json", options);
  ASSERT_TRUE(scripted);
  EXPECT_EQ(std::get<ValueRef>(scripted->ops[static_cast<std::size_t>(scripted->loss_begin)].args[0].value).id,
            scripted->outputs[1]);
}

TEST(Families, AnUnknownFamilyIsOfferedTheScriptThatExportsIt) {
  const auto model = model_from_config(kModels + "../pt2/unknown_family.json", {});
  ASSERT_FALSE(model);
  EXPECT_NE(model.error().hint.find("export-script"), std::string::npos);
  EXPECT_NE(model.error().got.find("mamba"), std::string::npos);
}

}  // namespace
}  // namespace foreshard
