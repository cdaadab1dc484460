// Parameters from whose uses no gradient comes back.
#include "core/plan/graph/gradient_paths.h"

#include <gtest/gtest.h>

#include "core/lowering/table/rule_finder.h"
#include "tests/core/lowering/toy_program.h"

namespace foreshard {
namespace {

/// All operators in one run.
std::vector<ParamId> idle_of(const Model& model) {
  GraphNode node;
  node.kind = GraphNode::Kind::Ops;
  node.op_end = static_cast<std::int32_t>(model.ops.size());
  for (std::size_t p = 0; p < model.params.size(); ++p) node.params.emplace_back(p);
  std::vector<GraphNode> nodes{node};
  const std::vector<const OpRule*> rules = rules_of(model.ops);
  const References references(model.ops);
  find_idle_params(model, rules, references, SharedMemory(model, rules, references), nodes);
  return nodes.front().idle;
}

TEST(GradientPaths, WhatNobodyUsesGivesNoGradient) {
  testing::ToyProgram toy;
  const std::string x = toy.input("x", {6, 4});
  for (const char* name : {"used", "unused", "watched"}) toy.param(name, {4, 4});
  toy.op("aten.mm.default", {x, "%used"}, {{"h", {6, 4}}});
  toy.op("aten.mm.default", {"h", "%unused"}, {{"edges", {6, 4}}});
  toy.op("aten.mm.default", {"h", "%watched"}, {{"scores", {6, 4}}});
  toy.op("aten.detach.default", {"scores"}, {{"told", {6, 4}}});
  toy.op("aten.add.Tensor", {"h", "told"}, {{"sum", {6, 4}}});
  toy.op("aten.sum.default", {"sum"}, {{"loss", {}}});
  EXPECT_EQ(idle_of(toy.finish("loss")), (std::vector<ParamId>{ParamId(1), ParamId(2)}));
}

TEST(GradientPaths, AWriteThroughAViewIsAWriteToItsBase) {
  testing::ToyProgram toy;
  const std::string x = toy.input("x", {6, 4});
  for (const char* name : {"base", "written"}) toy.param(name, {4, 4});
  toy.op("aten.mm.default", {x, "%base"}, {{"h", {6, 4}}});
  toy.op("aten.view.default", {"h"}, {{"through", {24}}});
  toy.op("aten.mm.default", {x, "%written"}, {{"more", {6, 4}}});
  toy.op("aten.view.default", {"more"}, {{"flat", {24}}});
  toy.op("aten.add_.Tensor", {"through", "flat"}, {{"nobody's", {24}}});
  toy.op("aten.sum.default", {"h"}, {{"loss", {}}});
  EXPECT_TRUE(idle_of(toy.finish("loss")).empty());
}

}  // namespace
}  // namespace foreshard
