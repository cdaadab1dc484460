// The reader of .pt2 archives on small ones written by PyTorch 2.11.
#include <gtest/gtest.h>

#include <algorithm>

#include "core/lowering/lowering.h"
#include "core/model/pt2/archive.h"
#include "core/model/pt2/lifetimes.h"
#include "core/model/pt2/payload.h"
#include "core/model/pt2/program.h"
#include "core/model/sources/load_model.h"

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

/// Three stages of which two are called, a linear layer and a norm that nobody calls: the third stage is like the
/// others, the layer and the norm are like nothing that is called.
TEST(Pt2Model, AModuleThatNobodyCallsIsOfTheClassOfThoseItIsLike) {
  const auto model = load("never_called");
  ASSERT_TRUE(model) << to_text(model.error());
  const auto class_of = [&](const char* fqn) { return model->modules[model->find_module(fqn).index()].class_name; };
  EXPECT_EQ(class_of("stages.1"), "Stage");
  EXPECT_EQ(class_of("stages.2"), "Stage");
  EXPECT_EQ(class_of("stages.2.conv"), "Conv2d");
  EXPECT_EQ(class_of("stages.2.norm"), "BatchNorm2d");
  EXPECT_EQ(class_of("stages"), "ModuleList");
  EXPECT_EQ(class_of("spare"), "ModuleList");
  EXPECT_EQ(class_of("spare.1"), "Module");
}

TEST(Pt2Model, AddsCrossEntropyUnlessTheLossIsNone) {
  EXPECT_TRUE(load("user_mlp_shared")->has_loss);
  ModelOptions options;
  options.loss = "none";
  EXPECT_FALSE(load("user_mlp_shared", options)->has_loss);
}

std::string param_of(const Model& model, const Op& op) {
  std::string found;
  for (const Arg& arg : op.args)
    if (const auto* param = std::get_if<ParamRef>(&arg.value)) found = model.params[param->id.index()].fqn;
  return found;
}

const ValueInfo& result_of(const Model& model, std::string_view op, int nth = 0) {
  for (const Op& row : model.ops)
    if (row.name == op && nth-- == 0) return model.values[row.out.at(0).index()];
  static const ValueInfo kNone;
  return kNone;
}

TEST(Pt2Facts, AForwardThatReturnsLogitsAndLossHasItsLossInside) {
  const auto model = load("logits_and_loss");
  ASSERT_TRUE(model) << to_text(model.error());
  EXPECT_TRUE(model->has_loss);
  EXPECT_EQ(model->loss_begin, -1);
  ASSERT_EQ(model->outputs.size(), 2U);
  EXPECT_TRUE(model->values[model->outputs[0].index()].shape.empty());  // the loss comes first, whatever the order
  const ValueInfo& logits = model->values[model->outputs[1].index()];
  EXPECT_EQ(logits.shape, (Shape{2, 4, 16}));
  EXPECT_EQ(logits.held.until, Hold::Until::Step);  // `logits, loss = model(...)`
  for (const ValueId id : model->inputs) EXPECT_FALSE(model->values[id.index()].alias_of.valid());
}

TEST(Pt2Facts, ALossBehindAnArchiveIsTheScripts) {
  const auto model = load("tied_head");
  ASSERT_TRUE(model) << to_text(model.error());
  ASSERT_GE(model->loss_begin, 1);
  const Op& first = model->ops[static_cast<std::size_t>(model->loss_begin)];
  EXPECT_EQ(std::get<ValueRef>(first.args[0].value).id, model->outputs[1]);
  EXPECT_EQ(model->values[model->outputs[1].index()].held.until, Hold::Until::Step);
}

TEST(Pt2Facts, LinesOfTheSourceSayWhatHasAName) {
  const auto model = load("tied_head");
  ASSERT_TRUE(model) << to_text(model.error());
  EXPECT_EQ(model->lifetimes, Lifetimes::Assumed);
  const auto op_of = [&](std::string_view name) {
    return static_cast<std::int32_t>(
        std::find_if(model->ops.begin(), model->ops.end(), [&](const Op& op) { return op.name == name; }) -
        model->ops.begin());
  };
  // y = self.fc(x); z = y * 2; z = torch.relu(z); return self.norm(z + x)
  const std::int32_t relu = op_of("aten.relu.default"), sum = op_of("aten.add.Tensor");
  ASSERT_LT(relu, sum);
  EXPECT_EQ(result_of(*model, "aten.mul.Tensor").held, Hold{});    // "z" is given away where it is last used
  const Hold& y = result_of(*model, "aten.view.default", 1).held;  // the linear layer's result
  EXPECT_EQ(y.until, Hold::Until::Op);
  EXPECT_GT(y.op, sum);  // until the block's function returns
  EXPECT_EQ(result_of(*model, "aten.relu.default").held.op, y.op);
  EXPECT_EQ(result_of(*model, "aten.add.Tensor").held, Hold{});  // nobody names z + x
}

TEST(Pt2Facts, WithoutStacksOrLinesOnlyTheOutputsAndWhatACompositeIsHandedAreHeld) {
  const auto model = load("no_stacks");
  ASSERT_TRUE(model) << to_text(model.error());
  EXPECT_EQ(model->lifetimes, Lifetimes::Assumed);
  std::size_t operands = 0;
  for (const ValueInfo& value : model->values) {
    if (&value == &model->values[model->outputs[1].index()] || value.held == Hold{}) continue;
    ++operands;
    ASSERT_EQ(value.held.until, Hold::Until::Op) << value.name;
    // linear: its input is handed to the view and lives until the view of its result
    const auto last = static_cast<std::size_t>(value.held.op);
    EXPECT_TRUE(model->ops[last].name.ends_with("view.default")) << value.name;
    EXPECT_TRUE(model->ops[last - 1].name.ends_with("mm.default")) << value.name;
  }
  EXPECT_EQ(operands, 3u);
  const auto segment = static_cast<std::int32_t>(model->ops.size());
  EXPECT_TRUE(lower(*model, {{0, segment}}, std::vector<bool>(model->params.size(), true)));
}

TEST(Pt2Facts, UsesOfATiedParameterGetTheNameOfTheirModule) {
  const auto model = load("tied_head");
  ASSERT_TRUE(model) << to_text(model.error());
  const ParamId head = model->find_param("head.weight");
  EXPECT_EQ(model->params[head.index()].shares, model->find_param("embed.weight"));
  EXPECT_EQ(param_of(*model, model->ops[0]), "embed.weight");
  bool by_head = false;
  for (const Op& op : model->ops) by_head = by_head || param_of(*model, op) == "head.weight";
  EXPECT_TRUE(by_head);
  const auto without = load("no_stacks");  // nobody knows the module: the name that holds the tensor
  for (const Op& op : without->ops) EXPECT_NE(param_of(*without, op), "head.weight");
}

TEST(Pt2Facts, NamesThatALineAssigns) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(assigned_names("x = f(y)"), Names{"x"});
  EXPECT_EQ(assigned_names("  q, k = rotate(q, k)"), (Names{"q", "k"}));
  EXPECT_EQ(assigned_names("x += y"), Names{"x"});
  EXPECT_EQ(assigned_names("x: Tensor = f(y)"), Names{"x"});
  EXPECT_EQ(assigned_names("return self.norm(z + x)"), Names{});
  EXPECT_EQ(assigned_names("self.cache = x"), Names{});
  EXPECT_EQ(assigned_names("x == y"), Names{});
  EXPECT_EQ(assigned_names("f(x=1)"), Names{});
  EXPECT_EQ(assigned_names(""), Names{});
}

TEST(Pt2Facts, StackTracesAreReadLineByLine) {
  const auto lines = parse_stack_trace(
      "  File \"a, line 3, in b.py\", line 17, in forward\n    x = block(x)\n  File \"b.py\", line 5, in rotate\n    y "
      "= x * 2\n   ^^^\nnoise");
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0].file, "a, line 3, in b.py");
  EXPECT_EQ(lines[0].number, 17);
  EXPECT_EQ(lines[1].function, "rotate");
  EXPECT_EQ(lines[1].code, "y = x * 2");
  EXPECT_TRUE(parse_stack_trace("File \"x\", line").empty());
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

TEST(Pt2Reader, OneOfSeveralProgramsIsTakenByItsName) {
  const auto of = [](const std::string& program) {
    ModelOptions options;
    options.program = program;
    return load("two_programs", options);
  };
  const auto encoder = of("encoder"), probe = of("probe");
  ASSERT_TRUE(encoder) << to_text(encoder.error());
  ASSERT_TRUE(probe) << to_text(probe.error());
  EXPECT_TRUE(encoder->find_param("blocks.1.up.weight").valid());
  EXPECT_FALSE(encoder->find_param("norm.weight").valid());
  EXPECT_EQ(probe->params.size(), 4U);
  EXPECT_EQ(probe->modules[0].class_name, "Probe");
  for (const std::string wrong : {"", "prob"}) {
    const auto model = of(wrong);
    ASSERT_FALSE(model);
    EXPECT_EQ(model.error().place, "model.program");
    EXPECT_EQ(model.error().expected, "one of \"encoder\", \"probe\"");
  }
  ModelOptions options;
  options.program = "model";  // what torch.export.save calls it
  EXPECT_TRUE(load("user_mlp_shared", options));
  options.program = "other";
  const auto alone = load("user_mlp_shared", options);
  ASSERT_FALSE(alone);
  EXPECT_EQ(alone.error().expected, "\"model\"");
}

TEST(Pt2Reader, WeightsAreThoseOfTheProgramThatIsNamed) {
  const std::string file = std::string(FORESHARD_TEST_DATA) + "/pt2/two_programs.pt2";
  const auto probe = list_pt2_payloads(file, "probe");
  ASSERT_TRUE(probe) << to_text(probe.error());
  EXPECT_EQ(probe->size(), 4U);
  EXPECT_EQ(probe->at("out.weight").sizes, (std::vector<std::int64_t>{5, 12}));
  EXPECT_EQ(list_pt2_payloads(file, "encoder")->count("embed.weight"), 1U);
  EXPECT_FALSE(list_pt2_payloads(file));
}

TEST(Pt2Reader, AUnionOfTheWrongTypeIsToldWhatItMayBe) {
  const auto members = read_pt2_archive(std::string(FORESHARD_TEST_DATA) + "/pt2/user_mlp_shared.pt2");
  ASSERT_TRUE(members);
  const auto answer = [&](const std::string& from, const std::string& to) -> std::string {
    Pt2Members changed = *members;
    const std::size_t at = changed.program.find(from);
    if (at == std::string::npos) return "the archive is not as expected";
    changed.program.replace(at, from.size(), to);
    const auto program = parse_pt2_program(std::move(changed), "x.pt2");
    return program ? "accepted" : to_text(program.error());
  };
  const std::string size = answer("\"as_int\": ", "\"as_intt\": ");
  EXPECT_NE(size.find("as_int|as_"), std::string::npos) << size;
  const std::string argument = answer("\"arg\": {", "\"arg\": 7, \"was\": {");
  EXPECT_NE(argument.find("as_none|as_tensor|as_int"), std::string::npos) << argument;
  EXPECT_NE(answer("\"target\": \"torch.ops", "\"target\": 7, \"was\": \"torch.ops").find("a string"),
            std::string::npos);
}

}  // namespace
}  // namespace foreshard
