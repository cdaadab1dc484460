// Units with a precision of their own, run (M8, F2-27): compared with tests/data/exec/unit_precision, where
// PyTorch 2.11 recorded three steps of a small model.
#include "exec/operators/unit_precision.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/model/sources/load_model.h"
#include "core/plan/build_plan.h"
#include "exec/host/host_backend.h"
#include "exec/run/plan_runner.h"
#include "tests/exec/run/recorded_toy.h"

namespace foreshard::exec {
namespace {

using ::testing::HasSubstr;

MixedPrecision low() { return {DType::BFloat16, DType::Float32, {}, {}, false, {}}; }
MixedPrecision high() { return {DType::Float32, DType::Float32, {}, {}, false, {}}; }

/// Everything low; `unit` otherwise.
struct Asked {
  std::string unit;
  MixedPrecision precision;
};

Job job_of(Runtime runtime, const std::vector<Asked>& asked) {
  Job job = toy::job(runtime, low(), 1);
  for (const Asked& one : asked) {
    UnitOverride& change = job.fsdp.overrides.emplace_back();
    change.units = {one.unit};
    change.mixed_precision = one.precision;
  }
  return job;
}

void expect_recorded(const std::string& name, const Job& job) {
  SCOPED_TRACE(name);
  std::ifstream file(toy::kFolder + "unit_precision/recorded.json");
  const auto recorded = nlohmann::json::parse(file).at(name);
  const Model model = load_model(job.model).value();
  const auto plan = build_plan(model, job);
  ASSERT_TRUE(plan) << to_text(plan.error());
  ASSERT_FALSE(plan->failure) << plan->failure->text;
  const UnitTable units = build_units(model, job).value();
  const auto precision = program_precision(model, job, units);
  ASSERT_TRUE(precision) << to_text(precision.error());
  const auto interpreter = OperatorInterpreter::create(model, c10::kCPU, *precision).value();
  const auto backend = make_host_backend({.rank = 0, .intra_op_threads = 1});
  PlanRunnerSetup setup{model, *plan, interpreter, *backend, {}, job.train.optimizer, {}};
  setup.input_dtype = model_input_dtype(job, units);
  const auto runner = PlanRunner::create(setup, [&](ParamId id) { return toy::start_of(model, id); });
  ASSERT_TRUE(runner) << to_text(runner.error());
  for (int step = 0; step < toy::kSteps; ++step) {
    const auto result = (*runner)->step({{toy::input(100 + step)}}, toy::kRate);
    ASSERT_TRUE(result) << result.error().text;
    EXPECT_NEAR(result->loss, recorded["losses"][static_cast<std::size_t>(step)].get<double>(), 1e-5) << step;
  }
  for (std::size_t p = 0; p < model.params.size(); ++p) {
    const at::Tensor got = (*runner)->shard(ParamId(p)).reshape({-1});
    const auto expected = recorded["params"][p].get<std::vector<double>>();
    for (std::size_t i = 0; i < expected.size(); ++i) {
      ASSERT_NEAR(got[static_cast<std::int64_t>(i)].item<double>(), expected[i], 1e-6) << model.params[p].fqn << i;
    }
  }
}

TEST(UnitPrecision, Fsdp2CastsInputsAndOutputsOfEachUnit) {
  expect_recorded("fsdp2 all low", job_of(Runtime::Fsdp2, {}));
  expect_recorded("fsdp2 b high", job_of(Runtime::Fsdp2, {{"b", high()}}));
  MixedPrecision gives = low();
  gives.output = DType::Float32;
  expect_recorded("fsdp2 b high, a gives float32", job_of(Runtime::Fsdp2, {{"b", high()}, {"a", gives}}));
}

TEST(UnitPrecision, Fsdp2RootThatCastsNothing) {
  MixedPrecision root = low();
  root.cast_forward_inputs = false;
  expect_recorded("fsdp2 b high, the root casts nothing", job_of(Runtime::Fsdp2, {{"b", high()}, {"", root}}));
}

TEST(UnitPrecision, Fsdp1CastsInputsOfUnitsThatAskForIt) {
  expect_recorded("fsdp1 all low", job_of(Runtime::Fsdp1, {}));
  MixedPrecision b = high(), c = low();
  b.cast_forward_inputs = c.cast_forward_inputs = true;
  expect_recorded("fsdp1 b high", job_of(Runtime::Fsdp1, {{"b", b}, {"c", c}}));
}

TEST(UnitPrecision, UniformUnitsCostNothing) {
  const Job job = job_of(Runtime::Fsdp2, {});
  const Model model = load_model(job.model).value();
  EXPECT_TRUE(program_precision(model, job, build_units(model, job).value())->calls.empty());
}

TEST(UnitPrecision, ALowUnitInAHighProgramIsRefused) {
  Job job = job_of(Runtime::Fsdp2, {{"b", low()}});
  job.fsdp.mixed_precision = MixedPrecision::none();
  const Model model = load_model(job.model).value();
  const auto refused = program_precision(model, job, build_units(model, job).value());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().place, "unit \"b\", fsdp.mixed_precision.param");
  EXPECT_THAT(refused.error().hint, HasSubstr("fsdp.overrides"));
}

}  // namespace
}  // namespace foreshard::exec
