// W6 in the program: batch norms compute in float32 between two casts.
#include "core/plan/units/full_precision.h"

#include <gtest/gtest.h>

#include "tests/core/lowering/toy_program.h"

namespace foreshard {
namespace {

Model norm_between_activations(DType dtype, const char* class_name = "BatchNorm1d") {
  testing::ToyProgram toy;
  toy.input("x", {8, 4}, dtype);
  toy.op("aten.relu.default", {"x"}, {{"before", {8, 4}, dtype}});
  toy.module("norm", class_name);
  toy.param("norm.weight", {4});
  toy.op("aten.native_batch_norm.default", {"before", "%norm.weight"},
         {{"made", {8, 4}, dtype}, {"mean", {4}}, {"scale", {4}}});
  toy.module("", "Root");
  toy.op("aten.tanh.default", {"made"}, {{"after", {8, 4}, dtype}});
  toy.op("aten.sum.default", {"after"}, {{"loss", {}, dtype}});
  Model model = toy.finish("loss");
  model.loss_begin = 3;
  model.values[model.ops[2].out[0].index()].held = {Hold::Until::Op, 3, {}};
  return model;
}

Job flat_job() {
  Job job;
  job.fsdp.runtime = Runtime::Fsdp1;
  job.fsdp.mixed_precision.param = DType::BFloat16;
  return job;
}

TEST(FullPrecision, ANormOfBfloat16ComputesInFloat32BetweenTwoCasts) {
  const Model before = norm_between_activations(DType::BFloat16);
  const Model model = with_full_precision_norms(before, flat_job());
  ASSERT_EQ(model.ops.size(), before.ops.size() + 2);
  const Op &in = model.ops[1], &norm = model.ops[2], &out = model.ops[3];
  EXPECT_EQ(in.name, "aten._to_copy.default");
  EXPECT_EQ(out.name, "aten._to_copy.default");
  EXPECT_EQ(model.modules[in.module.index()].fqn, "norm");
  const auto dtype = [&](const Op& op) { return model.values[op.out[0].index()].dtype; };
  EXPECT_EQ(dtype(in), DType::Float32);
  EXPECT_EQ(dtype(norm), DType::Float32);
  EXPECT_EQ(dtype(out), DType::BFloat16);
  EXPECT_EQ(std::get<ValueRef>(norm.args[0].value).id, in.out[0]);
  EXPECT_EQ(std::get<ValueRef>(out.args[0].value).id, norm.out[0]);
  EXPECT_EQ(out.out[0], before.ops[1].out[0]);  // whoever reads it still does
}

TEST(FullPrecision, WhatIsSaidOfOperatorsMovesWithThem) {
  const Model model = with_full_precision_norms(norm_between_activations(DType::BFloat16), flat_job());
  EXPECT_EQ(model.loss_begin, 5);
  EXPECT_EQ(model.values[model.ops[4].out[0].index()].held, (Hold{Hold::Until::Op, 5, {}}));
  // The unit's forward names its argument until it returns.
  EXPECT_EQ(model.values[model.ops[0].out[0].index()].held, (Hold{Hold::Until::Op, 3, {}}));
}

TEST(FullPrecision, NothingIsCastWhereNoSuchUnitIsMade) {
  const Model low = norm_between_activations(DType::BFloat16), wide = norm_between_activations(DType::Float32);
  EXPECT_EQ(with_full_precision_norms(wide, flat_job()), wide);
  const Model layer = norm_between_activations(DType::BFloat16, "MyNorm");
  EXPECT_EQ(with_full_precision_norms(layer, flat_job()), layer);
  Job job = flat_job();
  job.fsdp.wrap.policy = WrapPolicyKind::Units;  // by hand
  EXPECT_EQ(with_full_precision_norms(low, job), low);
  job = flat_job();
  job.fsdp.mixed_precision = MixedPrecision::none();
  EXPECT_EQ(with_full_precision_norms(low, job), low);
  job = flat_job();
  job.fsdp.runtime = Runtime::Fsdp2;
  EXPECT_EQ(with_full_precision_norms(low, job), low);
}

}  // namespace
}  // namespace foreshard
