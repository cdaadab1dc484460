// What scripts put around a decoder: losses over pieces of the sequence, losses by counted labels, padding masks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "core/model/families/config_model.h"
#include "core/model/sources/load_model.h"

namespace foreshard {
namespace {

const std::string kModels = std::string(FORESHARD_TEST_DATA) + "/models/";

std::int64_t count(const Model& model, std::string_view op) {
  return std::count_if(model.ops.begin(), model.ops.end(), [&](const Op& o) { return o.name == op; });
}

class ScriptLosses : public testing::Test {
 protected:
  ScriptLosses() {
    options.batch = 2;
    options.seq = 24;
    options.seq_given = true;
  }
  Model built(const std::string& name = "llama-3.2-1b") const {
    auto model = model_from_config(kModels + name + "/config.json", options, program);
    EXPECT_TRUE(model) << to_text(model.error());
    return model ? std::move(*model) : Model();
  }
  ModelOptions options;
  ProgramOptions program;
};

TEST_F(ScriptLosses, PiecesAreRegionsOfTheWrapperThatHoldsTheModel) {
  options.loss = "chunked_cross_entropy";
  options.loss_chunks = 5;  // of 24 positions: 5, 5, 5, 5, 4
  const Model model = built();
  EXPECT_EQ(model.modules[0].class_name, "WithLoss");
  EXPECT_EQ(model.modules[1].fqn, "model");
  EXPECT_EQ(model.params[0].fqn, "model.model.embed_tokens.weight");
  ASSERT_EQ(model.regions.size(), 5U);
  EXPECT_EQ(count(model, "aten.nll_loss_forward.default"), 5);
  EXPECT_EQ(model.loss_begin, -1) << "the wrapper's forward works it out";
  const Region& last = model.regions.back();
  EXPECT_EQ(last.module.value, 0);
  ASSERT_EQ(last.args.size(), 2U);
  EXPECT_EQ(model.values[last.args[0].index()].shape, (Shape{2, 4, 2048}));
  EXPECT_EQ(model.values[last.args[1].index()].shape, (Shape{2, 4}));
  for (const Op& op : model.ops) {
    if (op.name == "aten.nll_loss_forward.default") {
      EXPECT_GE(op.region, 0);
      EXPECT_EQ(std::get<std::int64_t>(op.args[3].value), 2) << "a sum";
    }
  }
  EXPECT_EQ(model.outputs.size(), 1U);
}

TEST_F(ScriptLosses, LogitsThatAreKeptAreNamedUntilTheForwardReturns) {
  options.loss = "chunked_logits_cross_entropy";
  options.loss_chunks = 4;
  const Model model = built();
  EXPECT_TRUE(model.regions.empty());
  std::int64_t held = 0;
  for (const ValueInfo& value : model.values)
    held += value.held.until == Hold::Until::Forward && value.shape.size() == 3 && value.shape[2] == 128256 ? 1 : 0;
  EXPECT_EQ(held, 4);
  std::vector<std::int32_t> calls;  // one after the other, with nothing in between: told apart by their numbers
  for (const Op& op : model.ops)
    if (op.name == "aten.mm.default" && model.modules[op.module.index()].fqn == "model.lm_head")
      calls.push_back(op.call);
  EXPECT_EQ(calls, (std::vector<std::int32_t>{0, 1, 2, 3}));
}

TEST_F(ScriptLosses, AFusedLossTakesTheHeadsMatrixAndHandsOnNoLogits) {
  options.loss = "fused_linear_cross_entropy";
  const Model model = built();
  EXPECT_EQ(model.outputs.size(), 1U);
  EXPECT_EQ(model.loss_begin, -1) << "the model's forward works it out";
  const auto fused = std::find_if(model.ops.begin(), model.ops.end(),
                                  [](const Op& op) { return op.name.starts_with("liger_kernel."); });
  ASSERT_NE(fused, model.ops.end());
  const ParamId matrix = std::get<ParamRef>(fused->args[1].value).id;
  EXPECT_EQ(model.params[matrix.index()].shape, (Shape{128256, 2048}));
  EXPECT_EQ(model.values[std::get<ValueRef>(fused->args[2].value).id.index()].shape, (Shape{2 * 24}));
  for (const ValueInfo& value : model.values) EXPECT_FALSE(!value.shape.empty() && value.shape.back() == 128256);
  program.device = ProgramDevice::Cpu;  // where the kernel does not run: whole logits, the same sum
  EXPECT_EQ(count(built(), "aten.nll_loss_forward.default"), 1);
}

TEST_F(ScriptLosses, LinearLayersMultiplyInFloat8ButTheHead) {
  options.float8 = "rowwise";
  const Model model = built();
  EXPECT_EQ(count(model, "torchao.matmul_float8_rowwise.default"), 16 * 7);
  EXPECT_EQ(count(model, "aten.mm.default"), 1);
  options.float8 = "rowwise_with_gw_hp";
  EXPECT_EQ(count(built(), "torchao.matmul_float8_rowwise_with_gw_hp.default"), 16 * 7);
  program.device = ProgramDevice::Cpu;
  const auto host = model_from_config(kModels + "llama-3.2-1b/config.json", options, program);
  ASSERT_FALSE(host);
  EXPECT_EQ(host.error().place, "model.float8");
}

TEST_F(ScriptLosses, MatricesOfEvenShardsAreGatheredIn8Bits) {
  options.float8 = "tensorwise";
  program.gathers_float8 = true;
  program.even_shards = 512;  // k and v have 512 rows, the feed-forward 8192, the others 2048
  const Model all = built();
  EXPECT_EQ(count(all, "torchao.matmul_float8_gathered.default"), 16 * 7);
  EXPECT_EQ(std::count_if(all.params.begin(), all.params.end(),
                          [](const ParamInfo& info) { return info.gathered.has_value(); }),
            16 * 7);
  program.even_shards = 1024;
  const Model most = built();
  EXPECT_EQ(count(most, "torchao.matmul_float8_gathered.default"), 16 * 5);
  EXPECT_EQ(count(most, "torchao.matmul_float8_tensorwise.default"), 16 * 2) << "k and v are cast where they are used";
}

TEST_F(ScriptLosses, PerTokenIsASumDividedByWhatTheScriptCounted) {
  options.loss = "per_token";
  const Model model = built();
  ASSERT_EQ(model.inputs.size(), 3U);
  const Op& last = model.ops.back();
  EXPECT_EQ(last.name, "aten.div.Tensor");
  EXPECT_EQ(std::get<ValueRef>(last.args[1].value).id, model.inputs[2]);
  EXPECT_TRUE(model.values[model.inputs[2].index()].shape.empty());
}

TEST_F(ScriptLosses, MaskedLabelsAreATensorOfTheirOwn) {
  EXPECT_TRUE(built().values[1].alias_of.valid());
  program.masked_labels = true;
  EXPECT_FALSE(built().values[1].alias_of.valid());
}

TEST_F(ScriptLosses, APaddingMaskIsAskedTwiceAndGivenToEveryLayer) {
  program.compute_dtype = DType::BFloat16;
  const std::int64_t reads = count(built(), "aten._local_scalar_dense.default");
  options.attention_mask = true;
  const Model padded = built();
  // Asked twice whether it hides anything; whether rows are packed is not asked any more.
  EXPECT_EQ(count(padded, "aten._local_scalar_dense.default"), reads - 1 + 2);
  EXPECT_EQ(count(padded, "aten._scaled_dot_product_efficient_attention.default"), 16);
  EXPECT_EQ(count(padded, "aten._scaled_dot_product_flash_attention.default"), 0);
  program.full_mask = true;
  const Model full = built();
  EXPECT_EQ(count(full, "aten._local_scalar_dense.default"), reads - 1 + 1);
  EXPECT_EQ(count(full, "aten._scaled_dot_product_flash_attention.default"), 16);
}

TEST_F(ScriptLosses, PackedRowsAreToldApartByAMaskOfTheirPositions) {
  program.compute_dtype = DType::BFloat16;
  const Model plain = built();
  options.packed = true;
  const Model packed = built();
  ASSERT_EQ(packed.inputs.size(), plain.inputs.size() + 1);
  EXPECT_EQ(packed.values[packed.inputs.back().index()].name, "position_ids");
  EXPECT_EQ(count(packed, "aten._local_scalar_dense.default"), count(plain, "aten._local_scalar_dense.default"));
  EXPECT_EQ(count(packed, "aten._scaled_dot_product_efficient_attention.default"), 16);
  EXPECT_EQ(count(packed, "aten._scaled_dot_product_flash_attention.default"), 0);
  options.attention_mask = true;
  const auto both = model_from_config(kModels + "llama-3.2-1b/config.json", options);
  ASSERT_FALSE(both);
  EXPECT_EQ(both.error().place, "model.packed");
}

TEST_F(ScriptLosses, WhatIsNotWrittenForAFamilyIsRefusedByName) {
  options.attention_mask = true;
  const auto masked = model_from_config(kModels + "vit-tiny/config.json", options);
  ASSERT_FALSE(masked);
  EXPECT_EQ(masked.error().place, "model.attention_mask");
  options.attention_mask = false;
  options.loss = "chunked_cross_entropy";
  const auto capped = model_from_config(kModels + "gemma2-tiny/config.json", options);
  ASSERT_FALSE(capped) << "its logits are capped behind the head";
  EXPECT_EQ(capped.error().place, "model.loss");
}

}  // namespace
}  // namespace foreshard
