// Single operators as modules in eval mode call them.
#include "exec/operators/operator_call.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "core/model/model.h"

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

}  // namespace
}  // namespace foreshard::exec
