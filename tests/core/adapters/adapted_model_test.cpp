// What core/adapters makes of a plain model.
#include "core/adapters/adapted_model.h"

#include <gtest/gtest.h>

#include <algorithm>

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
  auto refused = adapted_model(small_llama(job), job);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().place, "adapters.targets");
  EXPECT_NE(refused.error().hint.find("q_proj"), std::string::npos);
  job.adapters.targets = {"embed_tokens"};
  EXPECT_EQ(adapted_model(small_llama(job), job).error().code, ErrorCode::Unsupported);
  job.adapters.targets = {"model.layers.?.mlp.*_proj"};
  job.adapters.rank = 49;
  refused = adapted_model(small_llama(job), job);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().place, "adapters.rank");
  EXPECT_EQ(refused.error().expected, "at most 48");
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
