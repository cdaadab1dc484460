// Single operators as modules in eval mode call them.
#include "exec/operators/operator_call.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <tuple>

#include "core/model/model.h"
#include "exec/operators/unwritten_values.h"

namespace foreshard::exec {
namespace {

/// A tensor first, then constants.
Op op_of(const std::string& name, std::vector<Arg> rest) {
  Op op;
  op.name = name;
  op.args.push_back(Arg{ValueRef{ValueId(std::size_t{0})}});
  for (Arg& arg : rest) op.args.push_back(std::move(arg));
  op.out.push_back(ValueId(std::size_t{1}));
  return op;
}

at::Tensor run(const Op& op, const at::Tensor& input, bool training) {
  struct Lookup final : TensorLookup {
    explicit Lookup(at::Tensor tensor) : input(std::move(tensor)) {}
    at::Tensor value(ValueId) override { return input; }
    at::Tensor param(ParamId) override { return {}; }
    at::Tensor buffer(std::int32_t) override { return {}; }
    at::Tensor input;
  } lookup(input);
  const auto call = prepare_call(op);
  EXPECT_TRUE(call) << call.error();
  torch::jit::Stack stack;
  push_arguments(call->arguments, lookup, stack);
  run_call(*call, 7, stack, training);
  at::Tensor first;
  take_results(stack, [&](at::Tensor tensor) {
    if (!first.defined()) first = std::move(tensor);
  });
  return first;
}

TEST(OperatorCall, WhatHooksKeepOnTheHostIsARemark) {  // save_on_cpu around it when it was captured
  Op op = op_of("aten.relu.default", {});
  const Arg places{ArgList{Arg{std::int64_t{-1}}}};
  op.kwargs = {{"saved_on_host", places}, {"saved_contiguous", Arg{true}}, {"region_on_host", places}};
  EXPECT_TRUE(run(op, at::full({2}, -3.0), true).equal(at::zeros({2})));
  op.kwargs.push_back({"saved_elsewhere", places});
  EXPECT_FALSE(prepare_call(op));
}

TEST(OperatorCall, DropoutDropsNothingInEvalMode) {
  const at::Tensor x = at::arange(1, 101, at::kFloat);
  for (const Op& op : {op_of("aten.native_dropout.default", {Arg{0.5}, Arg{true}}),
                       op_of("aten.dropout.default", {Arg{0.5}, Arg{true}})}) {
    EXPECT_FALSE(run(op, x, true).equal(x)) << op.name;
    EXPECT_TRUE(run(op, x, false).equal(x)) << op.name;
  }
}

TEST(OperatorCall, AMaskThatIsDrawnAndDividedIsOnesInEvalMode) {
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    for (const double p : {0.9, 0.5, 0.1}) {
      const at::Tensor mask = run(op_of("aten.bernoulli_.float", {Arg{p}}), at::empty({64}, type), false);
      EXPECT_TRUE(mask.div_(p).equal(at::ones({64}, type))) << p;
    }
  }
  const at::Tensor drawn = run(op_of("aten.bernoulli_.float", {Arg{0.5}}), at::empty({64}), true);
  EXPECT_GT(drawn.sum().item<double>(), 0);
  EXPECT_LT(drawn.sum().item<double>(), 64);
}

/// Tensors in the order of values, undefined ones as None.
at::Tensor first_result(const std::string& name, const std::vector<at::Tensor>& tensors, const std::vector<Arg>& rest) {
  Op op;
  op.name = name;
  for (std::size_t i = 0; i < tensors.size(); ++i)
    op.args.push_back(tensors[i].defined() ? Arg{ValueRef{ValueId(i)}} : Arg{});
  for (const Arg& arg : rest) op.args.push_back(arg);
  struct Lookup final : TensorLookup {
    explicit Lookup(const std::vector<at::Tensor>& all) : tensors(all) {}
    at::Tensor value(ValueId id) override { return tensors[id.index()]; }
    at::Tensor param(ParamId) override { return {}; }
    at::Tensor buffer(std::int32_t) override { return {}; }
    const std::vector<at::Tensor>& tensors;
  } lookup(tensors);
  const auto call = prepare_call(op);
  EXPECT_TRUE(call) << name << ": " << call.error();
  if (!call) return {};
  EXPECT_NE(call->equivalent, nullptr);
  torch::jit::Stack stack;
  push_arguments(call->arguments, lookup, stack);
  run_call(*call, 7, stack);
  return stack.at(0).toTensor();
}

TEST(OperatorCall, AttentionOfTheCardIsTheHostsAttention) {
  const at::Tensor q = at::randn({2, 4, 6, 8}), k = at::randn({2, 2, 6, 8}), v = at::randn({2, 2, 6, 8});
  const at::Tensor grouped = at::scaled_dot_product_attention(q, k, v, {}, 0.0, true, 0.3, true);
  Op op = op_of("aten._scaled_dot_product_flash_attention.default", {});
  op.args = {
      Arg{ValueRef{ValueId(0)}}, Arg{ValueRef{ValueId(1)}}, Arg{ValueRef{ValueId(2)}}, Arg{0.0}, Arg{true}, Arg{false}};
  op.kwargs = {{"scale", Arg{0.3}}};
  const auto call = prepare_call(op);
  ASSERT_TRUE(call) << call.error();
  torch::jit::Stack stack{q, k, v, 0.0, true, false, 0.3};
  run_call(*call, 0, stack);
  EXPECT_TRUE(stack.at(0).toTensor().equal(grouped));

  const at::Tensor full = at::randn({2, 4, 6, 8}), bias = at::randn({2, 4, 6, 6});
  const at::Tensor masked = at::scaled_dot_product_attention(q, full, full, bias);
  EXPECT_TRUE(at::allclose(first_result("aten._scaled_dot_product_efficient_attention.default", {q, full, full, bias},
                                        {Arg{true}, Arg{0.0}, Arg{false}}),
                           masked));
  EXPECT_TRUE(at::allclose(first_result("aten._scaled_dot_product_efficient_attention.default", {q, full, full, {}},
                                        {Arg{false}, Arg{0.0}, Arg{true}}),
                           at::scaled_dot_product_attention(q, full, full, {}, 0.0, true)));
}

TEST(OperatorCall, RecurrentCellsOfTheCardAreTheHostsCells) {
  const at::Tensor x = at::randn({3, 5}), h = at::randn({3, 4}), c = at::randn({3, 4});
  const auto cell_of = [&](std::int64_t gates, bool bias) {
    const at::Tensor wi = at::randn({gates * 4, 5}), wh = at::randn({gates * 4, 4});
    const at::Tensor bi = bias ? at::randn({gates * 4}) : at::Tensor(),
                     bh = bias ? at::randn({gates * 4}) : at::Tensor();
    const at::Tensor input = x.mm(wi.t()), hidden = h.mm(wh.t());
    if (gates == 3) {
      EXPECT_TRUE(at::allclose(first_result("aten._thnn_fused_gru_cell.default", {input, hidden, h, bi, bh}, {}),
                               at::gru_cell(x, h, wi, wh, bi, bh), 1e-5, 1e-6));
    } else {
      EXPECT_TRUE(at::allclose(first_result("aten._thnn_fused_lstm_cell.default", {input, hidden, c, bi, bh}, {}),
                               std::get<0>(at::lstm_cell(x, {h, c}, wi, wh, bi, bh)), 1e-5, 1e-6));
    }
  };
  for (const bool bias : {false, true}) {
    cell_of(3, bias);
    cell_of(4, bias);
  }
}

TEST(OperatorCall, WhatTheHostCannotRunIsSaid) {
  Op op = op_of("opaque.mine.gate", {});
  op.opaque = 0;
  EXPECT_NE(prepare_call(op).error().find("opaque"), std::string::npos);
  EXPECT_NE(prepare_call(op_of("aten._cudnn_init_dropout_state.default", {})).error(), "");
  Op number = op_of("aten.mul.Tensor", {Arg{std::nan("")}});
  EXPECT_NE(prepare_call(number).error().find("number on the host"), std::string::npos);
}

Op writes_into(const std::string& name, std::size_t value, std::size_t out) {
  Op op;
  op.name = name;
  op.args = {Arg{ValueRef{ValueId(value)}}};
  op.out = {ValueId(out)};
  return op;
}

/// torch.tensor([[0.5, 2.0]]) of a script, brought to the device.
Op literal(ArgList values) {
  Op op;
  op.name = "aten.empty.memory_format";
  op.args = {Arg{ArgList{Arg{std::int64_t{1}}, Arg{std::int64_t{2}}}}};
  op.kwargs = {{"values", Arg{std::move(values)}}};
  op.out = {ValueId(0)};
  return op;
}

TEST(OperatorCall, WhatAScriptWroteDownStandsInItsTensor) {
  EXPECT_TRUE(run(literal({Arg{0.5}, Arg{std::int64_t{2}}}), {}, true).equal(at::tensor({0.5F, 2.0F}).view({1, 2})));
  Op whole = literal({Arg{std::int64_t{1} << 60}, Arg{true}});
  whole.kwargs.push_back({"dtype", Arg{DType::Int64}});
  EXPECT_TRUE(run(whole, {}, true).equal(at::tensor({std::int64_t{1} << 60, std::int64_t{1}}).view({1, 2})));
  const auto wrong = prepare_call(literal({Arg{0.5}}));
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error(), "values holds 1 numbers, which are not those of a tensor of [1, 2]");
  const auto text = prepare_call(literal({Arg{0.5}, Arg{std::string("two")}}));
  ASSERT_FALSE(text);
  EXPECT_EQ(text.error(), "values holds what is neither a number nor a truth value");
}

TEST(UnwrittenValues, MemoryIsWrittenBeforeItIsRead) {
  Op empty;
  empty.name = "aten.empty.memory_format";
  empty.args = {Arg{ArgList{Arg{std::int64_t{4}}}}};
  empty.out = {ValueId(0)};
  Op view = writes_into("aten.view.default", 0, 1);
  view.args.push_back(Arg{ArgList{Arg{std::int64_t{2}}, Arg{std::int64_t{2}}}});
  const Op zero = writes_into("aten.zero_.default", 1, 1), read = writes_into("aten.neg.default", 0, 2),
           like = writes_into("aten.zeros_like.default", 0, 3);
  const auto first_read = [](const std::vector<Op>& ops) {
    std::vector<OperatorCall> calls;
    for (const Op& op : ops) calls.push_back(prepare_call(op).value());
    return first_unwritten_read(calls);
  };
  EXPECT_FALSE(first_read({empty, view, zero, read})) << "written through a view";
  EXPECT_FALSE(first_read({empty, view, like})) << "only its shape is asked for";
  Op said = empty;
  said.args = literal({}).args;
  said.kwargs = {{"values", Arg{ArgList{Arg{0.5}, Arg{2.0}}}}};
  EXPECT_FALSE(first_read({said, read})) << "what the script wrote down";
  const auto unwritten = first_read({empty, view, like, read});
  ASSERT_TRUE(unwritten);
  EXPECT_EQ(unwritten->op, 3u);
  EXPECT_EQ(unwritten->maker, 0u);
}

}  // namespace
}  // namespace foreshard::exec
