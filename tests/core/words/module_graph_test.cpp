#include "core/plan/graph/module_graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "core/plan/graph/gradient_paths.h"
#include "core/plan/graph/training_begins.h"

namespace foreshard {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

/// root(a, b(c)): every module but root and b has one weight.
Model tree() {
  Model model;
  const auto module = [&](std::string fqn, int parent, bool weight) {
    ModuleInfo info;
    info.fqn = fqn;
    info.class_name = weight ? "Linear" : "Graph";
    info.parent = ModuleId(parent);
    const ModuleId id(model.modules.size());
    if (parent >= 0) model.modules[static_cast<std::size_t>(parent)].children.push_back(id);
    if (weight) {
      info.params.push_back(ParamId(model.params.size()));
      model.params.push_back({fqn + ".weight", {4, 4}, DType::Float32, true, id, {}});
    }
    model.modules.push_back(info);
    return id;
  };
  module("", -1, false);
  module("a", 0, true);
  module("b", 0, false);
  module("b.c", 2, true);
  return model;
}

CallStep call(int module, std::vector<std::string> in, std::vector<std::string> out) {
  CallStep step;
  step.module = ModuleId(module);
  step.in = std::move(in);
  step.out = std::move(out);
  return step;
}

TEST(ModuleGraphFromCalls, NestsCallsAndBindsVariables) {
  Model model = tree();
  model.values = {{"x", {2, 4}, DType::Float32, false}};
  model.inputs = {ValueId(0)};
  model.calls = {{ModuleId(0), {"x"}, {call(1, {"x"}, {"h"}), call(2, {"h"}, {"y"})}, {"y"}},
                 {ModuleId(2), {"x"}, {call(3, {"x"}, {"x"})}, {"x"}}};
  const Result<ModuleGraph> graph = build_module_graph(model, {}, {});
  ASSERT_TRUE(graph.has_value()) << to_text(graph.error());
  ASSERT_EQ(graph->calls.size(), 4U);  // root, a, b, b.c
  ASSERT_EQ(graph->nodes.size(), 2U);
  EXPECT_EQ(graph->nodes[1].label, "b.c");
  EXPECT_THAT(graph->nodes[1].params, ElementsAre(ParamId(1)));
  const GraphCall& b = graph->calls[2];
  EXPECT_EQ(b.module, ModuleId(2));
  // b writes its own x again; the caller's h is another variable.
  EXPECT_NE(b.arguments[0], b.inputs[0]);
  EXPECT_EQ(b.outputs[0], b.inputs[0]);
}

TEST(ModuleGraphFromCalls, RefusesValuesThatAreNotMadeAndRecursion) {
  Model model = tree();
  model.calls = {{ModuleId(0), {"x"}, {call(1, {"nobody"}, {"h"})}, {"h"}}};
  EXPECT_FALSE(build_module_graph(model, {}, {}).has_value());
  model.calls = {{ModuleId(0), {"x"}, {call(0, {"x"}, {"h"})}, {"h"}}};
  const Result<ModuleGraph> graph = build_module_graph(model, {}, {});
  ASSERT_FALSE(graph.has_value());
  EXPECT_EQ(graph.error().code, ErrorCode::TooDeep);
}

Op op(std::string name, int module, std::vector<int> values, std::vector<int> params, int out, int count = 0) {
  Op result;
  result.name = std::move(name);
  result.module = ModuleId(module);
  result.call = count;
  for (int v : values) result.args.push_back({ValueRef{ValueId(v)}});
  for (int p : params) result.args.push_back({ParamRef{ParamId(p)}});
  result.out = {ValueId(out)};
  return result;
}

Model program() {
  Model model = tree();
  model.values = {{"ids", {2}, DType::Int64, false},
                  {"h", {2, 4}, DType::Float32, false},
                  {"table", {2, 4}, DType::Float32, false},
                  {"z", {2, 4}, DType::Float32, false},
                  {"y", {2, 4}, DType::Float32, false}};
  model.inputs = {ValueId(0)};
  model.outputs = {ValueId(4)};
  model.ops = {op("aten.embedding.default", 1, {0}, {0}, 1), op("aten.cos.default", 0, {0}, {}, 2),
               op("aten.linear.default", 3, {1, 2}, {1}, 3), op("aten.add.Tensor", 0, {3, 1}, {}, 4)};
  return model;
}

TEST(ModuleGraphFromOps, CutsAtBoundariesOnly) {
  const Model model = program();
  std::vector<bool> boundary(4, false);
  boundary[2] = true;
  const Result<ModuleGraph> graph = build_module_graph(model, boundary, {});
  ASSERT_TRUE(graph.has_value()) << to_text(graph.error());
  ASSERT_EQ(graph->nodes.size(), 3U);  // embedding and table, the unit, the sum
  EXPECT_EQ(graph->nodes[0].op_end, 2);
  EXPECT_EQ(graph->nodes[1].label, "b");
  EXPECT_EQ(graph->nodes[1].inputs.size(), 2U);
  ASSERT_EQ(graph->calls.size(), 2U);
  EXPECT_EQ(graph->calls[1].inputs.size(), 2U);
  EXPECT_EQ(graph->calls[1].outputs.size(), 1U);
  EXPECT_EQ(graph->calls[1].results, graph->calls[1].outputs);
}

TEST(ModuleGraphFromOps, TablesWithoutParametersAreNotDifferentiable) {
  const Model model = program();
  std::vector<bool> boundary(4, false);
  boundary[2] = true;
  const ModuleGraph graph = build_module_graph(model, boundary, {}).value();
  for (const GraphTensor& tensor : graph.tensors) {
    EXPECT_EQ(tensor.differentiable, tensor.name != "table" && tensor.name != "ids") << tensor.name;
  }
}

/// A run of the root's may hold an embedding that is trained and patches of a frozen encoder, which runs no backward.
TEST(ModuleGraphFromOps, WhatFrozenParametersMakeIsNotDifferentiable) {
  Model model = program();
  std::vector<bool> boundary(4, false);
  boundary[2] = true;
  std::vector<bool> differentiated(model.params.size(), true);
  differentiated[0] = false;
  const ModuleGraph graph = build_module_graph(model, boundary, {}, true, differentiated).value();
  const auto differentiable = [&](std::size_t value) {
    const auto found = std::find_if(graph.tensors.begin(), graph.tensors.end(),
                                    [&](const GraphTensor& tensor) { return tensor.name == model.values[value].name; });
    return found != graph.tensors.end() && found->differentiable;
  };
  EXPECT_FALSE(differentiable(1));  // the embedding's
  EXPECT_TRUE(differentiable(3));   // the unit's, which is trained
}

TEST(ModuleGraphFromOps, TheSameModuleTwiceInARowIsTwoCalls) {
  Model model = program();
  model.values.push_back({"w", {2, 4}, DType::Float32, false});
  model.ops = {op("aten.embedding.default", 1, {0}, {0}, 1), op("aten.linear.default", 3, {1}, {1}, 3, 0),
               op("aten.linear.default", 3, {3}, {1}, 5, 1), op("aten.add.Tensor", 0, {5, 1}, {}, 4)};
  std::vector<bool> boundary(4, false);
  boundary[2] = true;
  const ModuleGraph graph = build_module_graph(model, boundary, {}).value();
  ASSERT_EQ(graph.calls.size(), 3U);
  EXPECT_EQ(graph.calls[1].module, graph.calls[2].module);
  EXPECT_EQ(graph.calls[2].inputs, graph.calls[1].outputs);
}

TEST(ModuleGraphFromOps, WhatIsWrittenInPlaceIsItsMakersBefore) {
  Model model = program();
  model.ops = {op("aten.embedding.default", 1, {0}, {0}, 1), op("aten.linear.default", 3, {1}, {1}, 3),
               op("aten.relu_.default", 0, {3}, {}, 3), op("aten.add.Tensor", 0, {3, 1}, {}, 4)};
  std::vector<bool> boundary(4, false);
  boundary[2] = true;
  const ModuleGraph graph = build_module_graph(model, boundary, {}).value();
  ASSERT_EQ(graph.nodes.size(), 3U);  // the embedding, the unit, what stands behind it
  const std::vector<std::int32_t>& made = graph.nodes[1].outputs;
  ASSERT_EQ(made.size(), 1U);
  EXPECT_EQ(graph.tensors[static_cast<std::size_t>(made.front())].name, "z");
  EXPECT_EQ(graph.calls[1].outputs, made) << "it leaves the unit";
  EXPECT_THAT(graph.nodes[2].inputs, ::testing::Contains(made.front()));
  EXPECT_THAT(graph.nodes[2].outputs, ::testing::Contains(made.front()));
}

/// room = cos(ids); part = room[..]; part.copy_(h); seen = room[..]: what is seen of the room has h's history.
TEST(ModuleGraphFromOps, AHistoryIsWrittenIntoMemory) {
  Model model = program();
  for (const char* name : {"part", "written", "seen"}) model.values.push_back({name, {2, 4}, DType::Float32, false});
  model.ops = {op("aten.embedding.default", 1, {0}, {0}, 1), op("aten.cos.default", 0, {0}, {}, 2),
               op("aten.slice.Tensor", 0, {2}, {}, 5),       op("aten.copy_.default", 0, {5, 1}, {}, 6),
               op("aten.slice.Tensor", 0, {2}, {}, 7),       op("aten.linear.default", 3, {7}, {1}, 3),
               op("aten.add.Tensor", 0, {3, 3}, {}, 4)};
  std::vector<bool> boundary(4, false);
  boundary[2] = true;
  const auto differentiable = [&] {
    const ModuleGraph graph = build_module_graph(model, boundary, {}).value();
    const auto seen = std::find_if(graph.tensors.begin(), graph.tensors.end(),
                                   [](const GraphTensor& tensor) { return tensor.name == "seen"; });
    return seen != graph.tensors.end() && seen->differentiable;
  };
  EXPECT_TRUE(differentiable());
  model.ops[3].args[1] = model.ops[3].args[0];  // of itself: no history comes in
  EXPECT_FALSE(differentiable());
}

/// The room is made, a unit's result is put into it, another unit runs, the room is read: that hangs on the write.
TEST(ModuleGraphFromOps, WhatReadsMemoryTakesInItsLastWrite) {
  Model model = program();
  for (const char* name : {"part", "written"}) model.values.push_back({name, {2, 4}, DType::Float32, false});
  model.ops = {op("aten.cos.default", 0, {0}, {}, 2),        op("aten.slice.Tensor", 0, {2}, {}, 5),
               op("aten.linear.default", 3, {2}, {1}, 3),    op("aten.copy_.default", 0, {5, 3}, {}, 6),
               op("aten.embedding.default", 1, {0}, {0}, 1), op("aten.add.Tensor", 0, {2, 1}, {}, 4)};
  const ModuleGraph graph = build_module_graph(model, {false, true, true, false}, {}).value();
  ASSERT_EQ(graph.nodes.size(), 5U);
  std::vector<std::string> read;
  for (const std::int32_t input : graph.nodes.back().inputs)
    read.push_back(graph.tensors[static_cast<std::size_t>(input)].name);
  EXPECT_THAT(read, ::testing::UnorderedElementsAre("table", "written", "h"));
}

TEST(ModuleGraphFromOps, ParametersWithoutUsesHaveNoGradient) {
  Model model = program();
  EXPECT_THAT(params_with_gradient(model), ElementsAre(true, true));
  model.ops[3].args = {model.ops[3].args[1], model.ops[3].args[1]};  // y = h + h: nobody reads z
  EXPECT_THAT(params_with_gradient(model), ElementsAre(true, false));
  model.ops.clear();
  EXPECT_THAT(params_with_gradient(model), ElementsAre(true, true)) << "nothing is known";
}

TEST(ModuleGraphFromOps, MarksCheckpointedCalls) {
  std::vector<CheckpointKind> checkpoint(4, CheckpointKind::None);
  checkpoint[2] = CheckpointKind::NonReentrant;
  const ModuleGraph graph = build_module_graph(program(), {}, checkpoint, false).value();
  ASSERT_EQ(graph.calls.size(), 2U);
  EXPECT_EQ(graph.calls[1].checkpoint, CheckpointKind::NonReentrant);
  EXPECT_FALSE(graph.calls[1].checkpoint_inside);
}

TEST(ModuleGraphFromOps, ARegionThatIsAModulesCallHoldsItsHooks) {
  Model model = program();
  model.regions = {{Region::Kind::Reentrant, ModuleId(2), 0, {}, {}}};
  model.ops[2].region = 0;  // all of b
  std::vector<bool> boundary(4, false);
  boundary[2] = true;
  const ModuleGraph graph = build_module_graph(model, boundary, {}).value();
  ASSERT_EQ(graph.calls.size(), 3U);  // root, the region, b in it
  EXPECT_EQ(graph.calls[1].region, 0);
  EXPECT_EQ(graph.calls[1].checkpoint, CheckpointKind::Reentrant);
  EXPECT_FALSE(graph.calls[1].hooked().valid());
  EXPECT_EQ(graph.calls[2].hooked(), ModuleId(2));
  EXPECT_EQ(graph.calls[2].checkpoint, CheckpointKind::None);
  ASSERT_EQ(graph.calls[1].steps.size(), 1U);
  EXPECT_TRUE(graph.calls[1].steps[0].is_call);
}

TEST(ModuleGraphFromOps, ARegionInAModulesFunctionDoesNotHoldItsHooks) {
  Model model = program();
  model.regions = {{Region::Kind::NonReentrant, ModuleId(0), 0, {}, {}}};
  model.ops[1].region = model.ops[2].region = 0;  // a stretch of the root's function, with b's call
  std::vector<bool> boundary(4, false);
  boundary[2] = true;
  const ModuleGraph graph = build_module_graph(model, boundary, {}).value();
  ASSERT_EQ(graph.calls.size(), 3U);
  EXPECT_EQ(graph.calls[0].hooked(), ModuleId(0));
  EXPECT_EQ(graph.calls[1].module, ModuleId(0));
  EXPECT_FALSE(graph.calls[1].hooked().valid());
  EXPECT_EQ(graph.calls[1].checkpoint, CheckpointKind::NonReentrant);
  EXPECT_EQ(graph.calls[1].steps.size(), 2U);  // the cosine, b
  EXPECT_EQ(graph.calls[2].hooked(), ModuleId(2));
}

/// Layers that a unit's function recomputes one by one, with nothing between them.
TEST(ModuleGraphFromOps, RegionsThatFollowEachOtherAreInOneCall) {
  Model model = program();
  for (const char* name : {"y", "w"}) model.values.push_back({name, {2, 4}, DType::Float32, false});
  model.ops = {op("aten.embedding.default", 1, {0}, {0}, 1), op("aten.linear.default", 3, {1}, {1}, 5),
               op("aten.linear.default", 3, {5}, {1}, 6), op("aten.linear.default", 3, {6}, {1}, 3),
               op("aten.add.Tensor", 0, {3, 1}, {}, 4)};
  for (std::int32_t i = 0; i < 3; ++i) {
    model.regions.push_back({Region::Kind::NonReentrant, ModuleId(2), 0, {}, {}});
    model.ops[static_cast<std::size_t>(i) + 1].region = i;
  }
  model.module_calls = {{ModuleId(2), 0, {}}};
  std::vector<bool> boundary(4, false);
  boundary[2] = true;
  const ModuleGraph graph = build_module_graph(model, boundary, {}).value();
  EXPECT_EQ(std::count_if(graph.calls.begin(), graph.calls.end(),
                          [](const GraphCall& call) { return call.hooked() == ModuleId(2); }),
            1);
  EXPECT_EQ(graph.calls.size(), 5U);  // root, the unit, three regions in it
}

/// The root's calls begin with steps 0, 3 and 5.
TEST(TrainingBegins, WithTheFirstCallOfTheRootThatHasGradients) {
  const auto before = [](const std::vector<bool>& without_grad) {
    ModuleGraph graph;
    GraphCall& root = graph.calls.emplace_back();
    root.again = {3, 5};
    root.calls_without_grad = without_grad;
    return steps_before_training(graph, [](ParamId) { return true; });
  };
  EXPECT_EQ(before({true, false, false}), 3);
  EXPECT_EQ(before({true, true, false}), 5);
  EXPECT_EQ(before({false, true, false}), 0);  // that one trains, whatever comes behind it
}

TEST(TrainingBegins, ARootThatIsAUnitAndCalledOnceHasNothingBeforeIt) {
  ModuleGraph graph;
  GraphCall& root = graph.calls.emplace_back();
  root.once = 2;  // a frozen table before adapted layers, or a teacher of the script's
  FsdpOptions fsdp;
  EXPECT_EQ(first_step(graph, fsdp, true), 0);
  fsdp.wrap.root = false;
  EXPECT_EQ(first_step(graph, fsdp, true), 2);
  EXPECT_EQ(first_step(graph, fsdp, false), 0);
  fsdp.wrap.root = true;
  root.again = {2};
  EXPECT_EQ(first_step(graph, fsdp, true), 2);
}

}  // namespace
}  // namespace foreshard
