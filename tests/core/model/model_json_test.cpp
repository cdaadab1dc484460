#include "core/model/model_json.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "core/model/families/config_model.h"
#include "core/model/sources/job_defaults.h"
#include "core/model/sources/load_model.h"

namespace foreshard {
namespace {

using Json = nlohmann::json;

const std::string kModels = std::string(FORESHARD_TEST_DATA) + "/models/";

// The example of the public face.
constexpr const char* kToy = R"({"schema": "foreshard.model/1", "name": "toy",
 "inputs":  [{"name": "x", "shape": [2, 4], "dtype": "float32", "requires_grad": false}],
 "modules": [{"fqn": "", "class": "Toy"}, {"fqn": "a", "class": "Linear", "bases": ["Module"]}, {"fqn": "b", "class": "Linear"}, {"fqn": "c", "alias_of": "a", "class": "Linear"}],
 "params":  [{"fqn": "a.weight", "shape": [4, 4], "dtype": "float32", "requires_grad": true}, {"fqn": "b.weight", "shape": [4, 4], "dtype": "float32", "shares": "a.weight"}],
 "buffers": [{"fqn": "a.scale", "shape": [1], "dtype": "float32"}],
 "calls":   [{"out": "h", "call": "a", "in": ["x"]}, {"out": "y", "call": "b", "in": ["h"], "checkpoint": "non_reentrant"}],
 "outputs": ["y"]})";

constexpr const char* kProgram =
    R"({"schema": "foreshard.model/1", "name": "ops", "has_loss": true, "compute_dtype": "bfloat16", "tokens_per_batch": 8,
 "architecture": "toy", "block_class": "Block",
 "inputs": [{"name": "x", "shape": [2, 4], "dtype": "bfloat16", "requires_grad": true}],
 "modules": [{"fqn": "", "class": "Toy"}, {"fqn": "a", "class": "Linear"}],
 "params": [{"fqn": "a.weight", "shape": [4, 4], "dtype": "float32"}],
 "buffers": [{"fqn": "a.scale", "shape": [1], "dtype": "float32", "persistent": false}],
 "ops": [{"op": "aten.linear.default", "module": "a", "args": ["%x", "@a.weight", null], "out": [{"name": "h", "shape": [2, 4], "dtype": "bfloat16"}]},
         {"op": "aten.mul_.Tensor", "module": "a", "call": 1, "args": ["%h", "@a.scale"], "out": [{"name": "h"}]},
         {"op": "aten.odd.default", "module": "", "args": [["%h", 1, 1.0, true], -9223372036854775808, 2.5e-300, {"float": "-inf"}, {"text": "%h"}, "plain"],
          "kwargs": {"dtype": {"dtype": "float32"}}, "out": [null, {"name": "y", "shape": [], "dtype": "float32"}]}],
 "outputs": ["y"]})";

constexpr const char* kFacts =
    R"({"schema": "foreshard.model/2", "name": "facts", "has_loss": true, "loss_begin": 2, "lifetimes": "recorded", "choices": "assumed",
 "job": {"train.optimizer.name": "sgd", "train.micro_batches": 2},
 "inputs": [{"name": "x", "shape": [2, 4], "dtype": "float32", "strides": [1, 2]},
            {"name": "y", "shape": [2, 4], "dtype": "float32", "alias_of": "x"}],
 "modules": [{"fqn": "", "class": "Net"}, {"fqn": "a", "class": "Linear"}],
 "params": [{"fqn": "a.weight", "shape": [4, 4], "dtype": "float32"}],
 "ops": [{"op": "aten.linear.default", "module": "a", "args": ["%x", "@a.weight"], "out": [{"name": "h", "shape": [2, 4], "dtype": "float32", "held_until": {"op": 2}}], "region": 0},
         {"op": "opaque.my.gate", "module": "", "args": ["%h"], "out": [{"name": "g", "shape": [2, 4], "dtype": "float32", "held_until": "step"}],
          "opaque": {"saved": ["h", {"shape": [2], "dtype": "int64"}], "bytes_moved": 64, "flops": 5, "backward_flops": 3, "workspace_bytes": 512, "backward": [{"shape": [2, 4], "dtype": "float32", "over_given": 0}, null, {"shape": [2], "dtype": "int64", "over_saved": 1}]}},
         {"op": "aten.mse_loss.default", "module": "", "args": ["%g", "%y"], "out": [{"name": "loss", "shape": [], "dtype": "float32", "held_until": "call", "held_by": "a"}]}],
 "module_calls": [{"module": "a", "args": ["x", "%y"]}],
 "regions": [{"id": 0, "kind": "ops", "module": "a", "args": ["x"], "save": [0], "save_collectives": ["_c10d_functional.reduce_scatter_tensor"], "early_stop": false}],
 "outputs": ["loss", "g"]})";

std::string text_of(const Json& json) { return json.dump(); }

Error error_of(const Json& json) {
  const auto model = parse_model_json(text_of(json), "model.json");
  EXPECT_FALSE(model.has_value()) << json.dump();
  return model ? Error{} : model.error();
}

TEST(ModelJson, StepsOfOptimizersThatWereSeenMakeTheRoundTrip) {
  Json document = Json::parse(kProgram);
  document["optimizers"] = Json::parse(
      R"([{"name": "Own", "params_bytes": 64, "first": {"there": 0, "events": [512, 64, -1]}, "steady": {"there": 1, "events": [512, -2]}}])");
  const auto model = parse_model_json(document.dump(), "model.json");
  ASSERT_TRUE(model) << to_text(model.error());
  ASSERT_EQ(model->optimizers.size(), 1u);
  EXPECT_EQ(model->optimizers[0].steady, (WatchedStep{1, {512, -2}}));
  EXPECT_EQ(*parse_model_json(write_model_json(*model), "model.json"), *model);
  for (const Json& event : {Json(0), Json(-3), Json(18446744073709551615ULL), Json(0.5)}) {  // -3: what is not there
    document["optimizers"][0]["first"]["events"][1] = event;
    const auto wrong = parse_model_json(document.dump(), "model.json");
    ASSERT_FALSE(wrong) << event;
    EXPECT_EQ(wrong.error().place, "optimizers[0].first.events[1]");
  }
  document["optimizers"][0]["first"]["events"] = Json::parse("[512, -1, -1]");  // given back twice
  EXPECT_FALSE(parse_model_json(document.dump(), "model.json"));
}

TEST(ModelJson, EqualValueEqualBytes) {
  for (const char* text : {kToy, kProgram, kFacts}) {
    const auto model = parse_model_json(text, "model.json");
    ASSERT_TRUE(model.has_value()) << to_text(model.error());
    const std::string written = write_model_json(*model);
    const auto again = parse_model_json(written, "model.json");
    ASSERT_TRUE(again.has_value()) << to_text(again.error()) << written;
    EXPECT_EQ(*again, *model) << written;
    EXPECT_EQ(write_model_json(*again), written);
  }
}

TEST(ModelJson, FactsAreRead) {
  const auto model = parse_model_json(kFacts, "model.json");
  ASSERT_TRUE(model) << to_text(model.error());
  EXPECT_EQ(model->loss_begin, 2);
  EXPECT_EQ(model->lifetimes, Lifetimes::Recorded);
  EXPECT_TRUE(model->assumes_choices);
  EXPECT_EQ(model->job.at("train.micro_batches"), "2");
  EXPECT_EQ(model->values[0].strides, (Shape{1, 2}));
  EXPECT_EQ(model->values[1].alias_of, ValueId(std::int32_t{0}));
  EXPECT_EQ(model->values[2].held, (Hold{Hold::Until::Op, 2, {}}));
  EXPECT_EQ(model->values[3].held.until, Hold::Until::Step);
  EXPECT_EQ(model->values[4].held, (Hold{Hold::Until::Call, -1, ModuleId(std::int32_t{1})}));
  EXPECT_EQ(model->module_calls[0].args.size(), 2U);
  EXPECT_EQ(model->regions[0].kind, Region::Kind::Operators);
  EXPECT_EQ(model->ops[0].region, 0);
  const OpaqueOp& opaque = model->opaques[static_cast<std::size_t>(model->ops[1].opaque)];
  EXPECT_EQ(opaque.saved[0].value, ValueId(std::int32_t{2}));
  EXPECT_EQ(opaque.saved[1].dtype, DType::Int64);
  EXPECT_FALSE(opaque.backward[1].made);
  EXPECT_EQ(opaque.backward[0].storage, OpaqueOp::Gradient::Storage::Given);
  EXPECT_EQ(opaque.backward[2].storage, OpaqueOp::Gradient::Storage::Saved);
  EXPECT_EQ(opaque.backward[2].of, 1);
}

/// What one rank of several has run: its groups, its parts, and the collectives of the script's own code.
constexpr const char* kRank =
    R"({"schema": "foreshard.model/2", "name": "rank", "lifetimes": "recorded",
 "mesh": [{"name": "expert", "ranks": [2, 3], "place": 1}, {"name": "world", "ranks": [0, 1, 2, 3], "place": 3}],
 "inputs": [{"name": "x", "shape": [2, 4], "dtype": "float32"}],
 "modules": [{"fqn": "", "class": "Net"}],
 "params": [{"fqn": "up", "shape": [4, 4], "dtype": "float32", "part": {"mesh": 0, "dim": 0, "whole": 8, "begin": 4}},
            {"fqn": "down", "shape": [4, 4], "dtype": "float32", "part": {"mesh": 0}}],
 "ops": [{"op": "mesh.all_to_all", "module": "", "args": ["%x", 0, 2], "out": [{"name": "h", "shape": [2, 4], "dtype": "float32"}]},
         {"op": "opaque.Sum", "module": "", "args": ["%h"], "kwargs": {"meets": [["all_reduce", 1, 32]], "meets_backward": [["all_to_all", 0, 32, true]]},
          "out": [{"name": "y", "shape": [2, 4], "dtype": "float32"}], "opaque": {"saved": [], "backward": [{"shape": [2, 4], "dtype": "float32"}]}}],
 "outputs": ["y"]})";

TEST(ModelJson, TheProgramOfOneRankNamesItsGroups) {
  const auto model = parse_model_json(kRank, "model.json");
  ASSERT_TRUE(model) << model.error().message;
  EXPECT_EQ(model->mesh[0], (MeshDimension{"expert", {2, 3}, 1}));
  EXPECT_EQ(model->params[0].part, (MeshPart{0, 0, 8, 4}));
  EXPECT_EQ(model->params[1].part, MeshPart{0});
  const std::string written = write_model_json(*model);
  const auto again = parse_model_json(written, "model.json");
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(*again, *model);
  const auto broken = [](const char* pointer, Json value) {
    Json json = Json::parse(kRank);
    json[Json::json_pointer(pointer)] = std::move(value);
    return error_of(json).place;
  };
  EXPECT_EQ(broken("/mesh/0/ranks", {1}), "mesh[0].ranks");
  EXPECT_EQ(broken("/mesh/0/ranks/0", -1), "mesh[0].ranks");
  EXPECT_EQ(broken("/mesh/0/place", 2), "mesh[0].place");
  EXPECT_EQ(broken("/params/0/part/mesh", 2), "params[0].part.mesh");
  EXPECT_EQ(broken("/params/0/part", Json::object()), "params[0].part.mesh");
  EXPECT_EQ(broken("/ops/0/op", "mesh.all_gather"), "ops[0].op");
  EXPECT_EQ(broken("/ops/0/args/1", 2), "ops[0].kwargs");
  EXPECT_EQ(broken("/ops/1/kwargs/meets/0/1", -1), "ops[1].kwargs");
  EXPECT_EQ(broken("/ops/1/kwargs/meets/0", "all_reduce"), "ops[1].kwargs");
  EXPECT_EQ(broken("/ops/1/kwargs/meets/0/0", "broadcast"), "ops[1].kwargs");
  EXPECT_EQ(broken("/ops/1/kwargs/meets/0/2", -1), "ops[1].kwargs");
  EXPECT_EQ(broken("/ops/1/kwargs/releases", {"nobody"}), "ops[1].kwargs");
  EXPECT_EQ(broken("/ops/1/kwargs/releases", {3}), "ops[1].kwargs");
  EXPECT_EQ(broken("/ops/1/kwargs/releases", 3), "ops[1].kwargs");
  EXPECT_EQ(broken("/ops/1/kwargs/meets_backward/0/2", 1.5), "ops[1].kwargs");
}

TEST(ModelJson, AValueTakesThePlaceOfABuffer) {
  Json json = Json::parse(kFacts);
  json["buffers"] = Json::array({{{"fqn", "a.mean"}, {"shape", {4}}, {"dtype", "float32"}},
                                 {{"fqn", "a.count"}, {"shape", {4}}, {"dtype", "float32"}}});
  json["ops"][0]["out"][0]["held_until"] = {{"next", "a.count"}};
  const auto model = parse_model_json(text_of(json), "model.json");
  ASSERT_TRUE(model) << to_text(model.error());
  EXPECT_EQ(model->values[2].held, (Hold{Hold::Until::Next, 1, {}}));
  const auto again = parse_model_json(write_model_json(*model), "model.json");
  ASSERT_TRUE(again) << to_text(again.error());
  EXPECT_EQ(*again, *model);
  json["ops"][0]["out"][0]["held_until"] = {{"next", "a.sum"}};
  EXPECT_NE(to_text(error_of(json)).find("no buffer has this name"), std::string::npos);
}

TEST(ModelJson, FactsThatCannotBeAreNamed) {
  const auto error = [](const char* pointer, const Json& value) {
    Json json = Json::parse(kFacts);
    json[Json::json_pointer(pointer)] = value;
    return to_text(error_of(json));
  };
  EXPECT_NE(error("/loss_begin", 3).find("there is no such operator"), std::string::npos);
  EXPECT_NE(error("/lifetimes", "guessed").find("built, recorded or assumed"), std::string::npos);
  EXPECT_NE(error("/choices", "guessed").find("computed or assumed"), std::string::npos);
  EXPECT_NE(error("/inputs/0/strides", Json::array({1})).find("strides and shape differ"), std::string::npos);
  EXPECT_NE(error("/inputs/0/alias_of", "y").find("nobody makes the value"), std::string::npos);
  EXPECT_NE(error("/ops/0/out/0/held_until", "never").find("forward"), std::string::npos);
  EXPECT_NE(error("/ops/0/out/0/held_until", {{"op", 9}}).find("there is no such operator"), std::string::npos);
  EXPECT_NE(error("/ops/2/out/0/held_by", "b").find("no module"), std::string::npos);
  EXPECT_NE(error("/ops/0/region", 1).find("there is no such region"), std::string::npos);
  EXPECT_NE(error("/regions/0/kind", "some").find("nonreentrant, reentrant or ops"), std::string::npos);
  EXPECT_NE(error("/regions/0/save", Json::array({1})).find("outside the region"), std::string::npos);
  EXPECT_NE(error("/ops/1/op", "aten.relu.default").find("opaque operators are named so"), std::string::npos);
  EXPECT_NE(error("/ops/1/opaque/backward/2/over_saved", 2).find("over_saved"), std::string::npos) << "two are saved";
  EXPECT_NE(error("/module_calls/0/args", Json::array({"z"})).find("nobody makes the value"), std::string::npos);
}

TEST(ModelJson, WhatALeafDoesToAutogradIsAField) {
  const auto autograd = [](const char* schema, const char* cls, const char* word) {
    Json json = Json::parse(kToy);
    json["schema"] = schema;
    json["modules"][1]["class"] = json["modules"][3]["class"] = cls;
    if (*word != 0) json["calls"][0]["autograd"] = word;
    const auto model = parse_model_json(text_of(json), "model.json");
    EXPECT_TRUE(model) << to_text(model.error());
    const auto again = parse_model_json(write_model_json(*model), "model.json");
    EXPECT_EQ(*again, *model);
    return model->calls[0].steps[0].autograd;
  };
  EXPECT_EQ(autograd("foreshard.model/2", "Linear", ""), LeafAutograd::Linear);
  EXPECT_EQ(autograd("foreshard.model/2", "Linear", "opaque"), LeafAutograd::Opaque);
  EXPECT_EQ(autograd("foreshard.model/2", "Cross", ""), LeafAutograd::Opaque);
  EXPECT_EQ(autograd("foreshard.model/2", "Mine", "linear_times"), LeafAutograd::LinearTimes);
  EXPECT_EQ(autograd("foreshard.model/1", "Cross", ""), LeafAutograd::LinearTimes);  // it had no word for it
}

TEST(ModelJson, EveryConfigModelIsWrittenAndReadBack) {
  for (const char* name : {"llama-3.2-1b", "qwen2.5-0.5b", "gpt2", "mistral-7b-v0.1"}) {
    for (const ProgramDevice device : {ProgramDevice::Cuda, ProgramDevice::Cpu, ProgramDevice::Meta}) {
      const auto model =
          model_from_config(kModels + name + "/config.json", {}, {.compute_dtype = DType::BFloat16, .device = device});
      ASSERT_TRUE(model.has_value());
      const auto again = parse_model_json(write_model_json(*model), "model.json");
      ASSERT_TRUE(again.has_value()) << to_text(again.error());
      EXPECT_TRUE(*again == *model) << name;
    }
  }
}

TEST(ModelJson, CallsBecomeAGraphWithTheRootsInputsAndOutputs) {
  const auto model = parse_model_json(kToy, "model.json");
  ASSERT_TRUE(model.has_value()) << to_text(model.error());
  ASSERT_EQ(model->calls.size(), 1u);
  EXPECT_EQ(model->calls[0].inputs, std::vector<std::string>{"x"});
  EXPECT_EQ(model->calls[0].outputs, std::vector<std::string>{"y"});
  EXPECT_EQ(model->calls[0].steps[1].checkpoint, CheckpointKind::NonReentrant);
  EXPECT_EQ(model->params[1].shares, ParamId(0));
  EXPECT_EQ(model->modules[3].alias_of, ModuleId(1));
}

TEST(ModelJson, ContainersNameTheirOwnValues) {
  Json json = Json::parse(kToy);
  json["modules"] = Json::parse(
      R"([{"fqn": "", "class": "Toy"}, {"fqn": "box", "class": "Box"}, {"fqn": "box.a", "class": "Linear"}])");
  json["params"] = Json::parse(R"([{"fqn": "box.a.weight", "shape": [4, 4], "dtype": "float32"}])");
  json.erase("buffers");
  json["calls"] = Json::parse(R"([{"out": "y", "call": "box", "in": ["x"], "iterations": [0, 2]},
    {"in_module": "box", "out": "p", "call": "a", "in": ["u"]}, {"in_module": "box", "out": "q", "op": "add", "in": ["p", "v"]}])");
  const auto model = parse_model_json(text_of(json), "model.json");
  ASSERT_TRUE(model.has_value()) << to_text(model.error());
  EXPECT_EQ(model->calls[1].inputs, (std::vector<std::string>{"u", "v"}));
  EXPECT_EQ(model->calls[1].outputs, std::vector<std::string>{"q"});
  EXPECT_EQ(model->calls[1].steps[0].module, ModuleId(2));
  EXPECT_EQ(model->calls[0].steps[0].iterations, (std::vector<std::int32_t>{0, 2}));
  EXPECT_EQ(*parse_model_json(write_model_json(*model), "x"), *model);
}

TEST(ModelJson, OperatorsThatDoNotReachTheOutputsGiveWayToTheCalls) {
  Json json = Json::parse(kToy);
  json["ops"] = Json::parse(R"([{"op": "aten.linear.default", "module": "a", "args": ["%x", "@a.weight"], "kwargs": {},
    "out": [{"name": "h", "shape": [2, 4], "dtype": "float32"}]}])");
  const auto model = parse_model_json(text_of(json), "model.json");
  ASSERT_TRUE(model.has_value()) << to_text(model.error());
  EXPECT_TRUE(model->ops.empty());
  EXPECT_EQ(model->calls[0].outputs, std::vector<std::string>{"y"});
}

TEST(ModelJson, UnknownKeysNameTheNearestKnownOne) {
  Json json = Json::parse(kToy);
  json["modles"] = 1;
  Error error = error_of(json);
  EXPECT_EQ(error.code, ErrorCode::UnknownKey);
  EXPECT_EQ(error.hint, "did you mean \"modules\"?");
  json = Json::parse(kToy);
  json["params"][0]["shap"] = 1;
  error = error_of(json);
  EXPECT_EQ(error.place, "params[0].shap");
  EXPECT_EQ(error.hint, "did you mean \"shape\"?");
}

struct Broken {
  const char* pointer;
  const char* value;
  ErrorCode code;
  const char* says;
};

TEST(ModelJson, EveryInconsistencyIsNamed) {
  const std::vector<Broken> rows{
      {"/schema", "\"foreshard.model/9\"", ErrorCode::Unsupported, "foreshard.model/9"},
      {"/modules/0/fqn", "\"root\"", ErrorCode::Inconsistent, "root"},
      {"/modules/1/fqn", "\"\"", ErrorCode::Inconsistent, "twice"},
      {"/modules/3/alias_of", "\"d\"", ErrorCode::Inconsistent, "\"d\""},
      {"/modules/3/alias_of", "\"c\"", ErrorCode::Inconsistent, "cyclic"},
      {"/modules/3/alias_of", "\"\"", ErrorCode::Inconsistent, "cyclic"},
      {"/params/1/shares", "\"b.weight\"", ErrorCode::Inconsistent, "cyclic"},
      {"/params/0/shares", "\"b.weight\"", ErrorCode::Inconsistent, "cyclic"},
      {"/params/1/shares", "\"z\"", ErrorCode::Inconsistent, "\"z\""},
      {"/params/1/shape", "[4, 5]", ErrorCode::Inconsistent, "[4,4]"},
      {"/params/1/dtype", "\"float16\"", ErrorCode::Inconsistent, "float16"},
      {"/params/1/requires_grad", "false", ErrorCode::Inconsistent, "gradient"},
      {"/params/0/fqn", "\"z.weight\"", ErrorCode::Inconsistent, "\"z\""},
      {"/params/0/shape", "[-1]", ErrorCode::OutOfRange, "-1"},
      {"/params/0/shape", "[4294967296, 4294967296]", ErrorCode::TooLarge, "overflow"},
      {"/params/0/shape", "[1e9]", ErrorCode::WrongType, "integers"},
      {"/params/0/dtype", "\"bf17\"", ErrorCode::OutOfRange, "bf17"},
      {"/buffers/0/fqn", "\"a.weight\"", ErrorCode::Inconsistent, "taken"},
      {"/inputs/0/shape", "7", ErrorCode::WrongType, "7"},
      {"/calls/0/call", "\"aa\"", ErrorCode::Inconsistent, "\"aa\""},
      {"/calls/0/call", "\"\"", ErrorCode::Inconsistent, "calls itself"},
      {"/calls/0/in", "[\"y\"]", ErrorCode::Inconsistent, "before it is made"},
      {"/calls/0/in", "[\"nobody\"]", ErrorCode::Inconsistent, "nobody"},
      {"/calls/0/checkpoint", "\"yes\"", ErrorCode::OutOfRange, "yes"},
      {"/calls/0/iterations", "[-1]", ErrorCode::OutOfRange, "-1"},
      {"/calls/0/op", "\"add\"", ErrorCode::Inconsistent, "both"},
      {"/calls/0/in_module", "\"q\"", ErrorCode::Inconsistent, "\"q\""},
      {"/outputs", "[\"nobody\"]", ErrorCode::Inconsistent, "nobody"},
      {"/modules", "[]", ErrorCode::Inconsistent, "root"},
      {"/modules", "null", ErrorCode::MissingKey, "modules"},
      {"/tokens_per_batch", "1e99", ErrorCode::WrongType, "tokens_per_batch"},
  };
  for (const Broken& row : rows) {
    Json json = Json::parse(kToy);
    json[Json::json_pointer(row.pointer)] = Json::parse(row.value);
    const Error error = error_of(json);
    EXPECT_EQ(error.code, row.code) << row.pointer << " = " << row.value << ": " << to_text(error);
    EXPECT_NE(to_text(error).find(row.says), std::string::npos)
        << row.pointer << " = " << row.value << ": " << to_text(error);
  }
}

TEST(ModelJson, EveryInconsistencyOfOperatorsIsNamed) {
  const std::vector<Broken> rows{
      {"/ops/0/args/0", "\"%y\"", ErrorCode::Inconsistent, "before it is made"},
      {"/ops/0/args/0", "\"%nobody\"", ErrorCode::Inconsistent, "nobody makes"},
      {"/ops/0/args/1", "\"@a.wait\"", ErrorCode::Inconsistent, "a.wait"},
      {"/ops/0/module", "\"b\"", ErrorCode::Inconsistent, "\"b\""},
      {"/ops/0/out/0/name", "\"x\"", ErrorCode::Inconsistent, "made twice"},
      {"/ops/1/out/0/name", "\"x\"", ErrorCode::Inconsistent, "in place"},
      {"/ops/0/out/0", "3", ErrorCode::WrongType, "object"},
      {"/ops/0/op", "3", ErrorCode::WrongType, "3"},
      {"/ops/2/args/0/1", "18446744073709551615", ErrorCode::TooLarge, "18446744073709551615"},
      {"/ops/2/args/0/1", "{\"float\": \"big\"}", ErrorCode::OutOfRange, "big"},
      {"/ops/2/args/0/1", "{}", ErrorCode::Inconsistent, "constant"},
      {"/ops/0/kwargs", "[]", ErrorCode::WrongType, "kwargs"},
      {"/outputs", "[\"z\"]", ErrorCode::Inconsistent, "\"z\""},
  };
  for (const Broken& row : rows) {
    Json json = Json::parse(kProgram);
    json[Json::json_pointer(row.pointer)] = Json::parse(row.value);
    const Error error = error_of(json);
    EXPECT_EQ(error.code, row.code) << row.pointer << " = " << row.value << ": " << to_text(error);
    EXPECT_NE(to_text(error).find(row.says), std::string::npos)
        << row.pointer << " = " << row.value << ": " << to_text(error);
  }
}

TEST(ModelJson, EveryTruncationIsAnError) {
  for (const std::string text : {kToy, kProgram}) {
    for (std::size_t n = 0; n < text.size(); n += 7) EXPECT_FALSE(parse_model_json(text.substr(0, n), "x")) << n;
  }
  const auto model = model_from_config(kModels + "gpt2/config.json", {});
  const std::string text = write_model_json(*model);
  for (std::size_t n = 0; n < text.size(); n += text.size() / 50)
    EXPECT_FALSE(parse_model_json(text.substr(0, n), "x")) << n;
}

/// Replaces every value of the document, one at a time, by things of every type.
TEST(ModelJson, WrongTypesEverywhereNeverCrash) {
  for (const char* text : {kToy, kProgram}) {
    const Json flat = Json::parse(text).flatten();
    for (const auto& [pointer, unused] : flat.items()) {
      for (const char* wrong : {"null", "true", "-1", "1.5", "1e300", "\"%\"", "\"@\"", "\"\"", "[]", "[[]]", "{}",
                                "{\"dtype\": 3}", "9223372036854775807"}) {
        Json json = Json::parse(text);
        json[Json::json_pointer(pointer)] = Json::parse(wrong);
        const auto model = parse_model_json(text_of(json), "model.json");
        if (model) {
          EXPECT_EQ(*parse_model_json(write_model_json(*model), "x"), *model) << pointer << " = " << wrong;
        }
      }
    }
  }
}

TEST(ModelJson, LongChainsOfContainersDoNotUseTheStack) {
  std::string modules = R"({"fqn": "", "class": "Toy"})", calls, fqn;
  for (int i = 0; i < 3000; ++i) {
    const std::string inside = fqn.empty() ? "m" : fqn + ".m";
    if (inside.size() > 900) break;
    modules += R"(, {"fqn": ")" + inside + R"(", "class": "Box"})";
    calls += std::string(calls.empty() ? "" : ", ") + R"({"in_module": ")" + fqn + R"(", "out": "y", "call": ")" +
             inside + R"(", "in": ["x"]})";
    fqn = inside;
  }
  const std::string text =
      R"({"schema": "foreshard.model/1", "inputs": [{"name": "x", "shape": [1], "dtype": "float32"}], "modules": [)" +
      modules + R"(], "calls": [)" + calls + R"(], "outputs": ["y"]})";
  const auto model = parse_model_json(text, "x");
  EXPECT_TRUE(model.has_value()) << to_text(model.error());
}

/// The example of facts on the disk, with a parameter of float32 that it was captured in `compute`.
std::string captured_file(const std::string& compute) {
  Json json = Json::parse(kFacts);
  json["compute_dtype"] = compute;
  const std::string file = testing::TempDir() + "/captured_" + compute + ".model.json";
  std::ofstream(file) << json.dump();
  return file;
}

TEST(LoadModel, WhatWasCapturedInOnePrecisionIsNotReadInAnother) {
  ModelOptions options;
  ProgramOptions low, kept;
  low.compute_dtype = DType::BFloat16;
  options.source = captured_file("float32");
  EXPECT_TRUE(load_model(options, kept));
  const auto refused = load_model(options, low);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().place, "fsdp.mixed_precision.param");
  EXPECT_EQ(refused.error().expected, "\"none\", as it was captured");
  EXPECT_EQ(refused.error().got, "bfloat16");
  options.source = captured_file("bfloat16");
  EXPECT_TRUE(load_model(options, low));
  EXPECT_EQ(load_model(options, kept).error().expected, "\"bfloat16\", as it was captured");
}

TEST(LoadModel, TheScriptsWordsAreTheJobsDefaults) {
  EXPECT_EQ(job_defaults(captured_file("float32")),
            (std::vector<std::string>{"train.micro_batches=2", "train.optimizer.name=sgd"}));
  EXPECT_TRUE(job_defaults("no/such/model.json").empty());
  EXPECT_TRUE(job_defaults(kModels).empty());
  const std::string config = testing::TempDir() + "/config.json";
  std::ofstream(config) << R"({"model_type": "llama", "job": {"train.steps": 3}})";
  EXPECT_TRUE(job_defaults(config).empty()) << "no model.json";
  const std::string broken = testing::TempDir() + "/broken.json";
  std::ofstream(broken) << R"({"schema": "foreshard.model/2", "job": {"train.st)";
  EXPECT_TRUE(job_defaults(broken).empty());
}

}  // namespace
}  // namespace foreshard
