// train.optimizer.parts against the names of a model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/plan/units/module_tree.h"
#include "core/plan/units/unit_selection.h"
#include "core/plan/units/units.h"
#include "tests/core/units/toy_model.h"

namespace foreshard {
namespace {

using testing::chain;
using testing::fsdp1_job;
using ::testing::HasSubstr;

TEST(OptimizerParts, PartsOfOptimizersNameModulesOrParameters) {
  Job job = fsdp1_job();
  job.train.optimizer_parts = {{{"head.*"}, true, {}}, {{"B1", "head.weight"}, false, {}}};
  const Model model = chain();
  EXPECT_FALSE(build_units(model, job)->units.empty());
  const ModuleTree tree = build_module_tree(model).value();
  const std::vector<std::int32_t> parts = parts_of_params(model, tree, job).value();
  EXPECT_EQ(parts[model.find_param("head.weight").index()], 0);  // the first that names it
  EXPECT_EQ(parts[model.find_param("B1.f.weight").index()], 1);
  EXPECT_EQ(parts[model.find_param("B0.f.weight").index()], -1);
  job.train.optimizer_parts[1].params.push_back("haed.weight");
  const Result<UnitTable> none = build_units(model, job);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().place, "train.optimizer.parts[1].params");
  EXPECT_THAT(none.error().hint, HasSubstr("head.weight"));
}

}  // namespace
}  // namespace foreshard
