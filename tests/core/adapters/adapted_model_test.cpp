// What core/adapters makes of a plain model.
#include "core/adapters/adapted_model.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "core/adapters/adapter_names.h"
#include "core/lowering/lowering.h"
#include "core/plan/build_plan.h"
#include "core/plan/units/differentiated.h"
#include "tests/core/adapters/small_models.h"

namespace foreshard {
namespace {

using testing::small_gpt2;
using testing::small_job;
using testing::small_llama;

Job lora_job() {
  Job job = small_job();
  job.adapters.kind = "lora";
  job.adapters.rank = 8;
  job.adapters.alpha = 16;
  return job;
}

std::vector<std::string> names_of(const Model& model, bool trainable) {
  std::vector<std::string> names;
  for (const ParamInfo& param : model.params)
    if (param.requires_grad == trainable) names.push_back(param.fqn);
  return names;
}

std::vector<std::string> ops_below(const Model& model, const std::string& fqn) {
  std::vector<std::string> ops;
  for (const Op& op : model.ops)
    if (model.modules[op.module.index()].fqn.starts_with(fqn)) ops.push_back(op.name);
  return ops;
}

TEST(AdaptedModel, NamesAndFreezesAsPeftDoes) {
  const Job job = lora_job();
  const Model model = adapted_model(small_llama(job), job).value();
  EXPECT_EQ(model.modules.front().class_name, "PeftModelForCausalLM");
  const std::string q = "base_model.model.model.layers.1.self_attn.q_proj";
  EXPECT_TRUE(model.find_module(q + ".base_layer").valid());
  const ParamInfo& down = model.params[model.find_param(q + ".lora_A.default.weight").index()];
  const ParamInfo& up = model.params[model.find_param(q + ".lora_B.default.weight").index()];
  EXPECT_EQ(down.shape, (Shape{8, 48}));
  EXPECT_EQ(up.shape, (Shape{48, 8}));
  EXPECT_EQ(down.dtype, DType::Float32);
  EXPECT_EQ(names_of(model, true).size(), 8U);  // two blocks, q and v, two matrices
  EXPECT_TRUE(model.find_param("base_model.model.model.layers.0.self_attn.k_proj.weight").valid());
}

TEST(AdaptedModel, ARankMayBeLargerThanALayer) {  // PEFT asks for no less: routers, heads of one number
  Job job = lora_job();
  job.adapters.rank = 32;
  const auto made = adapted_model(small_llama(job), job);
  ASSERT_TRUE(made) << to_text(made.error());
  const std::string v = "base_model.model.model.layers.0.self_attn.v_proj.lora_B.default.weight";
  EXPECT_EQ(made->params[made->find_param(v).index()].shape, (Shape{16, 32}));
}

TEST(AdaptedModel, ARankBeyondEveryLayerIsRefused) {
  Job job = lora_job();
  job.adapters.rank = 48;  // q_proj's, 48 by 48
  EXPECT_TRUE(adapted_model(small_llama(job), job));
  job.adapters.rank = 49;
  const auto refused = adapted_model(small_llama(job), job);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::OutOfRange);
  EXPECT_EQ(refused.error().place, "adapters.rank");
  EXPECT_EQ(refused.error().expected, "1 to 48");
}

TEST(AdaptedModel, WhatALayerIsCalledWithIsNamedUntilItReturns) {
  Job job = lora_job();
  job.adapters.targets = {"down_proj"};
  job.adapters.dropout = 0.1;  // what goes into the adapter is another tensor
  const Model model = adapted_model(small_llama(job), job).value();
  const ModuleId base = model.find_module("base_model.model.model.layers.0.mlp.down_proj.base_layer");
  const ModuleId layer = model.modules[base.index()].parent;
  std::int32_t last = -1;
  ValueId given;
  for (std::size_t i = 0; i < model.ops.size(); ++i) {
    const Op& op = model.ops[i];
    if (op.module == layer) last = static_cast<std::int32_t>(i);
    if (op.module != base || given.valid()) continue;
    if (const auto* value = std::get_if<ValueRef>(&op.args.front().value)) given = value->id;
  }
  ASSERT_TRUE(given.valid());
  EXPECT_EQ(model.values[given.index()].held, (Hold{Hold::Until::Op, last, {}}));
}

TEST(AdaptedModel, DropoutStandsBeforeTheFirstMatrix) {
  Job job = lora_job();
  job.adapters.dropout = 0.1;
  const Model model = adapted_model(small_llama(job), job).value();
  const std::string q = "base_model.model.model.layers.1.self_attn.q_proj";
  const std::string dropout = q + ".lora_dropout.default";
  EXPECT_EQ(model.modules[model.find_module(dropout).index()].class_name, "Dropout");
  EXPECT_EQ(ops_below(model, dropout), (std::vector<std::string>{"aten.native_dropout.default"}));
  const Model on_cpu = adapted_model(small_llama(job), job, ProgramDevice::Cpu).value();
  EXPECT_EQ(ops_below(on_cpu, dropout).size(), 4U);  // a mask made, drawn and divided, then a product
}

TEST(AdaptedModel, ModulesToSaveAreCopiedAndTheCopyIsCalled) {
  Job job = lora_job();
  job.adapters.modules_to_save = {"lm_head", "layers.0.mlp"};
  job.adapters.targets = {"all-linear"};
  job.adapters.dtype = DType::BFloat16;  // that of the copies, with which they share units
  const auto made = adapted_model(small_llama(job), job);
  ASSERT_TRUE(made) << to_text(made.error());
  const Model& model = *made;
  const std::string head = "base_model.model.lm_head";
  EXPECT_EQ(model.modules[model.find_module(head).index()].class_name, "ModulesToSaveWrapper");
  const auto trains = [&](const std::string& name) {
    return model.params[model.find_param(name).index()].requires_grad;
  };
  EXPECT_TRUE(trains(head + ".modules_to_save.default.weight"));
  EXPECT_FALSE(trains(head + ".original_module.weight"));
  EXPECT_TRUE(ops_below(model, head + ".original_module").empty());
  EXPECT_FALSE(ops_below(model, head + ".modules_to_save.default").empty());
  const std::string mlp = "base_model.model.model.layers.0.mlp";
  EXPECT_TRUE(trains(mlp + ".modules_to_save.default.up_proj.weight"));
  EXPECT_FALSE(model.find_module(mlp + ".modules_to_save.default.up_proj.lora_A").valid()) << "no adapter in a copy";
  EXPECT_TRUE(model.find_module("base_model.model.model.layers.1.mlp.up_proj.lora_A").valid());
  const std::string copy = head + ".modules_to_save.default.weight";
  EXPECT_EQ(plain_name(copy), "lm_head.weight");
  EXPECT_EQ(peft_name(copy), "base_model.model.lm_head.weight");
}

TEST(AdaptedModel, ATiedCopyStandsAlone) {
  Job job = lora_job();
  job.adapters.targets = {"c_attn"};
  job.adapters.modules_to_save = {"wte"};
  const Model model = adapted_model(small_gpt2(job), job).value();
  const ParamId copy = model.find_param("base_model.model.transformer.wte.modules_to_save.default.weight");
  const ParamId original = model.find_param("base_model.model.transformer.wte.original_module.weight");
  ASSERT_TRUE(copy.valid());
  EXPECT_FALSE(model.params[copy.index()].shares.valid());
  EXPECT_EQ(model.params[model.find_param("base_model.model.lm_head.weight").index()].shares, original);
}

TEST(AdaptedModel, ModulesToSaveThatMatchNothingAreToldTheNearest) {
  Job job = lora_job();
  job.adapters.modules_to_save = {"lm_haed"};
  const auto refused = adapted_model(small_llama(job), job);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().place, "adapters.modules_to_save");
  EXPECT_EQ(refused.error().hint, "the nearest is \"lm_head\"");
}

TEST(AdaptedModel, OneDtypeInAUnitNeedsNoCast) {
  const Job job = lora_job();  // bfloat16 base, float32 adapters, both cast to bfloat16 by fully_shard
  const Model model = adapted_model(small_llama(job), job).value();
  EXPECT_TRUE(model.params_cast);
  const std::vector<std::string> expected{
      "aten.t.default",  "aten.view.default", "aten.mm.default", "aten._unsafe_view.default",
      "aten.t.default",  "aten.view.default", "aten.mm.default", "aten._unsafe_view.default",
      "aten.t.default",  "aten.view.default", "aten.mm.default", "aten._unsafe_view.default",
      "aten.mul.Tensor", "aten.add.Tensor"};
  EXPECT_EQ(ops_below(model, "base_model.model.model.layers.0.self_attn.q_proj"), expected);
}

TEST(AdaptedModel, WithoutMixedPrecisionTheLayerCastsThereAndBack) {
  Job job = lora_job();
  job.fsdp.mixed_precision = MixedPrecision::none();
  const Model model = adapted_model(small_llama(job), job).value();
  const auto ops = ops_below(model, "base_model.model.model.layers.0.self_attn.q_proj");
  EXPECT_EQ(std::count(ops.begin(), ops.end(), "aten._to_copy.default"), 2);
  EXPECT_FALSE(model.params_cast);
}

TEST(AdaptedModel, AnAdapterOfItsOwnUnitIsSeenAsCreated) {
  Job job = lora_job();
  job.fsdp.runtime = Runtime::Fsdp1;
  job.fsdp.wrap.policy = WrapPolicyKind::Units;
  job.fsdp.wrap.units = {{"*.layers.0"}, {"*.layers.1"}, {"*.lora_A.default"}, {"*.lora_B.default"}};
  const auto refused = adapted_model(small_llama(job), job);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("got: float != c10::BFloat16"), std::string::npos);
  job.fsdp.mixed_precision.cast_forward_inputs = true;
  const Model model = adapted_model(small_llama(job), job).value();
  const auto ops = ops_below(model, "base_model.model.model.layers.0.self_attn.q_proj");
  EXPECT_EQ(std::count(ops.begin(), ops.end(), "aten._to_copy.default"), 2);  // up for the layer, down for the unit
}

TEST(AdaptedModel, AllLinearLeavesTheHeadOutAndTakesConv1D) {
  Job job = lora_job();
  job.adapters.targets = {"all-linear"};
  const Model llama = adapted_model(small_llama(job), job).value();
  EXPECT_EQ(names_of(llama, true).size(), 2U * 7 * 2);
  EXPECT_FALSE(llama.find_module("base_model.model.lm_head.base_layer").valid());
  const Model gpt2 = adapted_model(small_gpt2(job), job).value();
  EXPECT_EQ(names_of(gpt2, true).size(), 2U * 4 * 2);
  const auto id = gpt2.find_param("base_model.model.transformer.h.0.attn.c_attn.lora_B.default.weight");
  EXPECT_EQ(gpt2.params[id.index()].shape, (Shape{144, 8}));
  const ParamInfo& head = gpt2.params[gpt2.find_param("base_model.model.lm_head.weight").index()];
  EXPECT_EQ(gpt2.params[head.shares.index()].fqn, "base_model.model.transformer.wte.weight");
}

TEST(AdaptedModel, RefusesWithTheNearestName) {
  Job job = lora_job();
  job.adapters.targets = {"q_porj"};
  const auto refused = adapted_model(small_llama(job), job);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().place, "adapters.targets");
  EXPECT_NE(refused.error().hint.find("q_proj"), std::string::npos);
  job.adapters.targets = {"embed_tokens"};
  EXPECT_EQ(adapted_model(small_llama(job), job).error().code, ErrorCode::Unsupported);
}

TEST(AdaptedModel, ALossInPiecesStandsAroundPeftsModel) {
  Job job = lora_job();
  job.adapters.targets = {"all-linear"};
  job.model.loss = "chunked_cross_entropy";
  const Model model = adapted_model(small_llama(job), job).value();
  EXPECT_EQ(model.modules.front().class_name, "WithLoss");
  EXPECT_EQ(model.modules[1].fqn, "model");
  EXPECT_EQ(model.modules[1].class_name, "PeftModelForCausalLM");
  EXPECT_TRUE(model.find_param("model.base_model.model.model.layers.0.mlp.up_proj.lora_A.default.weight").valid());
  EXPECT_TRUE(model.find_param("model.base_model.model.lm_head.weight").valid()) << "the head is left out";
  EXPECT_EQ(model.regions.front().module.value, 0);
}

TEST(AdaptedModel, AMatrixIn4BitsExistsOnlyWhileItsProductRuns) {
  Job job = lora_job();
  job.adapters.base = "nf4";
  const Model model = adapted_model(small_llama(job), job).value();
  const std::string q = "base_model.model.model.layers.0.self_attn.q_proj";
  const ParamInfo& words = model.params[model.find_param(q + ".base_layer.weight").index()];
  EXPECT_EQ(words.shape, (Shape{48 * 48 / 4, 1})) << "four elements in a word of bfloat16";
  EXPECT_EQ(words.dtype, DType::BFloat16);
  EXPECT_EQ(model.params[model.find_param("base_model.model.lm_head.weight").index()].shape, (Shape{101, 48}));
  EXPECT_EQ(ops_below(model, q + ".base_layer"), std::vector<std::string>{"bitsandbytes.matmul_4bit.default"});
  EXPECT_EQ(ops_below(model, "base_model.model.model.layers.0.mlp.up_proj"),
            std::vector<std::string>{"bitsandbytes.matmul_4bit.default"})
      << "stored so whether it has an adapter or not";
  const auto state = std::count_if(model.buffers.begin(), model.buffers.end(), [&](const BufferInfo& buffer) {
    return buffer.fqn == q + ".base_layer.quant_state.absmax" && buffer.shape == Shape{48 * 48 / 64};
  });
  EXPECT_EQ(state, 1);
  job.model.dtype = DType::Float32;  // four bytes a word, which FSDP would cast
  EXPECT_EQ(adapted_model(small_llama(job), job).error().place, "adapters.base");
}

TEST(AdaptedModel, AMatrixIn8BitsIsNotForFsdp) {
  Job job = lora_job();
  job.adapters.base = "int8";
  for (const Runtime runtime : {Runtime::Fsdp1, Runtime::Fsdp2}) {
    job.fsdp.runtime = runtime;
    const auto refused = adapted_model(small_llama(job), job);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().place, "adapters.base");
  }
  job.fsdp.runtime = Runtime::None;
  const Model model = adapted_model(small_llama(job), job).value();
  const std::string q = "base_model.model.model.layers.0.self_attn.q_proj";
  const ParamInfo& integers = model.params[model.find_param(q + ".base_layer.weight").index()];
  EXPECT_EQ(integers.dtype, DType::Int8);
  EXPECT_EQ(integers.shape, (Shape{48, 48}));
  EXPECT_EQ(model.modules[model.find_module(q + ".base_layer").index()].class_name, "Linear8bitLt");
  EXPECT_EQ(ops_below(model, q + ".base_layer"), std::vector<std::string>{"bitsandbytes.matmul_8bit_lt.default"});
}

TEST(AdaptedModel, AFusedLossLeavesTheHeadAlone) {
  Job job = lora_job();
  job.adapters.targets = {"all-linear"};
  job.model.loss = "fused_linear_cross_entropy";
  const Model model = adapted_model(small_llama(job), job).value();
  EXPECT_EQ(model.modules.front().class_name, "PeftModelForCausalLM");
  EXPECT_FALSE(model.find_module("base_model.model.lm_head.base_layer").valid());
  EXPECT_TRUE(model.find_module("base_model.model.model.layers.0.mlp.up_proj.base_layer").valid());
}

/// Matrix products of one backward, all segments together.
std::int64_t backward_products(const Model& model, const Job& job) {
  const Plan plan = build_plan(model, job).value();
  const UnitTable table = build_units(model, job).value();
  std::vector<SegmentRange> ranges;
  for (const Segment& segment : plan.segments) ranges.push_back({segment.op_begin, segment.op_end, false, -1});
  const LoweredProgram lowered = lower(model, ranges, differentiated_params(table, job.fsdp.runtime)).value();
  std::int64_t products = 0;
  for (const SegmentInstance& instance : lowered.instances) {
    for (const Kernel& kernel : lowered.templates[static_cast<std::size_t>(instance.lowered)].backward.kernels)
      products += kernel.kind == KernelClass::Gemm ? 1 : 0;
  }
  return products;
}

TEST(AdaptedModel, ProductsWith4BitsAreRunBackToTheInputAlone) {
  Job job = lora_job();
  job.adapters.dtype = DType::BFloat16;
  const std::int64_t plain = backward_products(adapted_model(small_llama(job), job).value(), job);
  job.adapters.base = "nf4";
  EXPECT_EQ(backward_products(adapted_model(small_llama(job), job).value(), job), plain);
}

TEST(AdaptedModel, AReentrantCheckpointIsGivenAnInputThatRequiresAGradient) {
  Job job = lora_job();
  job.checkpointing.policy = CheckpointPolicy::Block;
  const auto leaves = [&] {
    const Model model = adapted_model(small_llama(job), job).value();
    return std::count_if(model.values.begin(), model.values.end(), [](const ValueInfo& v) { return v.requires_grad; });
  };
  EXPECT_EQ(leaves(), 0);
  job.checkpointing.reentrant = true;
  EXPECT_EQ(leaves(), 1);
}

TEST(AdaptedModel, Fsdp1ComputesTheFrozenWeightsGradientsFsdp2DoesNot) {
  Job job = lora_job();
  job.adapters.dtype = DType::BFloat16;
  const std::int64_t apart = backward_products(adapted_model(small_llama(job), job).value(), job);
  job.fsdp.runtime = Runtime::Fsdp1;
  const std::int64_t flat = backward_products(adapted_model(small_llama(job), job).value(), job);
  // Seven frozen products a block. The first norm's weight requires a gradient too, so that q, k and v and the two
  // adapters behind it hand theirs on.
  EXPECT_EQ(flat - apart, 2 * 7 + 5);
}

}  // namespace
}  // namespace foreshard
