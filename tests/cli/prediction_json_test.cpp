#include "cli/reports/prediction_json.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/cli/sample_simulation.h"

namespace foreshard::cli {
namespace {

using nlohmann::json;

void expect_fields(const json& object, const std::vector<const char*>& fields) {
  for (const char* field : fields) EXPECT_TRUE(object.contains(field)) << field;
}

TEST(PredictionJson, HasTheFieldsThatOthersRelyOn) {
  const json p = json::parse(prediction_json(sample_simulation().view()));
  EXPECT_EQ(p["schema"], "foreshard.prediction/1");
  EXPECT_EQ(p["fits"], true);
  EXPECT_TRUE(p["oom"].is_null());
  for (const char* estimate : {"step_time_ns", "tokens_per_s", "mfu", "hfu"})
    expect_fields(p[estimate], {"value", "low", "high"});
  expect_fields(p["after_init"], {"allocated_bytes", "active_bytes", "reserved_bytes"});
  ASSERT_EQ(p["iterations"].size(), 1u);
  expect_fields(p["iterations"][0],
                {"index", "step_time_ns", "peak_allocated_bytes", "peak_active_bytes", "peak_reserved_bytes",
                 "peak_requested_bytes", "end_allocated_bytes", "alloc_retries", "ooms", "exposed_comm_ns",
                 "host_wait_ns", "compute_ns", "idle_ns", "phases"});
  expect_fields(p["iterations"][0]["phases"][0],
                {"name", "peak_allocated_bytes", "end_allocated_bytes", "peak_reserved_bytes"});
  expect_fields(p["memory"], {"peak_allocated_bytes", "peak_active_bytes", "peak_reserved_bytes",
                              "outside_allocator_bytes", "at_peak"});
  expect_fields(p["memory"]["at_peak"], {"instruction", "unit", "phase", "categories"});
  EXPECT_EQ(p["memory"]["at_peak"]["categories"]["activations"], 50 * kGiB);
  expect_fields(p["comm"][0], {"kind", "count", "bytes", "busy_ns", "exposed_ns"});
  EXPECT_EQ(p["exposed"][1], (json{{"cause", "tail"}, {"kind", "reduce_scatter"}, {"exposed_ns", 22'000'000}}));
  EXPECT_EQ(p["level"], "published");
  EXPECT_EQ(p["unknown_ops"], json({"aten.mystery.default"}));
}

TEST(PredictionJson, AnOutOfMemoryNamesItsPlaceAndTheRemedy) {
  const SampleSimulation s = sample_out_of_memory();
  Simulation view = s.view();
  view.remedy = Remedy{"checkpoint every block", {"checkpointing.policy=block"}, 40 * kGiB, 1.5e9};
  const json p = json::parse(prediction_json(view));
  EXPECT_EQ(p["fits"], false);
  EXPECT_EQ(p["oom"], (json{{"iteration", 0},
                            {"instruction", 412},
                            {"unit", "model.layers.31"},
                            {"phase", "backward"},
                            {"requested_bytes", 3 * kGiB},
                            {"free_bytes", 2 * kGiB}}));
  EXPECT_EQ(p["remedy"]["set"], json({"checkpointing.policy=block"}));
}

TEST(PredictionJson, HasWhatItsSchemaRequiresAndNothingThatItDoesNotName) {
  std::ifstream file(std::string(FORESHARD_SOURCE_DIR) + "/docs/formats/prediction.schema.json");
  const json schema = json::parse(file);
  for (const SampleSimulation& s : {sample_simulation(), sample_out_of_memory()}) {
    const json p = json::parse(prediction_json(s.view()));
    for (const json& name : schema["required"]) EXPECT_TRUE(p.contains(name)) << name;
    for (const auto& [name, value] : p.items()) EXPECT_TRUE(schema["properties"].contains(name)) << name;
    for (const auto& [name, value] : p["iterations"][0].items()) {
      const json& required = schema["properties"]["iterations"]["items"]["required"];
      EXPECT_NE(std::find(required.begin(), required.end(), name), required.end()) << name;
    }
  }
}

TEST(PredictionJson, EqualPredictionsGiveEqualBytes) {
  EXPECT_EQ(prediction_json(sample_simulation().view()), prediction_json(sample_simulation().view()));
}

}  // namespace
}  // namespace foreshard::cli
