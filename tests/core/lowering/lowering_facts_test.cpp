// What a model states about its values is what lowering does with them.
#include <gtest/gtest.h>

#include <algorithm>

#include "core/lowering/lowering.h"
#include "tests/core/lowering/replay.h"
#include "tests/core/lowering/toy_program.h"

namespace foreshard {
namespace {

using testing::alive_at;
using testing::all_trainable;
using testing::made_by;
using testing::replay;
using testing::segments_by_block;
using testing::ToyProgram;

/// A projection, added to its input and handed to a module: h = x w, y = h + x, n = sin(y). Nothing is differentiated.
Model projected(const Hold& hold) {
  ToyProgram toy;
  const std::string x = toy.input("x", {6, 4});
  toy.module("", "Root");
  toy.module("output", "BertOutput");  // whose name says nothing
  toy.module("output.dense", "Linear");
  toy.param("w", {4, 4});
  toy.op("aten.mm.default", {x, "%w"}, {{"h", {6, 4}}});
  toy.module("output", "");
  toy.op("aten.add.Tensor", {"h", x}, {{"y", {6, 4}}});
  toy.module("output.norm", "LayerNorm");
  toy.op("aten.sin.default", {"y"}, {{"n", {6, 4}}});
  toy.module("", "Root");
  toy.op("aten.sum.default", {"n"}, {{"loss", {}}});
  Model model = toy.finish("loss");
  model.values[model.ops[0].out[0].index()].held = hold;
  return model;
}

Bytes alive_at_norm(const Model& model) {
  const auto lowered = lower(model, segments_by_block(model, ""), std::vector<bool>(model.params.size(), false));
  return alive_at(*lowered, "aten.sin.default");
}

TEST(LoweringFacts, AValueIsHeldAsTheModelSays) {
  constexpr Bytes kOne = 6 * 4 * 4;
  const ModuleId output(std::int32_t{1});
  EXPECT_EQ(alive_at_norm(projected({})), 2 * kOne);                               // y and n
  EXPECT_EQ(alive_at_norm(projected({Hold::Until::Call, -1, output})), 3 * kOne);  // until output() returns
  EXPECT_EQ(alive_at_norm(projected({Hold::Until::Call, -1, {}})), 2 * kOne);      // the projection's own call
  EXPECT_EQ(alive_at_norm(projected({Hold::Until::Op, 2, {}})), 3 * kOne);
  EXPECT_EQ(alive_at_norm(projected({Hold::Until::Op, 1, {}})), 2 * kOne);
  EXPECT_EQ(alive_at_norm(projected({Hold::Until::Forward, -1, {}})), 3 * kOne);
}

TEST(LoweringFacts, RecordedLifetimesAddNothing) {
  ToyProgram toy;
  const std::string x = toy.input("x", {6, 4});
  toy.module("", "Root");
  toy.op("aten.sin.default", {x}, {{"a", {6, 4}}});
  toy.module("f", "Function");
  toy.op("aten.cos.default", {"a"}, {{"b", {6, 4}}});
  toy.op("aten.tanh.default", {"b"}, {{"c", {6, 4}}});
  toy.module("", "Root");
  toy.op("aten.sum.default", {"c"}, {{"loss", {}}});
  Model model = toy.finish("loss");
  const auto alive = [&] { return alive_at(*lower(model, segments_by_block(model, ""), {}), "aten.tanh.default"); };
  EXPECT_EQ(alive(), 3 * 6 * 4 * 4);  // a is named by the caller until f has returned
  model.lifetimes = Lifetimes::Recorded;
  EXPECT_EQ(alive(), 2 * 6 * 4 * 4);
}

TEST(LoweringFacts, WhatTheScriptNamesLivesThroughBackward) {
  Model model = projected({});
  EXPECT_EQ(lower(model, segments_by_block(model, ""), all_trainable(model))->held.size(), 2U);  // loss, its gradient
  model = projected({Hold::Until::Step, -1, {}});
  EXPECT_EQ(lower(model, segments_by_block(model, ""), all_trainable(model))->held.size(), 3U);
}

TEST(LoweringFacts, ACheckpointedCallKeepsItsArgumentsUsedOrNot) {
  const auto kept = [](bool told) {
    ToyProgram toy;
    const std::string x = toy.input("x", {6, 4});
    toy.module("", "Root");
    toy.op("aten.sin.default", {x}, {{"places", {6, 4}}});
    toy.module("block", "Block");
    toy.param("w", {4, 4});
    toy.op("aten.mm.default", {x, "%w"}, {{"h", {6, 4}}});
    toy.op("aten.sin.default", {"h"}, {{"s", {6, 4}}});
    toy.module("", "Root");
    toy.op("aten.sum.default", {"s"}, {{"loss", {}}});
    Model model = toy.finish("loss");
    model.values[model.ops[0].out[0].index()].held = {Hold::Until::Op, 1, {}};
    const ModuleId block = model.find_module("block");
    if (told) model.module_calls = {{block, 0, {model.ops[0].out[0]}}};
    std::vector<SegmentRange> segments = {{0, 1}, {1, 3, true, 7}, {3, 4}};
    segments[1].module = block;
    const auto lowered = lower(model, segments, all_trainable(model));
    // Freed in backward, not where its last name goes.
    const KernelList& backward = lowered->templates[static_cast<std::size_t>(lowered->instances[1].lowered)].backward;
    return std::any_of(backward.events.begin(), backward.events.end(),
                       [](const MemoryEvent& event) { return event.slot < 0; });
  };
  EXPECT_TRUE(kept(true));
  EXPECT_FALSE(kept(false));
}

TEST(LoweringFacts, WhatHooksOfTheModelsOwnTakeToTheHostGoesAndComesBackForItsNode) {
  const auto lowered = [](bool hooks) {
    ToyProgram toy;
    const std::string x = toy.input("x", {6, 4});
    toy.module("", "Root");
    toy.param("w", {4, 4});
    toy.op("aten.mm.default", {x, "%w"}, {{"h", {6, 4}}});
    toy.op("aten.sin.default", {"h"}, {{"s", {6, 4}}});
    toy.op("aten.sum.default", {"s"}, {{"loss", {}}});
    Model model = toy.finish("loss");
    if (hooks) model.ops[1].kwargs = {{"saved_on_host", Arg{ArgList{Arg{std::int64_t{0}}}}}};
    return *lower(model, {{0, 2}, {2, 3}}, all_trainable(model));
  };
  const auto kernels = [](const LoweredProgram& program, bool backward) {
    const SegmentTemplate& segment = program.templates[static_cast<std::size_t>(program.instances[0].lowered)];
    std::vector<std::string> names;
    for (const Kernel& kernel : (backward ? segment.backward : segment.forward).kernels)
      if (kernel.offload != OffloadStep::AwaitCompute && kernel.offload != OffloadStep::AwaitCopies)
        names.push_back(program.op_names[static_cast<std::size_t>(kernel.op)]);
    return names;
  };
  const LoweredProgram with = lowered(true), without = lowered(false);
  EXPECT_EQ(kernels(with, false), (std::vector<std::string>{"aten.mm.default", "offload.to_host", "aten.sin.default"}));
  EXPECT_EQ(kernels(without, false), (std::vector<std::string>{"aten.mm.default", "aten.sin.default"}));
  EXPECT_EQ(kernels(with, true).front(), "offload.to_device");
  EXPECT_TRUE(with.offloads);
  EXPECT_FALSE(without.offloads);
}

TEST(LoweringFacts, ARegionOfTheModelsOwnKeepsTheResultsItNames) {
  const auto recomputed = [](std::vector<std::int32_t> save, bool early_stop = true) {
    ToyProgram toy;
    const std::string x = toy.input("x", {6, 4});
    toy.module("", "Root");
    toy.param("w", {4, 4});
    toy.op("aten.mm.default", {x, "%w"}, {{"h", {6, 4}}});
    toy.op("aten.sin.default", {"h"}, {{"s", {6, 4}}});
    toy.op("aten.sin.default", {"s"}, {{"t", {6, 4}}});
    toy.op("aten.sum.default", {"t"}, {{"loss", {}}});
    Model model = toy.finish("loss");
    model.regions = {{Region::Kind::Operators, ModuleId(std::int32_t{0}), 0, {}, std::move(save)}};
    model.regions.front().early_stop = early_stop;
    for (std::size_t i = 0; i < 3; ++i) model.ops[i].region = 0;
    const std::vector<SegmentRange> segments = {{0, 3, true, 1}, {3, 4}};
    const auto lowered = lower(model, segments, all_trainable(model));
    std::vector<std::string> names;
    for (const Kernel& kernel : lowered->templates[0].recompute.kernels)
      names.push_back(lowered->op_names[static_cast<std::size_t>(kernel.op)]);
    return names;
  };
  EXPECT_EQ(recomputed({}), (std::vector<std::string>{"aten.mm.default", "aten.sin.default"}));  // then it stops
  EXPECT_EQ(recomputed({0}), (std::vector<std::string>{"aten.sin.default"}));
  EXPECT_EQ(recomputed({}, false),  // early_stop=False
            (std::vector<std::string>{"aten.mm.default", "aten.sin.default", "aten.sin.default"}));
}

}  // namespace
}  // namespace foreshard
