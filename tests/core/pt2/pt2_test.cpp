// The reader of .pt2 archives on small ones written by PyTorch 2.11.
#include <gtest/gtest.h>

#include <algorithm>

#include "core/model/sources/load_model.h"
#include "core/model/pt2/archive.h"
#include "core/model/pt2/program.h"

namespace foreshard {
namespace {

Result<Model> load(const std::string& name, ModelOptions options = {}) {
  options.source = std::string(FORESHARD_TEST_DATA) + "/pt2/" + name + ".pt2";
  return load_model(options);
}

std::string error_of(const std::string& name) {
  const auto model = load(name);
  return model ? "accepted" : to_text(model.error());
}

TEST(Pt2Model, KnowsSharedTensorsOfRealWeightsByTheirStorage) {
  const auto model = load("user_mlp_shared");
  ASSERT_TRUE(model) << to_text(model.error());
  EXPECT_EQ(model->params[model->find_param("head.weight").index()].shares, model->find_param("embed.weight"));
  EXPECT_EQ(model->modules[model->find_module("c").index()].alias_of, model->find_module("a"));
}

TEST(Pt2Model, StrictExportNamesAliasesOnlyInTheWeightsConfiguration) {
  const auto model = load("user_mlp_strict");
  ASSERT_TRUE(model) << to_text(model.error());
  EXPECT_EQ(model->params[model->find_param("c.bias").index()].shares, model->find_param("a.bias"));
}

TEST(Pt2Model, AddsCrossEntropyUnlessTheLossIsNone) {
  EXPECT_TRUE(load("user_mlp_shared")->has_loss);
  ModelOptions options;
  options.loss = "none";
  EXPECT_FALSE(load("user_mlp_shared", options)->has_loss);
}

TEST(Pt2Model, BatchBindsTheFirstDimensionWithinItsRange) {
  ModelOptions options;
  options.batch = 32;
  const auto model = load("dynamic_two_dims", options);
  ASSERT_TRUE(model) << to_text(model.error());
  EXPECT_EQ(model->values[model->inputs[0].index()].shape, (Shape{32, 12}));
  EXPECT_EQ(model->values[model->ops[0].out[0].index()].shape, (Shape{64, 12}));
  options.batch = 257;
  EXPECT_FALSE(load("dynamic_two_dims", options));
}

TEST(Pt2Model, DimsNameSymbolsOrPlacesAndGoBeforeBatch) {
  ModelOptions options;
  options.batch = 32;
  options.dims = {{"x.0", 7}};
  const auto model = load("dynamic_two_dims", options);
  ASSERT_TRUE(model) << to_text(model.error());
  EXPECT_EQ(model->values[model->inputs[0].index()].shape, (Shape{7, 12}));
}

TEST(Pt2Model, ADimThatIsNotThereIsToldThoseThatAre) {
  ModelOptions options;
  options.dims = {{"rows", 7}};
  const auto model = load("dynamic_two_dims", options);
  ASSERT_FALSE(model);
  EXPECT_EQ(model.error().place, "model.dims.rows");
  EXPECT_NE(model.error().expected.find("(x.0: "), std::string::npos) << model.error().expected;
  options.dims = {{"x.0", 100'000}};
  EXPECT_EQ(load("dynamic_two_dims", options).error().code, ErrorCode::OutOfRange);
  EXPECT_NE(load("user_mlp_shared", options).error().expected.find("all of its sizes are fixed"), std::string::npos);
}

TEST(Pt2Model, AutocastCastsAreWrittenThoughTheArchiveLeavesThemOut) {
  ModelOptions options;
  options.loss = "none";
  const auto model = load("autocast_and_no_grad", options);
  ASSERT_TRUE(model) << to_text(model.error());
  const auto count = [&](std::string_view name) {
    return std::count_if(model->ops.begin(), model->ops.end(), [&](const Op& op) { return op.name == name; });
  };
  EXPECT_EQ(count("aten.detach.default"), 1);    // the operand of torch.no_grad
  EXPECT_EQ(count("aten._to_copy.default"), 4);  // input, weight, bias, and the written one back
}

TEST(Pt2Stack, NamesWithCommasAndSemicolonsAreFoundByTheKey) {
  std::vector<Pt2Frame> frames;
  ASSERT_TRUE(parse_module_stack("L__self__,,m.Net;L__self__layers.c;d@2,layers.c;d,torch.nn.Linear", frames));
  ASSERT_EQ(frames.size(), 2U);
  EXPECT_EQ(frames[1].path, "layers.c;d");
  EXPECT_EQ(frames[1].call, 2);
  EXPECT_TRUE(load("odd_module_names")->find_module("layers.a,b").valid());
}

TEST(Pt2Symbols, AreParsedAndNeverRun) {
  const auto expr = parse_sym_expr("Add(Mul(Integer(2), Symbol('s1', positive=True)), Integer(-1))");
  ASSERT_TRUE(expr);
  EXPECT_EQ(evaluate(*expr, {{"s1", 7}}), 13);
  EXPECT_FALSE(evaluate(*expr, {}));
  EXPECT_FALSE(parse_sym_expr("__import__('os')"));
}

TEST(Pt2Reader, WeightsHaveTheProgramsSizesAndLieInTheirStorage) {
  const auto members = read_pt2_archive(std::string(FORESHARD_TEST_DATA) + "/pt2/user_mlp_shared.pt2");
  ASSERT_TRUE(members);
  const auto answer = [&](const std::string& key, const std::string& from, const std::string& to) -> std::string {
    Pt2Members changed = *members;
    const std::size_t weight = changed.weights.find("\"embed.weight\"");
    const std::size_t at = changed.weights.find(from, changed.weights.find("\"" + key + "\"", weight));
    if (weight == std::string::npos || at == std::string::npos) return "the archive is not as expected";
    changed.weights.replace(at, from.size(), to);
    const auto program = parse_pt2_program(std::move(changed), "x.pt2");
    return program ? "accepted" : to_text(program.error());
  };
  EXPECT_EQ(answer("use_pickle", "false", "false"), "accepted");
  EXPECT_NE(answer("use_pickle", "false", "true").find("pickle"), std::string::npos);
  EXPECT_NE(answer("sizes", "40", "4000").find("\"embed.weight\" are not the program's"), std::string::npos);
  EXPECT_NE(answer("storage_offset", "0", "1").find("\"embed.weight\" reaches beyond"), std::string::npos);
}

TEST(Pt2Reader, BadArchivesAreToldByWhatIsWrong) {
  EXPECT_NE(error_of("two_roots").find("other"), std::string::npos);
  EXPECT_NE(error_of("value_written_twice").find("gelu"), std::string::npos);
  EXPECT_NE(error_of("weight_path_traversal").find("embed.weight"), std::string::npos);
  EXPECT_NE(error_of("truncated").find("truncated"), std::string::npos);
  EXPECT_NE(error_of("deep_json").find("depth"), std::string::npos);
  EXPECT_NE(error_of("param_named_twice").find("net.0.weight"), std::string::npos);
}

}  // namespace
}  // namespace foreshard
