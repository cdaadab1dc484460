// Activations that travel to the host and back: what is copied, in which order, and what lives until when.
#include <gtest/gtest.h>

#include <algorithm>

#include "core/lowering/lowering.h"
#include "tests/core/lowering/replay.h"
#include "tests/core/lowering/toy_program.h"

namespace foreshard {
namespace {

using testing::all_trainable;
using testing::replay;
using testing::segments_by_block;
using testing::ToyProgram;

constexpr std::int64_t kRows = 64, kWidth = 32;  // 8,192 bytes in float32
constexpr Bytes kTensor = kRows * kWidth * 4;

/// `blocks` times silu(x W), then a head and the sum.
Model chain(int blocks, const char* product = "aten.mm.default") {
  ToyProgram toy;
  std::string x = toy.input("x", {kRows, kWidth});
  for (int i = 0; i < blocks; ++i) {
    const std::string at = "b" + std::to_string(i);
    toy.module(at, "Block");
    toy.param(at + ".w", {kWidth, kWidth});
    toy.op(product, {x, "%" + at + ".w"}, {{at + "y", {kRows, kWidth}}});
    toy.op("aten.silu.default", {at + "y"}, {{at + "z", {kRows, kWidth}}});
    x = at + "z";
  }
  toy.module("", "Root");
  toy.op("aten.sum.default", {x}, {{"loss", {}}});
  return toy.finish("loss");
}

LoweredProgram lowered(const Model& model, bool checkpointed, OffloadedActivations offload) {
  LoweringOptions options;
  options.offload = offload;
  const auto program = lower(model, segments_by_block(model, "Block", checkpointed), all_trainable(model), options);
  EXPECT_TRUE(program);
  return *program;
}

constexpr OffloadedActivations kGathered{true, false, false}, kKnown{true, true, false}, kFlat{true, false, true};

struct Copies {
  std::int64_t to_host = 0, to_device = 0, aside = 0;
  Bytes out = 0, back = 0;
};

Copies copies_of(const LoweredProgram& program) {
  Copies all;
  for (const SegmentInstance& instance : program.instances) {
    const SegmentTemplate& made = program.templates[static_cast<std::size_t>(instance.lowered)];
    for (const KernelList* list : {&made.forward, &made.recompute, &made.backward}) {
      for (const Kernel& kernel : list->kernels) {
        all.to_host += kernel.offload == OffloadStep::ToHost ? 1 : 0;
        all.to_device += kernel.offload == OffloadStep::ToDevice ? 1 : 0;
        all.aside += program.op_names[static_cast<std::size_t>(kernel.op)] == "aten.clone.default" ? 1 : 0;
        all.out += kernel.offload == OffloadStep::ToHost ? kernel.read : 0;
        all.back += kernel.offload == OffloadStep::ToDevice ? kernel.written : 0;
      }
    }
  }
  return all;
}

TEST(ActivationOffload, SavedTensorsTravelAndParametersStay) {
  const Model model = chain(8);
  const Copies all = copies_of(lowered(model, false, kKnown));
  // A block keeps its product's input and silu's; the first block's input is the batch, which wants no gradient, but
  // the matrix does.
  EXPECT_EQ(all.to_host, 2 * 8);
  EXPECT_EQ(all.out, 2 * 8 * kTensor);
  EXPECT_EQ(all.aside, 0);
  // What was packed last is on the device still when its node runs.
  EXPECT_LT(all.to_device, all.to_host);
  EXPECT_GE(all.to_device, all.to_host - 5);
  EXPECT_EQ(all.back, all.to_device * kTensor);
}

TEST(ActivationOffload, GatheredMatricesAreTakenForActivations) {
  const Model model = chain(8);
  const Bytes matrix = kWidth * kWidth * 4;
  // As arguments of mm they are the modules' own parameters; flat ones are views, whose parts lie at an offset.
  EXPECT_EQ(copies_of(lowered(model, false, kGathered)).out, 2 * 8 * kTensor);
  const Copies flat = copies_of(lowered(model, false, kFlat));
  EXPECT_EQ(flat.out, 2 * 8 * kTensor + 7 * matrix);  // the first block's product hands no gradient on
  EXPECT_EQ(flat.aside, 7);
  // A linear layer keeps its matrix as the transpose, which is no parameter: a copy without gaps travels.
  const Model linear = chain(8, "aten.linear.default");
  const Copies transposed = copies_of(lowered(linear, false, kGathered));
  EXPECT_EQ(transposed.out, 2 * 8 * kTensor + 7 * matrix);
  EXPECT_EQ(transposed.aside, 7);
  EXPECT_EQ(copies_of(lowered(linear, false, kKnown)).out, 2 * 8 * kTensor);
}

TEST(ActivationOffload, CheckpointedBlocksSendTheirInputsAlone) {
  const Model model = chain(12);  // folded
  const Copies all = copies_of(lowered(model, true, kGathered));
  EXPECT_EQ(all.out, 11 * kTensor);  // the batch is held, not saved
  EXPECT_GE(all.to_device, 11 - 5);
}

TEST(ActivationOffload, RunsOfBlocksTravelAsIfEachWereLowered) {
  const Model model = chain(40);
  Model uneven = model;  // an argument that nobody reads makes every block another one: nothing is folded
  for (std::size_t i = 0; i < uneven.ops.size(); ++i)
    uneven.ops[i].kwargs.push_back({"salt", {static_cast<std::int64_t>(i)}});
  for (const std::size_t first : {0U, 8U}) {  // that recomputes
    auto segments = segments_by_block(model, "Block", true);
    for (std::size_t s = 0; s + 1 < segments.size(); ++s) segments[s].checkpointed = s >= first && s < first + 17;
    LoweringOptions options;
    options.offload = kKnown;
    const Copies folded = copies_of(lower(model, segments, all_trainable(model), options).value()),
                 whole = copies_of(lower(uneven, segments, all_trainable(model), options).value());
    EXPECT_EQ(folded.to_host, whole.to_host) << first;
    EXPECT_EQ(folded.to_device, whole.to_device) << first;
    EXPECT_EQ(folded.out, whole.out) << first;
    EXPECT_EQ(folded.back, whole.back) << first;
  }
}

TEST(ActivationOffload, SmallTensorsStay) {
  ToyProgram toy;
  toy.module("", "Root");
  toy.param("w", {4, 4});
  const std::string x = toy.input("x", {63, 4});  // 1,008 bytes
  toy.op("aten.mm.default", {x, "%w"}, {{"y", {63, 4}}});
  toy.op("aten.silu.default", {"y"}, {{"z", {63, 4}}});
  toy.op("aten.sum.default", {"z"}, {{"loss", {}}});
  EXPECT_EQ(copies_of(lowered(toy.finish("loss"), false, kKnown)).to_host, 0);
}

/// A storage that was packed and is on the device still is kept there for whoever packs it again.
TEST(ActivationOffload, ATensorThatIsSavedTwiceStaysOnTheDevice) {
  ToyProgram toy;
  toy.module("", "Root");
  toy.param("w", {kWidth, kWidth});
  const std::string x = toy.input("x", {kRows, kWidth});
  toy.op("aten.mm.default", {x, "%w"}, {{"y", {kRows, kWidth}}});
  toy.op("aten.silu.default", {"y"}, {{"a", {kRows, kWidth}}});
  toy.op("aten.silu.default", {"y"}, {{"b", {kRows, kWidth}}});
  toy.op("aten.add.Tensor", {"a", "b"}, {{"c", {kRows, kWidth}}});
  toy.op("aten.sum.default", {"c"}, {{"loss", {}}});
  EXPECT_EQ(copies_of(lowered(toy.finish("loss"), false, kKnown)).to_host, 2);  // x and y
}

/// Parts of one tensor begin at places of their own in its storage: each travels, without the holes.
TEST(ActivationOffload, PartsOfOneTensorTravelEachByItself) {
  struct Way {
    const char* op;
    std::vector<Arg> constants;
    Shape whole, part;
    std::int64_t aside;
  };
  const std::int64_t one = 1, two = 2, zero = 0;
  const Way ways[] = {
      {"aten.split.Tensor", {{kWidth}, {one}}, {kRows, 3 * kWidth}, {kRows, kWidth}, 3},
      {"aten.chunk.default", {{std::int64_t{3}}, {one}}, {kRows, 3 * kWidth}, {kRows, kWidth}, 3},
      {"aten.split.Tensor", {{kRows}, {zero}}, {3 * kRows, kWidth}, {kRows, kWidth}, 2},  // the first has no holes
      {"aten.unbind.int", {{zero}}, {3, kRows, kWidth}, {kRows, kWidth}, 2},
      {"aten.unbind.int", {{two}}, {kRows, kWidth, 3}, {kRows, kWidth}, 3},
  };
  for (const Way& way : ways) {
    ToyProgram toy;
    toy.module("", "Root");
    toy.param("w", {kWidth, kWidth});
    const std::string x = toy.input("x", {kRows, kWidth});
    toy.op("aten.mm.default", {x, "%w"}, {{"y", {kRows, kWidth}}});
    toy.op("aten.repeat.default", {"y"}, {{"all", way.whole}});
    toy.op(way.op, {"all"}, {{"a", way.part}, {"b", way.part}, {"c", way.part}}, way.constants);
    std::string sum;
    for (const char* part : {"a", "b", "c"}) {
      const std::string made = std::string(part) + "s";
      toy.op("aten.silu.default", {part}, {{made, way.part}});
      if (!sum.empty()) toy.op("aten.add.Tensor", {sum, made}, {{sum + made, way.part}});
      sum = sum.empty() ? made : sum + made;
    }
    toy.op("aten.sum.default", {sum}, {{"loss", {}}});
    const Copies all = copies_of(lowered(toy.finish("loss"), false, kKnown));
    EXPECT_EQ(all.to_host, 4) << way.op;  // x, and each part
    EXPECT_EQ(all.aside, way.aside) << way.op;
  }
}

TEST(ActivationOffload, NothingIsLeftAndFewAreAliveAtOnce) {
  for (const bool checkpointed : {false, true}) {
    const Model model = chain(16);
    const auto segments = segments_by_block(model, "Block", checkpointed);
    const auto out = replay(lowered(model, checkpointed, kKnown), segments);
    EXPECT_TRUE(out.misuse.empty()) << out.misuse.front();
    EXPECT_EQ(out.left, 0);
    const auto plain = replay(lowered(model, checkpointed, {}), segments);
    EXPECT_EQ(plain.left, 0);
    EXPECT_GT(plain.peak, 16 * kTensor);
    EXPECT_LT(out.peak, checkpointed ? 14 * kTensor : 12 * kTensor);
  }
}

TEST(ActivationOffload, TheOutputHeadIsLeftAlone) {
  ToyProgram toy;
  toy.module("body", "Block");
  toy.param("body.w", {kWidth, kWidth});
  const std::string x = toy.input("x", {kRows, kWidth});
  toy.op("aten.mm.default", {x, "%body.w"}, {{"y", {kRows, kWidth}}});
  toy.module("lm_head", "Linear");
  toy.param("lm_head.w", {kWidth, kWidth});
  toy.op("aten.mm.default", {"y", "%lm_head.w"}, {{"z", {kRows, kWidth}}});
  toy.module("", "Root");
  toy.op("aten.sum.default", {"z"}, {{"loss", {}}});
  Model model = toy.finish("loss");
  model.modules[0].children = {ModuleId(1), ModuleId(2)};
  LoweringOptions options;
  options.offload = kKnown;
  const auto whole = std::vector<SegmentRange>{{0, static_cast<std::int32_t>(model.ops.size())}};
  EXPECT_EQ(copies_of(*lower(model, whole, all_trainable(model), options)).to_host, 1);  // x
  model.modules[2].fqn = "second";
  EXPECT_EQ(copies_of(*lower(model, whole, all_trainable(model), options)).to_host, 2);
}

}  // namespace
}  // namespace foreshard
