// Programs of scripts' own over tensor ranks: a table of positions, a table without gradients, fused projections by
// heads, sums that begin with zeros, functions that nobody looks into.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "core/mesh/rank_model.h"
#include "core/model/model_json.h"

namespace foreshard {
namespace {

using Json = nlohmann::json;

Json value(const char* name, const Shape& shape) { return {{"name", name}, {"shape", shape}, {"dtype", "float32"}}; }

Json operation(const char* name, const char* module, const Json& args, const Json& out) {
  return {{"op", name}, {"module", module}, {"args", args}, {"out", {out}}};
}

/// A model of two layers, `a` and `b`, around what a test is about. `inputs`: beside x.
Json net(const Shape& x, const Shape& a, const Shape& b, const Json& ops) {
  const auto module = [](const char* fqn, const char* name) { return Json{{"fqn", fqn}, {"class", name}}; };
  return {{"schema", "foreshard.model/2"},
          {"name", "net"},
          {"lifetimes", "recorded"},
          {"has_loss", true},
          {"inputs", {value("x", x)}},
          {"modules", {module("", "Net"), module("a", "Linear"), module("b", "Linear")}},
          {"params",
           {{{"fqn", "a.weight"}, {"shape", a}, {"dtype", "float32"}},
            {{"fqn", "b.weight"}, {"shape", b}, {"dtype", "float32"}}}},
          {"ops", ops},
          {"module_calls", {{{"module", ""}, {"args", {"x"}}}}},
          {"outputs", {"loss"}}};
}

Job job_of(std::map<std::string, std::string> plan, std::int64_t tensor = 2) {
  Job job;
  job.mesh.tensor = tensor;
  job.mesh.sequence_parallel = false;
  job.cluster.world_size = 8;
  job.train.clip_grad_norm = 0;
  job.mesh.plan = std::move(plan);
  return job;
}

Result<Model> cut(const Json& net, const Job& job) {
  return rank_model(parse_model_json(net.dump(), "net").value(), job);
}

const Shape& shape_of(const Model& model, const std::string& name) {
  const auto at = std::find_if(model.values.begin(), model.values.end(), [&](const auto& v) { return v.name == name; });
  return at->shape;
}

const Op& op_of(const Model& model, const std::string& name) {
  return *std::find_if(model.ops.begin(), model.ops.end(), [&](const Op& op) { return op.name == name; });
}

Json whole_numbers(Json net, const Shape& tokens) {
  net["inputs"] = {{{"name", "x"}, {"shape", tokens}, {"dtype", "int64"}}};
  return net;
}

TEST(OwnPrograms, ATableOfPositionsIsScatteredAlongThem) {
  const Json ops = {operation("aten.arange.default", "", {6}, {{"name", "p"}, {"shape", {6}}, {"dtype", "int64"}}),
                    operation("aten.embedding.default", "a", {"@a.weight", "%x"}, value("t", {2, 6, 4})),
                    operation("aten.embedding.default", "b", {"@b.weight", "%p"}, value("q", {6, 4})),
                    operation("aten.add.Tensor", "", {"%t", "%q"}, value("h", {2, 6, 4})),
                    operation("aten.sum.default", "", {"%h"}, value("loss", {}))};
  Json model = whole_numbers(net({2, 6}, {10, 4}, {6, 4}, ops), {2, 6});
  model["modules"][1]["class"] = model["modules"][2]["class"] = "Embedding";
  Job job = job_of({{"a", "rowwise"}, {"b", "rowwise"}});
  job.mesh.sequence_parallel = true;
  const auto along = cut(model, job);
  ASSERT_TRUE(along) << along.error().message;
  EXPECT_EQ(shape_of(*along, "h"), (Shape{2, 3, 4}));
  EXPECT_EQ(shape_of(*along, "q.mesh"), (Shape{3, 4}));
  job.mesh.sequence_parallel = false;
  EXPECT_EQ(shape_of(*cut(model, job), "q.mesh"), (Shape{6, 4}));
}

TEST(OwnPrograms, ATableThatNobodyDifferentiatesIsOne) {
  const Json ops = {operation("aten.detach.default", "a", {"@a.weight"}, value("w", {10, 4})),
                    operation("aten.embedding.default", "a", {"%w", "%x"}, value("t", {2, 6, 4})),
                    operation("aten.linear.default", "b", {"%t", "@b.weight"}, value("h", {2, 6, 4})),
                    operation("aten.sum.default", "", {"%h"}, value("loss", {}))};
  Json model = whole_numbers(net({2, 6}, {10, 4}, {4, 4}, ops), {2, 6});
  model["modules"][1]["class"] = "Embedding";
  const auto made = cut(model, job_of({{"a", "rowwise"}}));
  ASSERT_TRUE(made) << made.error().message;
  EXPECT_EQ(made->params[made->find_param("a.weight").index()].shape, (Shape{5, 4}));  // rows, not columns
  EXPECT_EQ(op_of(*made, "mesh.all_reduce").args.size(), 2U);
}

/// [batch, length, 3, heads, width]: a module that counts its rank's heads.
TEST(OwnPrograms, PartsOfAFusedProjectionHaveTheRanksHeads) {
  const Json ops = {operation("aten.linear.default", "a", {"%x", "@a.weight"}, value("h", {2, 6, 24})),
                    operation("aten.view.default", "", {"%h", {2, 6, 3, 4, 2}}, value("v", {2, 6, 3, 4, 2})),
                    operation("aten.permute.default", "", {"%v", {2, 0, 3, 1, 4}}, value("p", {3, 2, 4, 6, 2})),
                    operation("aten.select.int", "", {"%p", 0, 0}, value("q", {2, 4, 6, 2})),
                    operation("aten.sum.default", "", {"%q"}, value("loss", {}))};
  const auto made = cut(net({2, 6, 8}, {24, 8}, {8, 8}, ops), job_of({{"a", "colwise"}}));
  ASSERT_TRUE(made) << made.error().message;
  EXPECT_EQ(shape_of(*made, "v"), (Shape{2, 6, 3, 2, 2}));
  EXPECT_EQ(shape_of(*made, "q"), (Shape{2, 2, 6, 2}));
  EXPECT_TRUE(
      std::any_of(made->parallel.begin(), made->parallel.end(), [](const auto& row) { return row.style == "fused"; }));
  Json three = net({2, 6, 8}, {24, 8}, {8, 8}, ops);  // three heads are no parts
  three["ops"][1] = operation("aten.view.default", "", {"%h", {2, 6, 3, 8}}, value("v", {2, 6, 3, 8}));
  three["ops"][2] = operation("aten.permute.default", "", {"%v", {0, 2, 1, 3}}, value("p", {2, 3, 6, 8}));
  three["ops"][3] = operation("aten.select.int", "", {"%p", 2, 0}, value("q", {2, 3, 8}));
  EXPECT_FALSE(cut(three, job_of({{"a", "colwise"}})));
}

/// Keys of two heads, each repeated for three: a rank has one of them, whose repetition is no copy, so that a product
/// of all heads makes one.
TEST(OwnPrograms, AHeadThatARankRepeatsIsCopiedByProducts) {
  const Json ops = {operation("aten.linear.default", "a", {"%x", "@a.weight"}, value("h", {2, 6, 8})),
                    operation("aten.view.default", "", {"%h", {2, 6, 2, 4}}, value("v", {2, 6, 2, 4})),
                    operation("aten.transpose.int", "", {"%v", 1, 2}, value("t", {2, 2, 6, 4})),
                    operation("aten.unsqueeze.default", "", {"%t", 2}, value("u", {2, 2, 1, 6, 4})),
                    operation("aten.expand.default", "", {"%u", {2, 2, 3, 6, 4}}, value("e", {2, 2, 3, 6, 4})),
                    operation("aten.clone.default", "", Json::array({"%e"}), value("c", {2, 2, 3, 6, 4})),
                    operation("aten._unsafe_view.default", "", {"%c", {2, 6, 6, 4}}, value("k", {2, 6, 6, 4})),
                    operation("aten.transpose.int", "", {"%k", 2, 3}, value("s", {2, 6, 4, 6})),
                    operation("aten.expand.default", "", {"%s", {2, 6, 4, 6}}, value("m", {2, 6, 4, 6})),
                    operation("aten.view.default", "", {"%m", {12, 4, 6}}, value("b", {12, 4, 6})),
                    operation("aten.sum.default", "", Json::array({"%b"}), value("loss", {}))};
  const Json model = net({2, 6, 8}, {8, 8}, {8, 8}, ops);
  const auto made = cut(model, job_of({{"a", "colwise"}}));
  ASSERT_TRUE(made) << made.error().message;
  EXPECT_EQ(shape_of(*made, "b"), (Shape{6, 4, 6}));
  const Op& copy = op_of(*made, "aten.clone.default");
  EXPECT_EQ(made->values[copy.out.front().index()].shape, (Shape{2, 3, 4, 6}));
  EXPECT_EQ(op_of(*made, "aten._unsafe_view.default").args.front(), (Arg{ValueRef{copy.out.front()}}));
}

/// Keys and values of one layer: two parts, which two ranks would divide.
TEST(OwnPrograms, WhatIsTakenApartIsNoHeads) {
  const auto apart = [](std::int64_t dim) {
    return Json{
        operation("aten.linear.default", "a", {"%x", "@a.weight"}, value("h", {2, 6, 16})),
        operation("aten.view.default", "", {"%h", {2, 6, 2, 4, 2}}, value("v", {2, 6, 2, 4, 2})),
        operation("aten.permute.default", "", {"%v", {2, 0, 3, 1, 4}}, value("p", {2, 2, 4, 6, 2})),
        operation("aten.select.int", "", {"%p", dim, 0}, value("q", dim == 0 ? Shape{2, 4, 6, 2} : Shape{2, 2, 4, 2})),
        operation("aten.sum.default", "", {"%q"}, value("loss", {}))};
  };
  const auto made = cut(net({2, 6, 8}, {16, 8}, {8, 8}, apart(0)), job_of({{"a", "colwise"}}));
  ASSERT_TRUE(made) << made.error().message;
  EXPECT_EQ(shape_of(*made, "v"), (Shape{2, 6, 2, 2, 2}));
  EXPECT_EQ(shape_of(*made, "q"), (Shape{2, 2, 6, 2}));
  const auto heads = cut(net({2, 6, 8}, {16, 8}, {8, 8}, apart(3)), job_of({{"a", "colwise"}}));  // one place of each
  ASSERT_TRUE(heads) << heads.error().message;
  EXPECT_EQ(shape_of(*heads, "v"), (Shape{2, 6, 1, 4, 2}));
}

/// Queries in groups, [groups, queries of one, width], of more ranks than groups: whole heads for every rank there are
/// none. The same sizes are parts of a projection where the next operators take them apart, whatever does.
TEST(OwnPrograms, FewHeadsAreNoPartsUnlessTheyAreTakenApart) {
  const auto behind = [](const Json& next, const char* read) {
    return net({2, 6, 8}, {24, 8}, {8, 8},
               {operation("aten.linear.default", "a", {"%x", "@a.weight"}, value("h", {2, 6, 24})),
                operation("aten.view.default", "", {"%h", {2, 6, 3, 4, 2}}, value("v", {2, 6, 3, 4, 2})), next,
                operation("aten.sum.default", "", {read}, value("loss", {}))});
  };
  const Job job = job_of({{"a", "colwise"}});
  EXPECT_FALSE(cut(behind(operation("aten.neg.default", "", {"%v"}, value("n", {2, 6, 3, 4, 2})), "%n"), job));
  Json split = operation("aten.split_with_sizes.default", "", {"%v", {1, 2}, 2}, value("q", {2, 6, 1, 4, 2}));
  split["out"].push_back(value("kv", {2, 6, 2, 4, 2}));
  const auto made = cut(behind(split, "%kv"), job);
  ASSERT_TRUE(made) << made.error().message;
  EXPECT_EQ(shape_of(*made, "kv"), (Shape{2, 6, 2, 2, 2}));
}

/// Two parts, which two ranks would divide, behind moves whose arguments have names.
TEST(OwnPrograms, MovesMayNameTheirArguments) {
  const auto moved = [](const Json& move) {
    return net({2, 6, 8}, {16, 8}, {8, 8},
               {operation("aten.linear.default", "a", {"%x", "@a.weight"}, value("h", {2, 6, 16})),
                operation("aten.view.default", "", {"%h", {2, 6, 2, 4, 2}}, value("v", {2, 6, 2, 4, 2})), move,
                operation("aten.select.int", "", {"%p", 0, 0}, value("q", {6, 2, 4, 2})),
                operation("aten.sum.default", "", {"%q"}, value("loss", {}))});
  };
  Json transpose = operation("aten.transpose.int", "", {"%v"}, value("p", {2, 6, 2, 4, 2}));
  transpose["kwargs"] = {{"dim0", 2}, {"dim1", 0}};
  Json permute = operation("aten.permute.default", "", {"%v"}, value("p", {2, 6, 2, 4, 2}));
  permute["kwargs"] = {{"dims", {2, 1, 0, 3, 4}}};
  for (const Json& move : {transpose, permute}) {
    const auto made = cut(moved(move), job_of({{"a", "colwise"}}));
    ASSERT_TRUE(made) << made.error().message;
    EXPECT_EQ(shape_of(*made, "q"), (Shape{6, 2, 2, 2}));
  }
}

TEST(OwnPrograms, TermsAreAddedToZeros) {
  const auto sum_of = [](const char* first) {
    return Json{operation(first, "", {"%x"}, value("z", {6, 8})),
                operation("aten.linear.default", "a", {"%x", "@a.weight"}, value("h", {6, 8})),
                operation("aten.linear.default", "b", {"%h", "@b.weight"}, value("y", {6, 8})),
                operation("aten.add.Tensor", "", {"%z", "%y"}, value("s", {6, 8})),
                operation("aten.sum.default", "", {"%s"}, value("loss", {}))};
  };
  const Job job = job_of({{"", "summed"}, {"a", "colwise"}, {"b", "rowwise"}});
  const auto made = cut(net({6, 8}, {8, 8}, {8, 8}, sum_of("aten.zeros_like.default")), job);
  ASSERT_TRUE(made) << made.error().message;
  EXPECT_FALSE(cut(net({6, 8}, {8, 8}, {8, 8}, sum_of("aten.ones_like.default")), job));
}

/// z[:, :4] = x writes into the zeros, through a view.
TEST(OwnPrograms, WhatWasWrittenIntoIsNoZeros) {
  const auto written = [](const char* first, const Json& args) {
    return Json{operation(first, "", args, value("z", {6, 8})),
                operation("aten.slice.Tensor", "", {"%z", 1, 0, 4}, value("v", {6, 4})),
                operation("aten.slice.Tensor", "", {"%x", 1, 0, 4}, value("w", {6, 4})),
                operation("aten.copy_.default", "", {"%v", "%w"}, {{"name", "v"}}),
                operation("aten.linear.default", "a", {"%x", "@a.weight"}, value("h", {6, 8})),
                operation("aten.linear.default", "b", {"%h", "@b.weight"}, value("y", {6, 8})),
                operation("aten.add.Tensor", "", {"%z", "%y"}, value("s", {6, 8})),
                operation("aten.sum.default", "", {"%s"}, value("loss", {}))};
  };
  const Job job = job_of({{"", "summed"}, {"a", "colwise"}, {"b", "rowwise"}});
  EXPECT_FALSE(cut(net({6, 8}, {8, 8}, {8, 8}, written("aten.zeros_like.default", {"%x"})), job));
  EXPECT_FALSE(cut(net({6, 8}, {8, 8}, {8, 8}, written("aten.new_zeros.default", {"%x", {6, 8}})), job));
}

/// A function of heads [batch, heads, length, width] and what it makes of them.
Json function_of_heads(std::int64_t batch, const Json& made, const Shape& result) {
  Json function = operation("opaque.Function", "", {"%v"}, value("e", result));
  function["opaque"] = made;
  return net({batch, 6, 8}, {8, 8}, {8, 8},
             {operation("aten.linear.default", "a", {"%x", "@a.weight"}, value("h", {batch, 6, 8})),
              operation("aten.view.default", "", {"%h", {batch, 6, 4, 2}}, value("u", {batch, 6, 4, 2})),
              operation("aten.transpose.int", "", {"%u", 1, 2}, value("v", {batch, 4, 6, 2})), function,
              operation("aten.sum.default", "", {"%e"}, value("loss", {}))});
}

TEST(OwnPrograms, ABatchOfAsManySamplesAsThereAreHeadsIsWhole) {
  const Json made = {
      {"saved", {{{"shape", {4, 6, 4}}, {"dtype", "float32"}}, {{"shape", {4, 6, 2}}, {"dtype", "float32"}}}}};
  const auto part = cut(function_of_heads(4, made, {4, 2, 12, 2}), job_of({{"a", "colwise"}}));
  ASSERT_TRUE(part) << part.error().message;
  EXPECT_EQ(shape_of(*part, "e"), (Shape{4, 1, 12, 2}));
  const OpaqueOp& function = part->opaques[static_cast<std::size_t>(op_of(*part, "opaque.Function").opaque)];
  EXPECT_EQ(function.saved[0].shape, (Shape{4, 6, 2}));
}

/// Work and traffic are in proportion to what a function is given. A statistic of one dimension is not, bytes are.
TEST(OwnPrograms, AFunctionsWorkIsTheRanks) {
  Json made = {{"saved", {{{"shape", {96}}, {"dtype", "float32"}}, {{"shape", {97}}, {"dtype", "uint8"}}}},
               {"bytes_moved", 3},
               {"flops", 400},
               {"backward_flops", 1000}};
  Json model = function_of_heads(2, made, {2, 4, 6, 2});
  model["ops"][3]["kwargs"] = {{"meets", {{"all_to_all", 0, 1}}}};
  model["mesh"] = {{{"name", "script"}, {"ranks", {0, 2}}, {"place", 0}}};
  const auto part = cut(model, job_of({{"a", "colwise"}}));
  ASSERT_TRUE(part) << part.error().message;
  const Op& op = op_of(*part, "opaque.Function");
  const OpaqueOp& function = part->opaques[static_cast<std::size_t>(op.opaque)];
  EXPECT_EQ(function.saved[0].shape, (Shape{96}));
  EXPECT_EQ(function.saved[1].shape, (Shape{49}));
  EXPECT_EQ(function.bytes_moved, 2);
  EXPECT_EQ(function.flops, 200);
  EXPECT_EQ(function.backward_flops, 500);
  const auto& row = std::get<ArgList>(std::get<ArgList>(op.kwargs.front().arg.value).front().value);
  EXPECT_EQ(std::get<std::int64_t>(row[2].value), 1);
  made.erase("backward_flops");
  const auto unsaid = cut(function_of_heads(2, made, {2, 4, 6, 2}), job_of({{"a", "colwise"}}));
  ASSERT_TRUE(unsaid) << unsaid.error().message;
  EXPECT_EQ(unsaid->opaques[static_cast<std::size_t>(op_of(*unsaid, "opaque.Function").opaque)].backward_flops, -1);
}

/// Heads that were repeated for their groups: eight of four. What has as many is cut as they are, and of what has
/// others nobody can tell whose they are.
TEST(OwnPrograms, NeighboursOfTheCutStandAroundAFunctionsResultToo) {
  const auto repeated = [](const Shape& result) {
    Json model = function_of_heads(2, {{"saved", Json::array()}}, result);
    Json& ops = model["ops"];
    ops[3]["args"] = {"%r"};
    ops.insert(ops.begin() + 3,
               operation("aten.repeat_interleave.self_int", "", {"%v", 2, 1}, value("r", {2, 8, 6, 2})));
    return model;
  };
  Json model = repeated({2, 8, 6, 2});
  const Json both = Json::array({Json::array({"%e", "%r"})});  // of one cut
  model["ops"][5] = operation("aten.stack.default", "", both, value("g", {2, 2, 8, 6, 2}));
  model["ops"].push_back(operation("aten.sum.default", "", {"%g"}, value("loss", {})));
  const auto made = cut(model, job_of({{"a", "colwise"}}));
  ASSERT_TRUE(made) << made.error().message;
  EXPECT_EQ(shape_of(*made, "e"), (Shape{2, 4, 6, 2}));
  EXPECT_EQ(shape_of(*made, "g"), (Shape{2, 2, 4, 6, 2}));
  EXPECT_FALSE(cut(repeated({2, 4, 12, 2}), job_of({{"a", "colwise"}})));
}

/// Ranks of one group that lie across the tensor ranks by its first gap alone, and groups that the world has no room
/// for.
TEST(OwnPrograms, GroupsLieAcrossTheTensorRanksAsAWhole) {
  Json model = function_of_heads(2, {{"saved", Json::array()}}, {2, 4, 6, 2});
  model["mesh"] = {{{"name", "script"}, {"ranks", {0, 2, 3, 5}}, {"place", 0}},
                   {{"name", "script2"}, {"ranks", {0, 2}}, {"place", 0}}};
  Job job = job_of({{"a", "colwise"}});
  const auto made = cut(model, job);
  ASSERT_TRUE(made) << made.error().message;
  ASSERT_EQ(made->mesh.size(), 2U);
  EXPECT_EQ(made->mesh[0].name, "script2");
  job.cluster.world_size = 6;
  const auto world = cut(model, job);
  ASSERT_FALSE(world);
  EXPECT_EQ(world.error().place, "cluster.world_size");
}

/// An autograd function that exchanges heads for positions with ranks across the tensor dimension (Ulysses), and one
/// group along it, which is the plan's.
TEST(OwnPrograms, FunctionsThatNobodyLooksIntoWorkOnTheRanksPart) {
  Json exchange = operation("opaque.Exchange", "", {"%v"}, value("e", {2, 2, 12, 2}));
  exchange["kwargs"] = {{"meets", {{"all_to_all", 1, 384}, {"all_reduce", 0, 8}}},
                        {"meets_backward", {{"all_reduce", 0, 8}}}};
  exchange["opaque"] = {
      {"saved", {{{"shape", {2, 4, 6, 1}}, {"dtype", "float32"}}}},
      {"bytes_moved", 768},
      {"backward", {{{"shape", {2, 4, 6, 2}}, {"dtype", "float32"}}, {{"shape", {384}}, {"dtype", "uint8"}}}}};
  const Json ops = {operation("aten.linear.default", "a", {"%x", "@a.weight"}, value("h", {2, 6, 8})),
                    operation("aten.view.default", "", {"%h", {2, 6, 4, 2}}, value("u", {2, 6, 4, 2})),
                    operation("aten.transpose.int", "", {"%u", 1, 2}, value("v", {2, 4, 6, 2})), exchange,
                    operation("aten.sum.default", "", {"%e"}, value("loss", {}))};
  Json model = net({2, 6, 8}, {8, 8}, {8, 8}, ops);
  model["mesh"] = {{{"name", "script"}, {"ranks", {0, 1}}, {"place", 0}},
                   {{"name", "script2"}, {"ranks", {0, 2}}, {"place", 0}}};
  const auto made = cut(model, job_of({{"a", "colwise"}}));
  ASSERT_TRUE(made) << made.error().message;
  EXPECT_EQ(shape_of(*made, "e"), (Shape{2, 1, 12, 2}));
  const Op& op = op_of(*made, "opaque.Exchange");
  const OpaqueOp& part = made->opaques[static_cast<std::size_t>(op.opaque)];
  EXPECT_EQ(part.saved.front().shape, (Shape{2, 2, 6, 1}));
  EXPECT_EQ(part.backward[0].shape, (Shape{2, 2, 6, 2}));
  EXPECT_EQ(part.backward[1].shape, (Shape{192}));
  EXPECT_EQ(part.bytes_moved, 384);
  ASSERT_EQ(op.kwargs.size(), 1U);  // of its backward nothing is left
  const auto& row = std::get<ArgList>(std::get<ArgList>(op.kwargs.front().arg.value).front().value);
  EXPECT_EQ(std::get<std::int64_t>(row[1].value), 0);
  EXPECT_EQ(std::get<std::int64_t>(row[2].value), 192);
  ASSERT_EQ(made->mesh.size(), 2U);
  EXPECT_EQ(made->mesh[0], (MeshDimension{"script2", {0, 2}, 0}));
  EXPECT_EQ(made->mesh[1].name, "tensor");
}

}  // namespace
}  // namespace foreshard
