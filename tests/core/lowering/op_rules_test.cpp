#include "core/model/op_rules.h"

#include <gtest/gtest.h>

#include <set>

#include "core/model/lowering_autograd.h"
#include "core/model/operator_facts.h"

namespace foreshard {
namespace {

TEST(OpRules, EveryOperatorHasOneRow) {
  std::set<std::string_view> names;
  for (const OpRule& rule : op_rules()) {
    EXPECT_TRUE(names.insert(rule.name).second) << rule.name;
    EXPECT_EQ(find_op_rule(rule.name), &rule);
  }
  EXPECT_EQ(find_op_rule("aten.no_such_thing.default"), nullptr);
  EXPECT_EQ(default_op_rule().formula, OpFormula::Unknown);
}

TEST(OpRules, ViewsHaveNoSavedTensors) {
  for (const OpRule& rule : op_rules()) {
    if (is_view_form(rule.form)) {
      EXPECT_EQ(rule.save_count, 0) << rule.name;
    }
  }
}

lowering::Layout bf16(std::initializer_list<std::int64_t> sizes) {
  lowering::Dims dims;
  for (const std::int64_t size : sizes) dims.push(size);
  return lowering::contiguous_layout(dims, DType::BFloat16);
}

TEST(OpRules, LargeReductionsOverRowsTakeBuffersAsRecorded) {
  // Gradient of a norm's weight, 4 x 1024 rows of 1024: allocations 33554432 and 32 in the recording m048.
  const auto made = lowering::reduce_workspace(bf16({4, 1024, 1024}), {0, 1}, 132);
  EXPECT_EQ(made.buffer, 33554432);
  EXPECT_EQ(made.semaphores, 32);
}

TEST(OpRules, ReductionsOverTheLastDimensionTakeNone) {
  EXPECT_EQ(lowering::reduce_workspace(bf16({4, 1024, 1024}), {2}, 132).buffer, 0);
}

TEST(OpRules, AReshapeThatCopiesIsContiguous) {
  OperatorCase reshape;
  reshape.op.name = "aten.reshape.default";
  reshape.op.args = {Arg{ParamRef{ParamId(0)}}, Arg{ArgList{Arg{std::int64_t{2}}, Arg{std::int64_t{15}}}}};
  reshape.inputs = {{{2, 3, 5}, {15, 1, 3}, DType::Float32, false}};
  reshape.results = {{{2, 15}, {}, DType::Float32, false}};
  EXPECT_EQ(predict_operator(reshape).results[0].tensor.strides, (Shape{15, 1}));
}

TEST(OpRules, AMeanSquaredErrorHoldsAllItsElements) {
  OperatorCase loss;
  loss.op.name = "aten.mse_loss.default";
  loss.op.args = {Arg{ParamRef{ParamId(0)}}, Arg{ParamRef{ParamId(1)}}};
  loss.inputs = {{{2, 15}, {}, DType::Float32, true}, {{2, 15}, {}, DType::Float32, false}};
  loss.results = {{{}, {}, DType::Float32, false}};
  EXPECT_EQ(predict_operator(loss).held_bytes, 2 * 15 * 4);
}

TEST(OpRules, DifferencesNameWhatBothSay) {
  OperatorFacts torch, rule;
  torch.kept = {{KeptStorage::Of::Input, 0, 48}};
  torch.backward = {"aten.mul.Tensor"};
  const auto lines = differences(torch, rule);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0], "kept for backward: PyTorch input 0 (48 bytes), rule nothing");
  EXPECT_EQ(lines[1], "backward runs: PyTorch aten.mul.Tensor, rule nothing");
}

TEST(OpRules, ViewsFollowStridesOrAreRefused) {
  lowering::Layout transposed = bf16({2, 8, 4, 16});
  std::swap(transposed.sizes[1], transposed.sizes[2]);
  std::swap(transposed.strides[1], transposed.strides[2]);
  lowering::Dims strides;
  EXPECT_FALSE(lowering::view_strides(transposed, bf16({2, 4, 128}).sizes, strides));
  EXPECT_TRUE(lowering::view_strides(transposed, bf16({2, 4, 8, 4, 4}).sizes, strides));
  EXPECT_EQ(strides[3], 4);
  EXPECT_FALSE(transposed.contiguous());
  EXPECT_TRUE(transposed.dense());
}

}  // namespace
}  // namespace foreshard
