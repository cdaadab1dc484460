#include "cli/calibrate/training_code.h"

#include <gtest/gtest.h>

namespace foreshard::cli {
namespace {

TrainingCode of(const char* source) { return training_code(source, /*decoder=*/true); }

TEST(TrainingCode, IsTorchtitansAtTheTimeOfThePullRequestOrMonth) {
  const TrainingCode first = of("torchtitan PR 165");
  EXPECT_FALSE(first.drops_logits);
  EXPECT_TRUE(first.casts_in_model);
  EXPECT_FALSE(first.expandable_segments);
  const TrainingCode spring = of("torchtitan PR 822");
  EXPECT_TRUE(spring.drops_logits);
  EXPECT_FALSE(spring.casts_in_model);
  EXPECT_TRUE(spring.expandable_segments);
  EXPECT_FALSE(spring.head_unit) << "embedding and head still stood in the root's unit";
  EXPECT_FALSE(spring.fused_norm);
  const TrainingCode autumn = of("torchtitan PR 1690");
  EXPECT_TRUE(autumn.head_unit);
  EXPECT_TRUE(autumn.fused_norm);
  EXPECT_FALSE(autumn.chunked_loss);
  EXPECT_TRUE(of("torchtitan PR 3914").chunked_loss);
  EXPECT_EQ(autumn.name, "torchtitan since 2025-08");
}

TEST(TrainingCode, AMonthSaysWhatAPullRequestSays) {
  EXPECT_EQ(of("torchtitan benchmarks/llama3_h100_202412 table 1"), of("torchtitan PR 822"));
  EXPECT_EQ(of("torchtitan benchmarks/asyncTP_llama3_h100_2025-06"), of("torchtitan PR 1300"));
  EXPECT_EQ(of("torchtitan commits e0634d9dc/b6a84e497 (2024-09)"), of("torchtitan PR 500"));
  EXPECT_FALSE(of("torchtitan commit 9dc418a8b (2024-07)").expandable_segments);
}

TEST(TrainingCode, ItsOwnNormWasAKernelOfTritonForOneMonth) {
  EXPECT_FALSE(of("torchtitan PR 165").fused_norm);
  EXPECT_TRUE(of("torchtitan PR 200").fused_norm);
  EXPECT_FALSE(of("torchtitan PR 300").fused_norm);
}

TEST(TrainingCode, ChoseTheNormByAKeyUntilPyTorchsTookItsPlace) {
  EXPECT_FALSE(of("torchtitan PR 200").norm_open) << "the default was Triton's";
  EXPECT_TRUE(of("torchtitan commit 9dc418a8b (2024-07)").norm_open);
  EXPECT_FALSE(of("torchtitan PR 985").norm_open);
}

TEST(TrainingCode, RanAnEarlyFsdp2UntilTheSummerOf2024) {
  EXPECT_TRUE(of("torchtitan PR 165").early_fsdp2);
  EXPECT_FALSE(of("torchtitan commit 9dc418a8b (2024-07)").early_fsdp2);
  EXPECT_FALSE(of("somebody").early_fsdp2);
}

TEST(TrainingCode, NotedUsesUntilItsScriptsAvoidedThat) {
  EXPECT_TRUE(of("torchtitan PR 165").notes_uses);
  EXPECT_FALSE(of("torchtitan PR 297").notes_uses);
}

TEST(TrainingCode, OfOthersIsTransformers) {
  EXPECT_EQ(of("llama-cookbook docs").name, "Transformers");
  EXPECT_FALSE(of("llama-cookbook docs").titan_model);
  EXPECT_FALSE(of("KempnerForge README").drops_logits);
  EXPECT_TRUE(of("llm-foundry README").drops_logits);
  EXPECT_EQ(of("KempnerForge benchmarks/mfu_scaling").tensor_plan.at("model.embed_tokens"), "replicate");
  EXPECT_TRUE(of("llm-foundry README").tensor_plan.empty());
  EXPECT_FALSE(training_code("torchtitan PR 1690", /*decoder=*/false).titan_model);
}

TEST(TrainingCode, OfOldKernelsHasAProfileOfItsOwn) {
  EXPECT_TRUE(of("llm-foundry scripts/train/benchmarking/README").old_kernels);
  EXPECT_TRUE(of("fms-fsdp README and PyTorch blog 2024-03").old_kernels);
  EXPECT_FALSE(of("NVIDIA-NeMo Automodel docs/performance-summary.mdx at 36044ad3d").old_kernels);
  EXPECT_TRUE(of("torchtitan PR 165").old_kernels);
  EXPECT_FALSE(of("torchtitan commit 6b2f67313 (2024-10)").old_kernels);
}

}  // namespace
}  // namespace foreshard::cli
