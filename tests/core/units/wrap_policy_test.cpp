// Rules W1..W6.
#include "core/plan/units/wrap_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/core/units/toy_model.h"

namespace foreshard {
namespace {

using testing::alias;
using testing::chain;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::linear;
using testing::tie;
using testing::toy_model;

struct Asked {
  std::vector<std::string> ignored = {};
  std::vector<std::string> units = {};
  bool mixed_precision = false;
};

Result<WrapResult> ask(const Model& model, const WrapPolicy& policy, const Asked& asked = {}) {
  const auto tree = build_module_tree(model);
  if (!tree) return tl::unexpected(tree.error());
  WrapRequest request{model, *tree, {}, {}, {}, asked.mixed_precision};
  request.ignored_modules.resize(model.modules.size());
  request.ignored_params.resize(model.params.size());
  request.already_units.resize(model.modules.size());
  for (const std::string& fqn : asked.ignored) {
    for (ModuleId below : objects_below(*tree, model.find_module(fqn))) {
      request.ignored_modules[below.index()] = true;
      for (ParamId p : model.modules[below.index()].params) request.ignored_params[model.storage_of(p).index()] = true;
    }
  }
  for (const std::string& fqn : asked.units) request.already_units[model.find_module(fqn).index()] = true;
  return apply_wrap_policy(policy, request);
}

std::vector<std::string> wrapped(const Model& model, const WrapPolicy& policy, const Asked& asked = {}) {
  const auto result = ask(model, policy, asked);
  if (!result) return {"error: " + to_text(result.error())};
  std::vector<std::string> names;
  for (const WrappedModule& one : result->wrapped) names.push_back(model.modules[one.module.index()].fqn);
  return names;
}

WrapPolicy size_policy(Numel least) {
  return FunctionPolicy{SizePolicy{least, {"MultiheadAttention"}, {"ModuleList", "ModuleDict"}}};
}
WrapPolicy always() { return FunctionPolicy{AlwaysPolicy{}}; }
FunctionPolicy named(std::vector<std::string> names) {
  return {LambdaPolicy{
      [names](const ModuleInfo& m) { return std::find(names.begin(), names.end(), m.fqn) != names.end(); }}};
}

Model sequence() {
  return toy_model({{"", "Sequential"}, linear("0", 6, 10), linear("1", 12, 10), linear("2", 3, 10)});
}

TEST(WrapPolicy, SizeWrapsOnlyTheLayerThatIsLargeEnough) {
  EXPECT_THAT(wrapped(sequence(), size_policy(100)), ElementsAre("1"));
}

TEST(WrapPolicy, SizeThresholdIsInclusive) {
  EXPECT_THAT(wrapped(sequence(), size_policy(120)), ElementsAre("1"));
  EXPECT_THAT(wrapped(sequence(), size_policy(121)), IsEmpty());
}

TEST(WrapPolicy, TheRootIsNeverWrappedByItsOwnPolicy) {
  EXPECT_THAT(wrapped(sequence(), always()), ElementsAre("0", "1", "2"));
}

TEST(WrapPolicy, WhatIsWrappedBelowNoLongerCountsForTheOuterModule) {
  const Model model = toy_model(
      {{"", "Sequential"}, linear("0", 4, 10), {"1", "Sequential"}, linear("1.0", 5, 10), linear("1.1", 3, 10)});
  EXPECT_THAT(wrapped(model, size_policy(80)), ElementsAre("1"));
  EXPECT_THAT(wrapped(model, size_policy(40)), ElementsAre("0", "1.0"));  // the remainder of 30 stays
}

TEST(WrapPolicy, AModuleThatIsNotEnteredIsNotConsideredEither) {
  const Model model = toy_model({{"", "Graph"},
                                 {"attn", "MultiheadAttention", {{"in_proj", {48, 16}}}},
                                 linear("attn.out", 16, 16),
                                 linear("up", 16, 64)});
  EXPECT_THAT(wrapped(model, size_policy(256)), ElementsAre("up"));
  EXPECT_THAT(wrapped(model, FunctionPolicy{SizePolicy{256, {}, {}}}), ElementsAre("attn.out", "attn", "up"));
}

TEST(WrapPolicy, AModuleListIsEnteredButNotWrapped) {
  const Model model =
      toy_model({{"", "Graph"}, {"layers", "ModuleList"}, linear("layers.0", 6, 10), linear("layers.1", 6, 10)});
  EXPECT_THAT(wrapped(model, size_policy(100)), IsEmpty());
  EXPECT_THAT(wrapped(model, FunctionPolicy{SizePolicy{100, {}, {}}}), ElementsAre("layers"));
}

TEST(WrapPolicy, ClassPoliciesAcceptSubclasses) {
  Model model = chain();
  model.modules[model.find_module("B1").index()].class_name = "SubBlock";
  EXPECT_THAT(wrapped(model, ModuleWrapPolicy{{"Block"}}), ElementsAre("B0", "B2"));
  model.modules[model.find_module("B1").index()].bases = {"Block"};
  EXPECT_THAT(wrapped(model, ModuleWrapPolicy{{"Block"}}), ElementsAre("B0", "B1", "B2"));
  EXPECT_THAT(wrapped(model, FunctionPolicy{ClassFunctionPolicy{{"Block"}}}), ElementsAre("B0", "B1", "B2"));
}

TEST(WrapPolicy, LambdaWrapsWhatItsPredicateNames) {
  EXPECT_THAT(wrapped(chain(), named({"B1", ""})), ElementsAre("B1"));
}

TEST(WrapPolicy, OrIsYesIfAnyMemberIs) {
  EXPECT_THAT(wrapped(chain(), FunctionPolicy{OrPolicy{{named({"embed"}), {ClassFunctionPolicy{{"Block"}}}}}}),
              ElementsAre("embed", "B0", "B1", "B2"));
}

TEST(WrapPolicy, PolicyObjectsBuildInPostOrder) {
  const Model model =
      toy_model({{"", "Graph"}, linear("submod1", 10, 10), {"submod2", "Graph"}, linear("submod2.subsubmod", 10, 10)});
  const CustomPolicy everything{[](const ModuleInfo&) { return CustomAnswer{CustomAnswer::Kind::Yes, {}, {}}; }};
  EXPECT_THAT(wrapped(model, everything), ElementsAre("submod1", "submod2.subsubmod", "submod2"));
}

TEST(WrapPolicy, CustomOverridesAreKeptAndAnEmptyDictSaysNo) {
  const CustomPolicy policy{[](const ModuleInfo& m) {
    if (m.fqn == "B0") return CustomAnswer{CustomAnswer::Kind::Overrides, {{"forward_prefetch", "true"}}, {}};
    return CustomAnswer{m.fqn == "B1" ? CustomAnswer::Kind::Overrides : CustomAnswer::Kind::No, {}, {}};
  }};
  const auto result = ask(chain(), policy);
  ASSERT_TRUE(result);
  ASSERT_EQ(result->wrapped.size(), 1u);
  EXPECT_EQ(result->wrapped[0].overrides.at("forward_prefetch"), "true");
}

TEST(WrapPolicy, CustomRefusesOtherAnswers) {
  const CustomPolicy policy{[](const ModuleInfo& m) {
    return m.fqn == "B1" ? CustomAnswer{CustomAnswer::Kind::Invalid, {}, "1"} : CustomAnswer{};
  }};
  const auto result = ask(chain(), policy);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, ErrorCode::WrongType);
  EXPECT_EQ(result.error().place, "B1");
}

Model twice_registered() {
  Model model = toy_model({{"", "Graph"}, {"p", "Block"}, linear("p.x", 10, 10), {"q", "Block"}, linear("q.y", 10, 5)});
  alias(model, "q.z", "p.x");
  return model;
}

TEST(WrapPolicy, FunctionsWrapAModuleRegisteredTwiceTwice) {
  EXPECT_THAT(wrapped(twice_registered(), always()), ElementsAre("p.x", "p", "q.y", "p.x", "q"));
}

TEST(WrapPolicy, ObjectsWrapAModuleRegisteredTwiceOnce) {
  EXPECT_THAT(wrapped(twice_registered(), ModuleWrapPolicy{{"Linear"}}), ElementsAre("p.x", "q.y"));
}

TEST(WrapPolicy, FunctionsRefuseASecondVisitOfAModuleThatHoldsAWrappedOne) {
  Model model = toy_model({{"", "Graph"}, {"p", "Block"}, linear("p.x", 10, 10), {"q", "Block"}});
  alias(model, "q.z", "p");
  const auto result = ask(model, named({"p.x"}));
  ASSERT_FALSE(result);
  EXPECT_THAT(result.error().message, HasSubstr("registered twice"));
  EXPECT_THAT(wrapped(model, CustomPolicy{[](const ModuleInfo& m) {
                        return CustomAnswer{m.fqn == "p.x" ? CustomAnswer::Kind::Yes : CustomAnswer::Kind::No, {}, {}};
                      }}),
              ElementsAre("p.x"));
}

TEST(WrapPolicy, ASharedParameterCountsOnceBelowAModuleAndInEachSibling) {
  Model model = toy_model({{"", "Graph"}, {"pair", "Graph"}, linear("pair.u", 4, 4), linear("pair.v", 4, 4)});
  tie(model, "pair.v.weight", "pair.u.weight");
  EXPECT_THAT(wrapped(model, size_policy(17)), IsEmpty());                        // the pair holds 16
  EXPECT_THAT(wrapped(model, size_policy(16)), ElementsAre("pair.u", "pair.v"));  // each sibling counts it
}

TEST(WrapPolicy, IgnoredModulesAreNeitherCountedNorVisited) {
  EXPECT_THAT(wrapped(chain(), size_policy(100), {{"B1"}}), ElementsAre("B0.f", "B2.f"));
  EXPECT_THAT(wrapped(chain(), ModuleWrapPolicy{{"Block"}}, {{"B1"}}), ElementsAre("B0", "B2"));
  EXPECT_THAT(wrapped(chain(), size_policy(241), {{"B1"}}), IsEmpty());
}

TEST(WrapPolicy, ATreeThatHoldsAUnitIsRefusedByBothStyles) {
  for (const WrapPolicy& policy : {always(), WrapPolicy{ModuleWrapPolicy{{"Block"}}}}) {
    const auto result = ask(chain(), policy, {{}, {"B0"}});
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().place, "B0");
  }
}

Model with_batch_norm() {
  return toy_model({{"", "Graph"},
                    {"conv", "Conv2d", {{"weight", {8, 3, 3, 3}}}},
                    {"bn", "BatchNorm2d", {{"weight", {8}}, {"bias", {8}}}},
                    linear("fc", 8, 4)});
}

TEST(WrapPolicy, MixedPrecisionMakesBatchNormAUnitInFullPrecision) {
  for (const WrapPolicy& policy :
       {WrapPolicy{FunctionPolicy{ClassFunctionPolicy{{"Conv2d"}}}}, WrapPolicy{ModuleWrapPolicy{{"Conv2d"}}}}) {
    const auto result = ask(with_batch_norm(), policy, {{}, {}, true});
    ASSERT_TRUE(result);
    ASSERT_EQ(result->wrapped.size(), 2u);
    EXPECT_FALSE(result->wrapped[0].full_precision);
    EXPECT_TRUE(result->wrapped[1].full_precision);
    EXPECT_THAT(result->warnings, ElementsAre(HasSubstr("BatchNorm2d")));
  }
  EXPECT_THAT(wrapped(with_batch_norm(), ModuleWrapPolicy{{"Conv2d"}}), ElementsAre("conv"));
}

TEST(WrapPolicy, MixedPrecisionLetsTheSizePolicyEnterForceLeafClasses) {
  const Model model =
      toy_model({{"", "Graph"}, {"attn", "MultiheadAttention", {{"in_proj", {48, 16}}}}, linear("attn.out", 16, 16)});
  EXPECT_THAT(wrapped(model, size_policy(256)), IsEmpty());
  EXPECT_THAT(wrapped(model, size_policy(256), {{}, {}, true}), ElementsAre("attn.out", "attn"));
}

TEST(ModuleTree, RefusesAModuleInsideItself) {
  Model model = toy_model({{"", "Graph"}, {"a", "Graph"}});
  alias(model, "a.b", "a");
  const auto tree = build_module_tree(model);
  ASSERT_FALSE(tree);
  EXPECT_EQ(tree.error().code, ErrorCode::Inconsistent);
}

TEST(ModuleTree, RefusesAliasesThatRepeatTooMuch) {
  Model model = toy_model({{"", "Graph"}});
  std::string path;
  for (int level = 0; level < 24; ++level) {  // every level holds the next one twice: 2^24 registrations
    const std::string a = (path.empty() ? "" : path + ".") + "a", b = (path.empty() ? "" : path + ".") + "b";
    for (const std::string& fqn : {a, b}) {
      ModuleInfo info;
      info.fqn = fqn, info.class_name = "Graph";
      testing::register_module(model, info);
    }
    ModuleInfo next;
    next.fqn = a + ".n", next.class_name = "Graph";
    testing::register_module(model, next);
    alias(model, b + ".n", a + ".n");
    path = a + ".n";
  }
  const auto tree = build_module_tree(model);
  ASSERT_FALSE(tree);
  EXPECT_EQ(tree.error().code, ErrorCode::TooLarge);
}

TEST(ModuleTree, RefusesNestingBeyondItsLimitAndAnEmptyModel) {
  Model model = toy_model({{"", "Graph"}});
  std::string path = "m";
  for (int level = 0; level < 600; ++level, path += ".m") {
    ModuleInfo info;
    info.fqn = path, info.class_name = "Graph";
    testing::register_module(model, info);
  }
  EXPECT_EQ(build_module_tree(model).error().code, ErrorCode::TooDeep);
  EXPECT_FALSE(build_module_tree(Model{}));
}

}  // namespace
}  // namespace foreshard
