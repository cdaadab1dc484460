// What autocast keeps of parameters' casts, and for how long.
#include <gtest/gtest.h>

#include <algorithm>

#include "core/lowering/lowering.h"
#include "tests/core/lowering/replay.h"
#include "tests/core/lowering/toy_program.h"

namespace foreshard {
namespace {

using testing::all_trainable;
using testing::Replay;
using testing::replay;
using testing::segments_by_block;
using testing::ToyProgram;

/// `blocks` times x W + b in bfloat16 with a weight cast twice, then a sum; autocast exits behind the last block.
Model under_autocast(int blocks) {
  ToyProgram toy;
  std::string x = toy.input("x", {6, 4}, DType::BFloat16);
  std::vector<std::string> casts;
  const auto cast = [&](const std::string& param, const std::string& name, Shape shape) {
    toy.op("aten._to_copy.default", {param}, {{name, std::move(shape), DType::BFloat16}});
    casts.push_back(name);
    return name;
  };
  for (int i = 0; i < blocks; ++i) {
    const std::string at = "b" + std::to_string(i);
    toy.module(at, "Block");
    toy.param(at + ".w", {4, 4});
    toy.param(at + ".b", {4});
    for (const char* part : {".first", ".second"}) {
      const std::string bias = cast("%" + at + ".b", at + part + "b", {4});
      const std::string weight = cast("%" + at + ".w", at + part + "w", {4, 4});
      toy.op("aten.addmm.default", {bias, x, weight}, {{at + part, {6, 4}, DType::BFloat16}});
      x = at + part;
    }
  }
  toy.module("", "Root");
  toy.op("aten.sum.default", {x}, {{"loss", {}, DType::BFloat16}});
  Model model = toy.finish("loss");
  model.compute_dtype = DType::Float32;
  for (ValueInfo& value : model.values)
    if (std::find(casts.begin(), casts.end(), value.name) != casts.end())
      value.held = {Hold::Until::Autocast, static_cast<std::int32_t>(model.ops.size()) - 2, {}};
  return model;
}

std::int64_t count(const std::vector<std::string>& kernels, const std::string& name) {
  return std::count(kernels.begin(), kernels.end(), name);
}

Replay lowered(const Model& model, bool checkpointed, bool keeps, const std::vector<bool>& trainable) {
  const auto segments = segments_by_block(model, "Block", checkpointed);
  LoweringOptions options;
  options.keeps_casts = keeps;
  const auto program = lower(model, segments, trainable, options);
  EXPECT_TRUE(program);
  Replay out = replay(*program, segments);
  EXPECT_EQ(out.left, 0);
  EXPECT_TRUE(out.misuse.empty()) << out.misuse.front();
  return out;
}

TEST(Autocast, ALeafIsCastOnceAndAViewEachTime) {
  const Model model = under_autocast(1);
  EXPECT_EQ(count(lowered(model, false, true, all_trainable(model)).forward_kernels, "aten._to_copy.default"), 2);
  EXPECT_EQ(count(lowered(model, false, false, all_trainable(model)).forward_kernels, "aten._to_copy.default"), 4);
  const std::vector<bool> frozen(model.params.size(), false);
  EXPECT_EQ(count(lowered(model, false, true, frozen).forward_kernels, "aten._to_copy.default"), 4);
}

/// torch.autocast around each half of the program: the second one casts anew.
TEST(Autocast, EachRegionKeepsItsOwn) {
  Model model = under_autocast(1);
  for (ValueInfo& value : model.values)
    if (value.name.starts_with("b0.first") && value.held.until == Hold::Until::Autocast) value.held.op = 2;
  EXPECT_EQ(model.ops[2].name, "aten.addmm.default");
  EXPECT_EQ(count(lowered(model, false, true, all_trainable(model)).forward_kernels, "aten._to_copy.default"), 4);
}

/// All weights' and biases' casts are there when autocast exits; recomputation keeps its own.
TEST(Autocast, CheckpointedBlocksKeepTheirCastsUntilTheForwardIsOver) {
  for (const int blocks : {1, 3, 12}) {  // twelve are folded
    const Model model = under_autocast(blocks);
    const Bytes casts = blocks * (4 * 4 + 4) * 2;
    const Replay kept = lowered(model, true, true, all_trainable(model));
    const Replay fresh = lowered(model, true, false, all_trainable(model));
    EXPECT_EQ(count(kept.forward_kernels, "aten._to_copy.default"), 2 * blocks);
    EXPECT_EQ(count(fresh.forward_kernels, "aten._to_copy.default"), 4 * blocks);
    EXPECT_EQ(kept.after_forward, fresh.after_forward);
    EXPECT_GE(kept.peak, casts + kept.after_forward);
  }
}

}  // namespace
}  // namespace foreshard
