#include "core/plan/form/plan_layout.h"

#include <gtest/gtest.h>

namespace foreshard {
namespace {

/// One root with a (5, 3) and a (4) parameter over two ranks.
class PlanLayout : public testing::Test {
 protected:
  PlanLayout() {
    model.modules.emplace_back();
    model.params = {{"w", {5, 3}, DType::Float32, true, ModuleId(0), {}},
                    {"b", {4}, DType::Float32, true, ModuleId(0), {}}};
    plan.param_names = {"w", "b"};
    plan.world_size = 2;
    PlanUnit& unit = plan.units.emplace_back();
    unit.params = {ParamId(0), ParamId(1)};
    unit.shard_size = 2;
    table.trainable = {true, true};
    table.precision = {MixedPrecision::none()};
  }
  Model model;
  Plan plan;
  UnitTable table;
};

TEST_F(PlanLayout, Fsdp1HasEveryRanksShard) {
  plan.runtime = Runtime::Fsdp1;
  PlanUnit& unit = plan.units.front();
  // 15 elements, 1 of alignment, 4 elements: n = 20, c = 10; rank 1 starts inside w.
  unit.flat = {{ParamId(0), 0, 15}, {ParamId(), 15, 1}, {ParamId(1), 16, 4}};
  unit.flat_numel = unit.padded_numel = 20;
  unit.shard_numel = 10;
  EXPECT_EQ(
      layout_members(plan, model, table).at(0),
      "\"params_layout\": [{\"fqn\": \"w\", \"offset\": 0, \"numel\": 15, \"shape\": [5, 3], \"shards\": [{\"rank\": "
      "0, "
      "\"in_shard\": true, \"offset_in_shard\": 0, \"numel_in_shard\": 10, \"start\": 0, \"end\": 9}, {\"rank\": 1, "
      "\"in_shard\": true, \"offset_in_shard\": 0, \"numel_in_shard\": 5, \"start\": 10, \"end\": 14}]},\n"
      "  {\"fqn\": null, \"offset\": 15, \"numel\": 1},\n"
      "  {\"fqn\": \"b\", \"offset\": 16, \"numel\": 4, \"shape\": [4], \"shards\": [{\"rank\": 0, \"in_shard\": "
      "false}, "
      "{\"rank\": 1, \"in_shard\": true, \"offset_in_shard\": 6, \"numel_in_shard\": 4, \"start\": 0, \"end\": 3}]}]");
}

TEST_F(PlanLayout, Fsdp2HasBuffersAndViews) {
  plan.runtime = Runtime::Fsdp2;
  plan.units.front().sharded = {{ParamId(0), 0, {3, 3}, {3, 3}}, {ParamId(1), 0, {2}, {2}}};
  EXPECT_EQ(layout_members(plan, model, table).at(0),
            "\"fsdp2_layout\": {\"params\": [{\"fqn\": \"w\", \"shard_dim\": 0, \"local_shape\": [3, 3], "
            "\"padded_local_shape\": [3, 3]}, {\"fqn\": \"b\", \"shard_dim\": 0, \"local_shape\": [2], "
            "\"padded_local_shape\": [2]}], \"gather_dtype\": \"float32\", \"gather_output_numel\": 22, "
            "\"input_split_sizes\": [9, 2], \"copy_out\": [{\"storage_numel\": 18, \"view_numel\": 15, \"dtype\": "
            "\"float32\"}, "
            "{\"storage_numel\": 4, \"view_numel\": 4, \"dtype\": \"float32\"}], \"reduce_scatter\": {\"dtype\": "
            "\"float32\", "
            "\"input_numel\": 22, \"output_numel\": 11, \"grad_views\": [{\"fqn\": \"w\", \"offset\": 0, "
            "\"padded_numel\": 9}, "
            "{\"fqn\": \"b\", \"offset\": 9, \"padded_numel\": 2}]}}");
}

}  // namespace
}  // namespace foreshard
