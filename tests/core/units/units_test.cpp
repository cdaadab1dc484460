// build_units: rules W7..W9, H1, H2, S3, S4, M1, HS1, N1, N2, F2-1..F2-3, F2-12, F2-13, F2-27 and traps 1, 3, 9,
// 12, 13.
#include "core/plan/units/units.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "core/plan/units/differentiated.h"
#include "core/plan/units/name_patterns.h"
#include "tests/core/units/toy_model.h"

namespace foreshard {
namespace {

using testing::alias;
using testing::chain;
using ::testing::ElementsAre;
using testing::fsdp1_job;
using testing::fsdp2_job;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::linear;
using testing::tie;
using testing::toy_model;
using testing::with_units;

UnitTable table_of(const Model& model, const Job& job) {
  auto table = build_units(model, job);
  EXPECT_TRUE(table) << to_text(table.error());
  return table ? *table : UnitTable{};
}

Error error_of(const Model& model, const Job& job) {
  const auto table = build_units(model, job);
  EXPECT_FALSE(table) << "accepted";
  return table ? Error{} : table.error();
}

std::vector<std::string> unit_names(const UnitTable& table) {
  std::vector<std::string> names;
  for (const PlanUnit& unit : table.units) names.push_back(unit.name);
  return names;
}

std::vector<std::string> params_of(const Model& model, const UnitTable& table, const std::string& name) {
  std::vector<std::string> params;
  for (const PlanUnit& unit : table.units) {
    if (unit.name != name) continue;
    for (ParamId p : unit.params) params.push_back(model.params[p.index()].fqn);
  }
  return params;
}

const Trap* trap_of(const UnitTable& table, std::int32_t number) {
  for (const Trap& trap : table.traps) {
    if (trap.number == number) return &trap;
  }
  return nullptr;
}

bool warns(const UnitTable& table, const std::string& text) {
  return std::any_of(table.warnings.begin(), table.warnings.end(),
                     [&](const std::string& w) { return w.find(text) != std::string::npos; });
}

// ---------------------------------------------------------------- orders and ownership

TEST(Units, HandlesAreInRegistrationOrderAndBuiltInPostOrder) {
  const Model model = toy_model({{"", "Graph"},
                                 linear("submod1", 10, 10),
                                 {"submod2", "Graph"},
                                 linear("submod2.subsubmod", 10, 10),
                                 linear("submod2.own", 3, 3)});
  const UnitTable table = table_of(model, with_units(fsdp1_job(), {{"submod2.subsubmod"}, {"submod1"}, {"submod2"}}));
  EXPECT_THAT(unit_names(table), ElementsAre("", "submod1", "submod2", "submod2.subsubmod"));
  EXPECT_THAT(table.build_order, ElementsAre(UnitId(1), UnitId(3), UnitId(2), UnitId(0)));
  EXPECT_THAT(params_of(model, table, "submod2"), ElementsAre("submod2.own.weight"));
  EXPECT_EQ(table.unit_of_module[model.find_module("submod2").index()], UnitId(2));
  EXPECT_FALSE(table.unit_of_module[model.find_module("submod2.own").index()].valid());
  EXPECT_EQ(table.unit_of_param[model.find_param("submod2.subsubmod.weight").index()], UnitId(3));
}

TEST(Units, ModuleClassDefaultsToTheRepeatedBlock) {
  const UnitTable table = table_of(chain(), fsdp1_job());
  EXPECT_THAT(unit_names(table), ElementsAre("", "B0", "B1", "B2"));
  EXPECT_EQ(table.units[0].numel, 40);
  EXPECT_EQ(table.units[1].numel, 100);
  EXPECT_EQ(table.units[1].shard_numel, 25);
}

TEST(Units, AUnitThatManagesNothingIsListedWithoutParameters) {
  const Model model = toy_model({{"", "Graph"}, {"act", "ReLU"}, linear("f", 9, 9)});
  Job job = fsdp1_job();
  job.fsdp.wrap.policy = WrapPolicyKind::Always;
  const UnitTable table = table_of(model, job);
  EXPECT_THAT(unit_names(table), ElementsAre("", "act", "f"));
  EXPECT_THAT(params_of(model, table, ""), IsEmpty());
  EXPECT_EQ(table.units[1].numel, 0);
}

Model tied_in_root() {
  Model model = toy_model({{"", "Graph"}, linear("embed", 4, 10), linear("B0", 10, 10), linear("head", 4, 10)});
  tie(model, "head.weight", "embed.weight");
  return model;
}

TEST(Units, ATensorTiedInsideAUnitIsStoredOnce) {
  const Model model = tied_in_root();
  const UnitTable table = table_of(model, with_units(fsdp1_job(), {{"B0"}}));
  EXPECT_EQ(table.units[0].numel, 40);
  EXPECT_EQ(table.units[0].shared,
            (std::vector<SharedName>{{model.find_param("head.weight"), model.find_param("embed.weight")}}));
  EXPECT_EQ(table.unit_of_param[model.find_param("head.weight").index()], UnitId(0));
  EXPECT_EQ(trap_of(table, 3), nullptr);
}

TEST(Units, FlatParametersUntieATensorSharedAcrossUnits) {
  const Model model = tied_in_root();
  const UnitTable table = table_of(model, with_units(fsdp1_job(), {{"B0"}, {"head"}}));
  EXPECT_THAT(params_of(model, table, ""), ElementsAre("embed.weight"));
  EXPECT_THAT(params_of(model, table, "head"), ElementsAre("head.weight"));
  ASSERT_NE(trap_of(table, 3), nullptr);
  EXPECT_TRUE(trap_of(table, 3)->refused);
  EXPECT_THAT(trap_of(table, 3)->units, ElementsAre("", "head"));
  EXPECT_THAT(trap_of(table, 3)->text, HasSubstr("embed.weight"));
}

TEST(Units, OriginalParametersGoToTheUnitBuiltFirst) {
  const Model model = tied_in_root();
  Job job = with_units(fsdp1_job(), {{"B0"}, {"head"}});
  job.fsdp.use_orig_params = true;
  const UnitTable table = table_of(model, job);
  EXPECT_THAT(params_of(model, table, ""), IsEmpty());
  EXPECT_THAT(params_of(model, table, "head"), ElementsAre("head.weight"));
  EXPECT_TRUE(trap_of(table, 3)->refused);
}

TEST(Units, AModuleRegisteredTwiceGivesItsParametersSharedNames) {
  Model model = toy_model({{"", "Graph"}, {"u", "Linear", {{"weight", {4, 4}}, {"bias", {4}}}}, linear("w", 4, 3)});
  alias(model, "v", "u");
  const UnitTable table = table_of(model, with_units(fsdp1_job(), {{""}}));
  EXPECT_EQ(table.units[0].numel, 32);
  EXPECT_EQ(table.units[0].shared.size(), 2u);
}

TEST(Units, AModuleReachedThroughTwoUnitsIsATrap) {
  Model model = toy_model({{"", "Graph"}, {"p", "Block"}, linear("p.x", 10, 10), {"q", "Block"}, linear("q.y", 10, 5)});
  alias(model, "q.z", "p.x");
  EXPECT_NE(trap_of(table_of(model, with_units(fsdp1_job(), {{"p"}, {"q"}})), 3), nullptr);
  // The unit is the module itself: fsdp2's hooks travel with it.
  EXPECT_EQ(trap_of(table_of(model, with_units(fsdp2_job(), {{"p.x"}, {"q"}})), 9), nullptr);
}

// ---------------------------------------------------------------- H2, M1, W7

TEST(Units, RefusesWhatAFlatParameterCannotHold) {
  const auto refused = [](std::vector<testing::ToyParam> params, bool use_orig_params) {
    Job job = with_units(fsdp1_job(), {{"m"}});
    job.fsdp.use_orig_params = use_orig_params;
    const auto table = build_units(toy_model({{"", "Graph"}, {"m", "Leaf", params}}), job);
    return table ? std::string("accepted") : table.error().place + ": " + table.error().message;
  };
  for (bool orig : {false, true}) {
    EXPECT_THAT(refused({{"a", {3}, DType::Int32, false}}, orig), HasSubstr("unit m: integer"));
    EXPECT_THAT(refused({{"a", {3}}, {"b", {3}, DType::Int32, false}}, orig), HasSubstr("one dtype"));
    EXPECT_THAT(refused({{"a", {3}}, {"b", {3}, DType::BFloat16}}, orig), HasSubstr("one dtype"));
    EXPECT_THAT(refused({{"a", {3}}, {"b", {}}}, orig), HasSubstr("scalar"));
  }
  EXPECT_THAT(refused({{"a", {3}}, {"b", {3}, DType::Float32, false}}, false), HasSubstr("use_orig_params"));
  EXPECT_EQ(refused({{"a", {3}}, {"b", {3}, DType::Float32, false}}, true), "accepted");
}

TEST(Units, AMixtureOfFrozenAndTrainableTrainsAndOnlyPolicyObjectsWarn) {
  Job job = fsdp1_job();
  job.fsdp.use_orig_params = true;
  job.fsdp.frozen = {"B1.f.weight"};
  Model model = chain();
  model.modules[model.find_module("B1").index()].params = {ParamId(model.params.size())};
  model.params.push_back({"B1.scale", {8}, DType::Float32, true, model.find_module("B1"), {}});
  const UnitTable table = table_of(model, job);
  EXPECT_TRUE(table.units[2].requires_grad);
  EXPECT_TRUE(warns(table, "W7"));
  EXPECT_FALSE(warns(table_of(model,
                              [&] {
                                Job by_name = with_units(job, {{"B?"}});
                                return by_name;
                              }()),
                     "W7"));
}

TEST(Units, PrecisionResolvesAsPyTorchDoes) {
  const auto dtypes = [](std::optional<DType> param, std::optional<DType> reduce) {
    Job job = fsdp1_job();
    job.fsdp.mixed_precision.param = param;
    job.fsdp.mixed_precision.reduce = reduce;
    const PlanUnit unit = table_of(chain(), job).units[1];
    return std::pair(unit.param_dtype, unit.reduce_dtype);
  };
  EXPECT_EQ(dtypes(DType::BFloat16, {}), std::pair(DType::BFloat16, DType::BFloat16));
  EXPECT_EQ(dtypes({}, DType::BFloat16), std::pair(DType::Float32, DType::BFloat16));
  EXPECT_EQ(dtypes({}, {}), std::pair(DType::Float32, DType::Float32));
  EXPECT_EQ(dtypes(DType::BFloat16, DType::Float32), std::pair(DType::BFloat16, DType::Float32));
}

TEST(Units, BatchNormUnitsKeepFullPrecision) {
  const Model model = toy_model(
      {{"", "Graph"}, {"conv", "Conv2d", {{"weight", {8, 3, 3, 3}}}}, {"bn", "BatchNorm2d", {{"weight", {8}}}}});
  Job job = fsdp1_job();
  job.fsdp.wrap.classes = {"Conv2d"};
  job.fsdp.mixed_precision.param = DType::BFloat16;
  const UnitTable table = table_of(model, job);
  EXPECT_THAT(unit_names(table), ElementsAre("", "conv", "bn"));
  EXPECT_EQ(table.units[1].param_dtype, DType::BFloat16);
  EXPECT_EQ(table.units[2].param_dtype, DType::Float32);
  EXPECT_EQ(table.precision[2], MixedPrecision::none());
}

// ---------------------------------------------------------------- ignored and frozen

TEST(Units, IgnoredModulesLeaveWithTheirSubtrees) {
  Job job = fsdp1_job();
  job.fsdp.ignored = {"B1"};
  const Model model = chain();
  const UnitTable table = table_of(model, job);
  EXPECT_THAT(unit_names(table), ElementsAre("", "B0", "B2"));
  EXPECT_EQ(table.units[0].numel, 40);
  EXPECT_FALSE(table.unit_of_param[model.find_param("B1.f.weight").index()].valid());
}

TEST(Units, AnIgnoredTensorLeavesUnderAllItsNames) {
  Job job = with_units(fsdp1_job(), {{"B0"}});
  job.fsdp.ignored = {"embed.weight"};
  EXPECT_EQ(table_of(tied_in_root(), job).units[0].numel, 0);
}

TEST(Units, IgnoringTheTopModuleWarns) {
  Job job = fsdp1_job();
  job.fsdp.ignored = {""};
  EXPECT_TRUE(warns(table_of(chain(), job), "N1"));
}

TEST(Units, FrozenParametersDoNotTrain) {
  Job job = fsdp1_job();
  job.fsdp.frozen = {"B0.*", "B1"};
  const Model model = chain();
  const UnitTable table = table_of(model, job);
  EXPECT_FALSE(table.units[1].requires_grad);
  EXPECT_FALSE(table.units[2].requires_grad);
  EXPECT_TRUE(table.units[3].requires_grad);
  EXPECT_FALSE(table.trainable[model.find_param("B0.f.weight").index()]);
  EXPECT_TRUE(table.trainable[model.find_param("head.weight").index()]);
}

TEST(Units, AFlatParameterGivesItsFrozenPartsGradientsToo) {
  Job job = fsdp1_job();
  job.fsdp.frozen = {"embed.weight"};  // in the root's unit, with the head
  job.fsdp.use_orig_params = true;
  const Model model = chain();
  const UnitTable table = table_of(model, job);
  const std::size_t frozen = model.find_param("embed.weight").index();
  EXPECT_FALSE(table.trainable[frozen]);
  EXPECT_TRUE(differentiated_params(table, Runtime::Fsdp1)[frozen]);
  EXPECT_FALSE(differentiated_params(table, Runtime::Fsdp2)[frozen]);
  job.fsdp.frozen = {"embed.weight", "head.weight"};  // the whole unit
  EXPECT_FALSE(differentiated_params(table_of(model, job), Runtime::Fsdp1)[frozen]);
}

// ---------------------------------------------------------------- strategies and groups

TEST(Units, AWorldOfOneDoesNotShard) {
  const UnitTable table = table_of(chain(), fsdp1_job(1));
  for (const PlanUnit& unit : table.units) EXPECT_EQ(unit.strategy, Strategy::NoShard);
  EXPECT_TRUE(warns(table, "S3"));
  EXPECT_EQ(table.units[1].shard_numel, 100);
}

TEST(Units, NoShardWarnsAndKeepsTheGroupsSize) {
  Job job = fsdp1_job();
  job.fsdp.strategy = Strategy::NoShard;
  const UnitTable table = table_of(chain(), job);
  EXPECT_TRUE(warns(table, "S4"));
  EXPECT_EQ(table.units[1].shard_size, 4);
  EXPECT_EQ(table.units[1].padded_numel, 100);
}

TEST(Units, HybridUnitsShardInsideTheirGroup) {
  Job job = fsdp1_job(8);
  job.fsdp.strategy = Strategy::HybridShard;
  job.cluster.shard_group = 4;
  job.cluster.rank = 5;
  const UnitTable table = table_of(chain(), job);
  EXPECT_THAT(table.groups.shard, ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(table.groups.replicate, ElementsAre(1, 5));
  EXPECT_EQ(table.units[1].shard_numel, 25);
  EXPECT_EQ(table.pre_divide, 4);
  EXPECT_EQ(table.post_divide, 2);
}

TEST(Units, AHybridShardGroupOfOneIsRefused) {
  Job job = fsdp1_job();
  job.fsdp.strategy = Strategy::HybridShard;
  job.cluster.shard_group = 1;
  const UnitTable table = table_of(chain(), job);
  ASSERT_NE(trap_of(table, 1), nullptr);
  EXPECT_TRUE(trap_of(table, 1)->refused);
  EXPECT_EQ(table.units[1].strategy, Strategy::NoShard);
  EXPECT_EQ(table.pre_divide * table.post_divide, 4);
  job.fsdp.runtime = Runtime::Fsdp2;  // F2-20: an all-reduce of the full size, nothing is lost
  EXPECT_EQ(trap_of(table_of(chain(), job), 1), nullptr);
}

TEST(Units, OverridesApplyByUnitNameAndTheLastOneWins) {
  Job job = fsdp1_job();
  job.fsdp.overrides = {{.units = {"B*"}, .strategy = Strategy::ShardGradOp},
                        {.units = {"B1"}, .strategy = Strategy::NoShard}};
  MixedPrecision half;
  job.fsdp.overrides.push_back({.units = {""}, .mixed_precision = half});
  const UnitTable table = table_of(chain(), job);
  EXPECT_EQ(table.units[0].strategy, Strategy::FullShard);
  EXPECT_EQ(table.units[0].param_dtype, DType::BFloat16);
  EXPECT_EQ(table.units[1].strategy, Strategy::ShardGradOp);
  EXPECT_EQ(table.units[1].param_dtype, DType::Float32);
  EXPECT_EQ(table.units[2].strategy, Strategy::NoShard);
}

// ---------------------------------------------------------------- fsdp2

TEST(Fsdp2Units, ShardEveryParameterAlongItsRows) {
  const Model model = toy_model({{"", "Graph"}, {"m", "Leaf", {{"a", {5, 3}}, {"b", {4}}}}});
  Job job = with_units(fsdp2_job(2), {{"m"}});
  job.cluster.rank = 1;
  const PlanUnit unit = table_of(model, job).units[1];
  EXPECT_EQ(unit.shard_numel, 9 + 2);
  EXPECT_EQ(unit.padded_numel, 22);
  EXPECT_THAT(unit.sharded[0].local_shape, ElementsAre(2, 3));
  EXPECT_THAT(unit.sharded[0].padded_local_shape, ElementsAre(3, 3));
  EXPECT_TRUE(unit.flat.empty());
}

TEST(Fsdp2Units, AListOfModulesIsOneUnit) {
  const Model model = chain();
  const UnitTable table = table_of(model, with_units(fsdp2_job(), {{"B?"}, {"embed", "head"}}));
  EXPECT_THAT(unit_names(table), ElementsAre("", "embed", "B0", "B1", "B2"));
  EXPECT_EQ(table.units[1].modules, (std::vector<ModuleId>{model.find_module("embed"), model.find_module("head")}));
  EXPECT_THAT(params_of(model, table, "embed"), ElementsAre("embed.weight", "head.weight"));
  EXPECT_EQ(table.unit_of_module[model.find_module("head").index()], UnitId(1));
}

TEST(Fsdp2Units, ParametersAreInPostOrderOfTheirModules) {
  const Model model =
      toy_model({{"", "Graph", {{"token", {4, 4}}}}, {"m", "Graph", {{"own", {4, 4}}}}, linear("m.f", 4, 4)});
  EXPECT_THAT(params_of(model, table_of(model, with_units(fsdp2_job(), {{""}})), ""),
              ElementsAre("m.f.weight", "m.own", "token"));
  EXPECT_THAT(params_of(model, table_of(model, with_units(fsdp1_job(), {{""}})), ""),
              ElementsAre("token", "m.own", "m.f.weight"));
}

TEST(Fsdp2Units, TiedAcrossUnitsIsRefusedAndInOneListStoredOnce) {
  const Model model = tied_in_root();
  const UnitTable apart = table_of(model, with_units(fsdp2_job(), {{"embed"}, {"head"}}));
  ASSERT_NE(trap_of(apart, 9), nullptr);
  EXPECT_TRUE(trap_of(apart, 9)->refused);
  EXPECT_EQ(apart.units[1].numel + apart.units[2].numel, 80);  // in both layouts
  const UnitTable together = table_of(model, with_units(fsdp2_job(), {{"embed", "head"}}));
  EXPECT_EQ(trap_of(together, 9), nullptr);
  EXPECT_EQ(together.units[1].numel, 40);
}

TEST(Fsdp2Units, TheRootKeepsItsParametersUnlessToldOtherwise) {
  using Kind = ReshardAfterForward::Kind;
  Job job = fsdp2_job();
  EXPECT_EQ(table_of(chain(), job).units[0].reshard_after_forward.kind, Kind::False);
  EXPECT_EQ(table_of(chain(), job).units[1].reshard_after_forward.kind, Kind::True);
  job.fsdp.overrides = {{.units = {""}, .reshard_after_forward = ReshardAfterForward{}}};
  EXPECT_EQ(table_of(chain(), job).units[0].reshard_after_forward.kind, Kind::True);
}

TEST(Fsdp2Units, AGroupSizeMustDivideTheShardGroup) {
  using Kind = ReshardAfterForward::Kind;
  const auto resolved = [](std::int64_t size) {
    Job job = fsdp2_job();
    job.fsdp.reshard_after_forward = {Kind::GroupSize, size};
    return build_units(chain(), job);
  };
  EXPECT_EQ(resolved(2)->units[1].reshard_after_forward, (ReshardAfterForward{Kind::GroupSize, 2}));
  EXPECT_EQ(resolved(4)->units[1].reshard_after_forward.kind, Kind::True);
  EXPECT_EQ(resolved(1)->units[1].reshard_after_forward.kind, Kind::False);
  EXPECT_TRUE(warns(*resolved(1), "F2-13"));
  for (std::int64_t size : {0, 3, 8, -2}) EXPECT_EQ(resolved(size).error().code, ErrorCode::OutOfRange);
}

TEST(Fsdp2Units, ShardDimensionsGoByPattern) {
  const Model model = chain();
  Job job = fsdp2_job(2);
  job.fsdp.overrides = {{.units = {"B1"}, .shard_dim = {{"f.weight", 1}}}};
  const UnitTable table = table_of(model, job);
  EXPECT_EQ(table.units[1].sharded[0].shard_dim, 0);
  EXPECT_EQ(table.units[2].sharded[0].shard_dim, 1);
  EXPECT_THAT(table.units[2].sharded[0].local_shape, ElementsAre(10, 5));
  job.cluster.world_size = 3;
  EXPECT_FALSE(build_units(model, job));  // 10 columns over 3 ranks
  job.cluster.world_size = 2;
  job.fsdp.overrides[0].shard_dim = {{"g.weight", 1}};
  EXPECT_THAT(error_of(model, job).hint, HasSubstr("B1.f.weight"));
}

TEST(Fsdp2Units, TrainableParametersOfAUnitNeedOneDtype) {
  const Model mixed = toy_model({{"", "Graph"}, {"m", "Leaf", {{"a", {4, 4}}, {"b", {4, 4}, DType::BFloat16}}}});
  Job job = with_units(fsdp2_job(), {{"m"}});
  EXPECT_THAT(error_of(mixed, job).message, HasSubstr("F2-27"));
  job.fsdp.frozen = {"m.b"};
  EXPECT_EQ(table_of(mixed, job).units[1].orig_dtype, DType::Float32);
}

TEST(Fsdp2Units, KnowsItsTwoStrategiesOnly) {
  Job job = fsdp2_job();
  job.fsdp.strategy = Strategy::ShardGradOp;
  EXPECT_EQ(error_of(chain(), job).code, ErrorCode::Unsupported);
  job.fsdp.strategy = Strategy::FullShard;
  job.fsdp.overrides = {{.units = {"B0"}, .strategy = Strategy::HybridShard}};
  EXPECT_EQ(error_of(chain(), job).code, ErrorCode::Unsupported);
}

TEST(Fsdp2Units, BareContainersAreNoUnits) {
  const Model model = toy_model({{"", "Graph"}, {"layers", "ModuleList"}, linear("layers.0", 4, 4)});
  EXPECT_THAT(error_of(model, with_units(fsdp2_job(), {{"layers"}})).message, HasSubstr("ModuleList"));
  EXPECT_TRUE(warns(table_of(model, with_units(fsdp1_job(), {{"layers"}})), "W5"));
  Job job = fsdp2_job();
  job.fsdp.wrap.policy = WrapPolicyKind::Always;
  EXPECT_THAT(unit_names(table_of(model, job)), ElementsAre("", "layers.0"));
}

// ---------------------------------------------------------------- runtime none, policies, errors

TEST(Units, PlainDataParallelIsOneReplicatedUnit) {
  Job job = fsdp1_job();
  job.fsdp.runtime = Runtime::None;
  const UnitTable table = table_of(chain(), job);
  ASSERT_EQ(table.units.size(), 1u);
  EXPECT_EQ(table.units[0].numel, 340);
  EXPECT_EQ(table.units[0].shard_size, 1);
  EXPECT_EQ(table.units[0].strategy, Strategy::NoShard);
  EXPECT_THAT(table.groups.shard, ElementsAre(0));
  EXPECT_THAT(table.groups.replicate, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(table.traps, IsEmpty());
}

Model chain_with_huge_embedding() {
  Model model = toy_model({{"", "Graph"},
                           linear("embed", 2, 1000),
                           {"B0", "Block"},
                           linear("B0.f", 10, 10),
                           {"B1", "Block"},
                           linear("B1.f", 10, 10),
                           linear("norm", 3, 3),
                           linear("head", 2, 1000)});
  model.block_class = "Block";
  return model;
}

TEST(Units, AutoAddsEmbeddingAndHeadWhereTheRootIsHuge) {
  Job job = fsdp1_job();
  job.fsdp.wrap.policy = WrapPolicyKind::Auto;
  EXPECT_THAT(unit_names(table_of(chain(), job)), ElementsAre("", "B0", "B1", "B2"));
  const UnitTable table = table_of(chain_with_huge_embedding(), job);
  EXPECT_THAT(unit_names(table), ElementsAre("", "embed", "B0", "B1", "head"));
  EXPECT_TRUE(warns(table, "auto"));
  EXPECT_EQ(trap_of(table, 13), nullptr);
}

TEST(Units, AutoMakesOneUnitOfATiedEmbeddingAndHeadOrLeavesThemInTheRoot) {
  Model model = chain_with_huge_embedding();
  tie(model, "head.weight", "embed.weight");
  Job job = fsdp2_job();
  job.fsdp.wrap.policy = WrapPolicyKind::Auto;
  const UnitTable list = table_of(model, job);
  EXPECT_THAT(unit_names(list), ElementsAre("", "embed", "B0", "B1"));
  EXPECT_EQ(list.units[1].modules.size(), 2u);
  EXPECT_EQ(trap_of(list, 9), nullptr);
  job.fsdp.runtime = Runtime::Fsdp1;
  const UnitTable root = table_of(model, job);
  EXPECT_THAT(unit_names(root), ElementsAre("", "B0", "B1"));
  EXPECT_EQ(trap_of(root, 3), nullptr);
}

TEST(Units, AutoSeesATieThroughAHeadWithABias) {
  Model model = chain_with_huge_embedding();
  const ModuleId head = model.find_module("head");
  model.modules[head.index()].params.push_back(ParamId(model.params.size()));
  model.params.push_back({"head.bias", {1000}, DType::Float32, true, head, {}});
  tie(model, "head.weight", "embed.weight");
  Job job = fsdp2_job();
  job.fsdp.wrap.policy = WrapPolicyKind::Auto;
  const UnitTable table = table_of(model, job);
  EXPECT_EQ(table.units[1].modules.size(), 2u);
  EXPECT_EQ(trap_of(table, 9), nullptr);
}

TEST(Units, AutoFindsTheRepeatedBlockOfAnUnknownModel) {
  Model model = chain();
  model.block_class.clear();
  Job job = fsdp1_job();
  job.fsdp.wrap.policy = WrapPolicyKind::Auto;
  EXPECT_THAT(unit_names(table_of(model, job)), ElementsAre("", "B0", "B1", "B2"));
}

TEST(Units, CustomIsAPolicyObjectOverNames) {
  Job job = with_units(fsdp1_job(), {{"B2"}, {"B0.f"}});
  job.fsdp.wrap.policy = WrapPolicyKind::Custom;
  EXPECT_THAT(unit_names(table_of(chain(), job)), ElementsAre("", "B0.f", "B2"));
}

TEST(Units, NothingWrappedIsATrapThatDoesNotRefuse) {
  Job job = fsdp1_job();
  job.fsdp.wrap.policy = WrapPolicyKind::Size;  // 1e8 elements: above every module
  const UnitTable table = table_of(chain(), job);
  ASSERT_NE(trap_of(table, 12), nullptr);
  EXPECT_FALSE(trap_of(table, 12)->refused);
  EXPECT_EQ(trap_of(table_of(chain(), fsdp1_job()), 12), nullptr);
}

TEST(Units, AHugeRootIsATrapThatDoesNotRefuse) {
  const UnitTable table = table_of(chain_with_huge_embedding(), fsdp1_job());
  ASSERT_NE(trap_of(table, 13), nullptr);
  EXPECT_FALSE(trap_of(table, 13)->refused);
  EXPECT_THAT(trap_of(table, 13)->text, HasSubstr("4009 elements"));
  EXPECT_EQ(trap_of(table_of(chain(), fsdp1_job()), 13), nullptr);
}

TEST(Units, EveryPatternMustMatchAndTheHintNamesTheNearest) {
  const Model model = chain();
  EXPECT_THAT(error_of(model, with_units(fsdp1_job(), {{"B0"}, {"haed"}})).hint, HasSubstr("'head'"));
  EXPECT_EQ(error_of(model, with_units(fsdp1_job(), {{"B0"}, {"haed"}})).place, "fsdp.wrap.units[1]");
  Job job = fsdp1_job();
  job.fsdp.ignored = {"embd.weight"};
  EXPECT_THAT(error_of(model, job).hint, HasSubstr("'embed.weight'"));
  job = fsdp1_job();
  job.fsdp.frozen = {"nothing*"};
  EXPECT_EQ(error_of(model, job).place, "fsdp.frozen");
  job = fsdp1_job();
  job.fsdp.overrides = {{.units = {"B7"}, .strategy = Strategy::NoShard}};
  EXPECT_EQ(error_of(model, job).place, "fsdp.overrides[0].units");
  job = fsdp1_job();
  job.fsdp.wrap.classes = {"Blok"};
  EXPECT_THAT(error_of(model, job).hint, HasSubstr("'Block'"));
}

TEST(Units, RefusesWrapsThatCannotBe) {
  Model model = chain();
  EXPECT_THAT(error_of(model, with_units(fsdp1_job(), {{"embed", "head"}})).message, HasSubstr("W8"));
  EXPECT_THAT(error_of(model, with_units(fsdp2_job(), {{"embed", "head"}, {"head"}})).message, HasSubstr("two units"));
  EXPECT_EQ(error_of(model, with_units(fsdp1_job(), {})).code, ErrorCode::MissingKey);
  Job job = with_units(fsdp1_job(), {{"B1"}});
  job.fsdp.ignored = {"B1"};
  EXPECT_THAT(error_of(model, job).message, HasSubstr("ignored"));
  model.block_class.clear();
  EXPECT_EQ(error_of(model, fsdp1_job()).code, ErrorCode::MissingKey);
}

TEST(Units, Fsdp2OptionsOfAUnitAreRefusedInFsdp1) {
  Job job = fsdp1_job();
  job.fsdp.overrides = {{.units = {"B0"}, .reshard_after_forward = ReshardAfterForward{}}};
  EXPECT_EQ(error_of(chain(), job).code, ErrorCode::Unsupported);
  job.fsdp.overrides = {{.units = {"B0"}, .shard_dim = {{"f.weight", 1}}}};
  EXPECT_EQ(error_of(chain(), job).code, ErrorCode::Unsupported);
}

TEST(Fsdp2Units, TheBackwardPrefetchOfAUnitIsRefusedInFsdp2) {
  Job job = fsdp2_job();
  job.fsdp.overrides = {{.units = {"B0"}, .backward_prefetch = BackwardPrefetch::Post}};
  EXPECT_EQ(error_of(chain(), job).code, ErrorCode::Unsupported);
  job.fsdp.runtime = Runtime::Fsdp1;
  EXPECT_TRUE(build_units(chain(), job));
}

/// Names that are looked up are those that patterns match, repeated ones too, with the same errors.
TEST(NameTable, FindsWhatPatternsMatch) {
  const std::vector<std::string_view> names{"", "b", "a.1", "a", "a.1", "a.10", "ab"};
  const NameTable table(names);
  for (const std::string pattern : {"", "a", "a.1", "a.10", "a*", "?", "*", "a.?", "c", "a.", "x*"}) {
    const auto expected = match_names(pattern, names, "place", "module");
    const auto got = table.match(pattern, "place", "module");
    ASSERT_EQ(got.has_value(), expected.has_value()) << pattern;
    if (expected)
      EXPECT_EQ(*got, *expected) << pattern;
    else
      EXPECT_EQ(to_text(got.error()), to_text(expected.error())) << pattern;
  }
}

}  // namespace
}  // namespace foreshard
