#include "core/operators/program_writer.h"

#include <gtest/gtest.h>

namespace foreshard::families {
namespace {

struct Writing {
  Model model;
  ProgramWriter w;
  Writing() : w((model.modules.push_back({"", "Toy", {}, {}, {}, {}, {}}), model), DType::BFloat16, {}) {
    w.enter(ModuleId(0));
  }
};

TEST(ProgramWriter, ElementwiseResultsKeepTheLayoutOfTheirInputs) {
  Writing t;
  const Tensor x = t.w.input("x", {2, 128, 32, 64}, DType::BFloat16);
  const Tensor rows = t.w.transpose(x, 1, 2);
  EXPECT_EQ(rows.strides, (Dims{262144, 64, 2048, 1}));
  const Tensor cos = t.w.input("cos", {1, 1, 128, 64}, DType::BFloat16);
  EXPECT_EQ(t.w.mul(rows, cos).strides, rows.strides);  // broadcast operand does not decide
  const Tensor half = t.w.slice(rows, 3, 0, 32);
  EXPECT_EQ(t.w.unary("aten.neg.default", half).strides, (Dims{131072, 32, 1024, 1}));  // same order, no gaps
}

TEST(ProgramWriter, ReshapesCopyOnlyWhereNoViewExists) {
  Writing t;
  const Tensor x = t.w.input("x", {2, 128, 4, 8}, DType::Float32);
  const Tensor heads = t.w.transpose(x, 1, 2);
  EXPECT_FALSE(ProgramWriter::can_view(heads, {8, 128, 8}));
  const Tensor single = t.w.transpose(t.w.input("y", {1, 128, 4, 8}, DType::Float32), 1, 2);
  EXPECT_TRUE(ProgramWriter::can_view(single, {4, 128, 8}));  // a batch of one merges with any dimension
  const Tensor keys = t.w.transpose(single, 2, 3);
  t.model.ops.clear();
  t.w.matmul(single, keys);
  std::vector<std::string> names;
  for (const Op& op : t.model.ops) names.push_back(op.name);
  EXPECT_EQ(names, (std::vector<std::string>{"aten.expand.default", "aten.view.default", "aten.expand.default",
                                             "aten.view.default", "aten.bmm.default", "aten._unsafe_view.default"}));
}

TEST(ProgramWriter, DropoutIsOneKernelOnAGpuAndFourElsewhere) {
  Writing t;
  const Tensor x = t.w.input("x", {2, 3}, DType::BFloat16);
  t.w.dropout(x, 0.0);
  EXPECT_TRUE(t.model.ops.empty());
  t.w.dropout(x, 0.1);
  ASSERT_EQ(t.model.ops.size(), 1u);
  EXPECT_EQ(t.model.values[t.model.ops[0].out[1].index()].dtype, DType::Bool);
  ProgramWriter elsewhere(t.model, DType::BFloat16, {.fused_dropout = false});
  elsewhere.enter(ModuleId(0));
  elsewhere.dropout(x, 0.1);
  EXPECT_EQ(t.model.ops.size(), 5u);
  EXPECT_EQ(t.model.ops[2].out[0], t.model.ops[1].out[0]);  // bernoulli_ works in place
}

TEST(ProgramWriter, MixedTypesPromoteAsInPyTorch) {
  Writing t;
  const Tensor wide = t.w.input("a", {4}, DType::Float32), narrow = t.w.input("b", {4}, DType::BFloat16),
               whole = t.w.input("c", {4}, DType::Int64);
  EXPECT_EQ(t.w.mul(wide, narrow).dtype, DType::Float32);
  EXPECT_EQ(t.w.mul(whole, narrow).dtype, DType::BFloat16);
  EXPECT_EQ(t.w.to(narrow, DType::BFloat16).index, narrow.index);  // nothing to do, nothing written
}

}  // namespace
}  // namespace foreshard::families
