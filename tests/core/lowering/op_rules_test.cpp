#include "core/lowering/op_rules.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "core/lowering/facts/operator_facts.h"
#include "core/lowering/lowering_autograd.h"
#include "core/lowering/table/rule_finder.h"

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

TEST(RuleFinder, FindsWhatASearchFindsHoweverNamesAlternate) {
  RuleFinder finder;
  for (int round = 0; round < 2; ++round) {
    for (const OpRule& rule : op_rules()) {
      EXPECT_EQ(finder.find(rule.name), &rule);
      EXPECT_EQ(finder.find(rule.name), &rule);
    }
  }
  EXPECT_EQ(finder.find("aten.subtract.Tensor"), find_op_rule("aten.sub.Tensor"));
  EXPECT_EQ(finder.find("aten.no_such_thing.default"), nullptr);
  EXPECT_EQ(finder.find("aten"), nullptr);
  EXPECT_EQ(finder.find(""), nullptr);
}

TEST(OpRules, ViewsHaveNoSavedTensors) {
  for (const OpRule& rule : op_rules()) {
    if (is_view_form(rule.form)) {
      EXPECT_EQ(rule.save_count, 0) << rule.name;
    }
  }
}

TEST(OpRules, WhatWorksInPlaceHasTheRuleOfItsSibling) {
  const OpRule* silu = find_op_rule("aten.silu_.default");
  ASSERT_NE(silu, nullptr);
  EXPECT_EQ(silu->form, OpForm::InPlace);
  EXPECT_EQ(silu->formula, OpFormula::Silu);
  EXPECT_EQ(find_op_rule("aten.leaky_relu_.default")->saves[0].result, true);  // a row of its own
  EXPECT_EQ(find_op_rule("aten.view_.default"), nullptr);
}

TEST(OpRules, WrittenFormulasReadWhatTheirRulesSave) {
  for (const OpRule& rule : op_rules()) {
    EXPECT_TRUE(rule.formula != OpFormula::Written || !rule.written.empty()) << rule.name;
    std::istringstream words{std::string(rule.written)};
    for (std::string word; words >> word;) {
      while (!word.empty() && (word.back() == ';' || word.back() == ':')) word.pop_back();
      const bool result = word[0] == 'r' && (word.size() == 1 || (word.size() == 2 && std::isdigit(word[1]) != 0));
      if (!result && (word[0] != 'x' || word.size() != 2 || std::isdigit(word[1]) == 0)) continue;
      const int index = word.size() == 2 ? word[1] - '0' : 0;
      const auto saves = std::span(rule.saves).first(rule.save_count);
      EXPECT_TRUE(std::any_of(saves.begin(), saves.end(),
                              [&](const SaveRule& save) { return save.result == result && save.index == index; }))
          << rule.name << " reads " << word;
    }
  }
}

TEST(OpRules, WrittenFormulasRunForTheArgumentsThatWantThem) {
  OperatorCase lerp;
  lerp.op.name = "aten.lerp.Tensor";
  lerp.op.args = {Arg{ParamRef{ParamId(0)}}, Arg{ParamRef{ParamId(1)}}, Arg{ParamRef{ParamId(2)}}};
  lerp.inputs = {
      {{3, 5}, {}, DType::Float32, true}, {{3, 5}, {}, DType::Float32, false}, {{5}, {}, DType::Float32, true}};
  lerp.results = {{{3, 5}, {}, DType::Float32, false}};
  const OperatorFacts facts = predict_operator(lerp);
  EXPECT_EQ(facts.backward, (std::vector<std::string>{"aten.fill_.Scalar", "aten.sub_.Tensor", "aten.mul.Tensor",
                                                      "aten.sub.Tensor", "aten.mul.Tensor", "aten.sum.dim_IntList"}));
  EXPECT_EQ(facts.kept.size(), 3u);
}

lowering::Layout bf16(std::initializer_list<std::int64_t> sizes) {
  lowering::Dims dims;
  for (const std::int64_t size : sizes) dims.push(size);
  return lowering::contiguous_layout(dims, DType::BFloat16);
}

TEST(OpRules, LargeReductionsOverRowsTakeBuffersAsRecorded) {
  // Gradient of a norm's weight, 4 x 1024 rows of 1024: allocations 33554432 and 32 in the recording m048.
  const auto made = lowering::reduce_workspace("aten.sum.dim_IntList", bf16({4, 1024, 1024}), {0, 1}, 132);
  EXPECT_EQ(made.buffer, 33554432);
  EXPECT_EQ(made.semaphores, 32);
  const auto largest = lowering::reduce_workspace("aten.amax.default", bf16({4, 1024, 1024}), {0, 1}, 132);
  EXPECT_EQ(2 * largest.buffer, made.buffer) << "values of bfloat16 meet, not sums in float32";
}

TEST(OpRules, ReductionsOverTheLastDimensionTakeNone) {
  EXPECT_EQ(lowering::reduce_workspace("aten.sum.dim_IntList", bf16({4, 1024, 1024}), {2}, 132).buffer, 0);
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

TEST(OpRules, ComplexNumbersAreAViewOfTheirPairs) {
  OperatorCase complex;
  complex.op.name = "aten.view_as_complex.default";
  complex.op.args = {Arg{ParamRef{ParamId(0)}}};
  complex.inputs = {{{3, 5, 2}, {20, 2, 1}, DType::Float32, true}};
  complex.results = {{{3, 5}, {}, DType::Complex64, false}};
  const OperatorFacts there = predict_operator(complex);
  EXPECT_EQ(there.results[0].alias_of, 0);
  EXPECT_EQ(there.results[0].tensor.strides, (Shape{10, 1}));
  EXPECT_TRUE(there.kept.empty());
  EXPECT_TRUE(there.backward.empty());
  OperatorCase real;
  real.op.name = "aten.view_as_real.default";
  real.op.args = complex.op.args;
  real.inputs = {{{5, 3}, {1, 5}, DType::Complex64, true}};
  real.results = {{{5, 3, 2}, {}, DType::Float32, false}};
  EXPECT_EQ(predict_operator(real).results[0].tensor.strides, (Shape{2, 10, 1}));
  real.inputs = {{{5, 3}, {1, 5}, DType::Complex128, true}};
  real.results = {{{5, 3, 2}, {}, DType::Float64, false}};
  EXPECT_EQ(predict_operator(real).results[0].tensor.strides, (Shape{2, 10, 1}));
}

TEST(OpRules, ARecurrentCellKeepsItsGatesAndSumsTheirBias) {
  OperatorCase cell;
  cell.op.name = "aten._thnn_fused_lstm_cell.default";
  for (std::int32_t i = 0; i < 5; ++i) cell.op.args.push_back(Arg{ParamRef{ParamId(i)}});
  const OperatorTensor gates{{3, 20}, {}, DType::Float32, true}, bias{{20}, {}, DType::Float32, true};
  cell.inputs = {gates, gates, {{3, 5}, {}, DType::Float32, true}, bias, bias};
  cell.results = {{{3, 5}, {}, DType::Float32, false}, {{3, 5}, {}, DType::Float32, false}, gates};
  const OperatorFacts facts = predict_operator(cell);
  EXPECT_EQ(facts.kept.size(), 7u);  // both gates, cell state, both biases; the new cell state and the activations
  EXPECT_EQ(std::count(facts.backward.begin(), facts.backward.end(), "aten.sum.dim_IntList"), 1);
  for (const OperatorFacts::Gradient& gradient : facts.gradients) EXPECT_TRUE(gradient.defined);
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
