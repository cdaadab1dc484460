// Measured operators and collectives of a profile in place of the roofline; and the profile as text.
#include "sim/device/operator_times.h"

#include <gtest/gtest.h>

#include "core/operators/operator_signature.h"
#include "sim/network/collectives.h"

namespace foreshard {
namespace {

/// y = relu(x W^T), then a view of it.
Model small_model() {
  Model model;
  model.values = {{"x", {4, 8}, DType::Float32},
                  {"h", {4, 2}, DType::Float32},
                  {"y", {4, 2}, DType::Float32},
                  {"v", {8}, DType::Float32}};
  model.params.resize(1);
  model.params[0].fqn = "w";
  model.params[0].shape = {2, 8};
  model.ops.resize(3);
  model.ops[0].name = "aten.linear.default";
  model.ops[0].args = {{ValueRef{ValueId(0)}}, {ParamRef{ParamId(0)}}};
  model.ops[0].out = {ValueId(1)};
  model.ops[1].name = "aten.relu.default";
  model.ops[1].args = {{ValueRef{ValueId(1)}}};
  model.ops[1].out = {ValueId(2)};
  model.ops[2].name = "aten.view.default";
  model.ops[2].args = {{ValueRef{ValueId(2)}}, {ArgList{{std::int64_t{8}}}}};
  model.ops[2].out = {ValueId(3)};
  return model;
}

Kernel kernel_of(std::int32_t op) {
  Kernel kernel;
  kernel.model_op = op;
  return kernel;
}

TEST(OperatorSignature, NamesWhatGoesIn) {
  const Model model = small_model();
  EXPECT_EQ(operator_signature(model, model.ops[0]), "aten.linear.default fp32[4,8] fp32[2,8]");
  EXPECT_EQ(operator_signature(model, model.ops[2]), "aten.view.default fp32[4,2] ( 8 )");
}

TEST(OperatorTimes, KernelsOfOneOperatorShareWhatWasMeasured) {
  const Model model = small_model();
  HardwareProfile profile;
  profile.operators = {{"aten.linear.default fp32[4,8] fp32[2,8]", 900, 3000},
                       {"aten.view.default fp32[4,2] ( 8 )", 50, 0}};
  const OperatorTimes times(model, profile);
  KernelList list;
  list.kernels = {kernel_of(0), kernel_of(0), kernel_of(1)};
  std::vector<SimDuration> device{100, 200, 40};
  times.apply(list, 0, 3, false, device);
  EXPECT_EQ(device,
            (std::vector<SimDuration>{300 + 50, 600, 40}));  // the view's 50 go to the first; relu keeps the roofline
  device = {100, 200, 40};
  times.apply(list, 0, 3, true, device);
  EXPECT_EQ(device, (std::vector<SimDuration>{1000, 2000, 40}));
  device = {0, 0, 40};
  times.apply(list, 0, 3, false, device);
  EXPECT_EQ(device, (std::vector<SimDuration>{450 + 50, 450, 40}));
}

TEST(OperatorTimes, WithoutMeasurementsTheRooflineStays) {
  const OperatorTimes times(small_model(), HardwareProfile());
  EXPECT_TRUE(times.empty());
  KernelList list;
  list.kernels = {kernel_of(0)};
  std::vector<SimDuration> device{100};
  times.apply(list, 0, 3, false, device);
  EXPECT_EQ(device, (std::vector<SimDuration>{100}));
}

HardwareProfile calibrated() {
  HardwareProfile profile = *load_profile("cpu-host");
  profile.operators = {{"aten.relu.default fp32[4,2]", 900, -1}};
  profile.collectives = {{"all_gather", 2, {1024, 4096, 65536}, {1000, 2000, 32000}}};
  profile.calibration = {{"software", "x \"quoted\""}};
  profile.level = CalibrationLevel::Microbenchmark;
  return profile;
}

TEST(MeasuredCollectives, AreInterpolatedByPowerLaws) {
  const HardwareProfile profile = calibrated();
  const GroupPlacement two{2, 1};
  const auto time = [&](Bytes bytes) { return collective_time(profile, CollectiveKind::AllGather, two, bytes); };
  EXPECT_EQ(time(16), 1000);
  EXPECT_EQ(time(1024), 1000);
  EXPECT_NEAR(static_cast<double>(time(2048)), 1414, 1);
  EXPECT_NEAR(static_cast<double>(time(4096)), 2000, 1);
  EXPECT_NEAR(static_cast<double>(time(131072)), 64000, 5);  // beyond: the last two points' law
  EXPECT_NE(collective_time(profile, CollectiveKind::AllGather, {4, 1}, 1024), 1000) << "another group size";
  EXPECT_NE(collective_time(profile, CollectiveKind::ReduceScatter, two, 1024), 1000) << "another kind";
}

TEST(ProfileText, ReadsBackAsTheSame) {
  const HardwareProfile profile = calibrated();
  const auto read = parse_profile(profile_text(profile), "written");
  ASSERT_TRUE(read.has_value()) << to_text(read.error());
  EXPECT_EQ(*read, profile);
}

TEST(ProfileText, AHostsWorkAndTheLoadOfItsCollectivesReadBackToo) {
  HardwareProfile profile = calibrated();
  profile.kind = "cpu";
  profile.extra["wake_ns"] = 8000;
  profile.collectives[0].beside_ns = profile.collectives[0].taken_ns = profile.collectives[0].cpu_ns =
      profile.collectives[0].ns;
  profile.work = {{TensorWork::Copy, {256, 1024}, {900, 1100}}, {TensorWork::AdamW, {256}, {17000}}};
  const std::string text = profile_text(profile);
  const auto read = parse_profile(text, "written");
  ASSERT_TRUE(read.has_value()) << to_text(read.error());
  EXPECT_EQ(*read, profile);
  std::string wrong = text;
  wrong.replace(wrong.find("'adamw'"), 7, "'adams'");
  const auto refused = parse_profile(wrong, "written");
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().place, "work[1].kind");
  profile.collectives[0].taken_ns.pop_back();
  EXPECT_FALSE(parse_profile(profile_text(profile), "written").has_value()) << "a time is missing";
}

TEST(ProfileText, WrongMeasurementsAreNamed) {
  const std::string good = profile_text(calibrated());
  const auto error_of = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    const auto read = parse_profile(text, "p.toml");
    return read ? std::string("none") : to_text(read.error());
  };
  EXPECT_NE(error_of("4096", "512").find("collectives[0]"), std::string::npos);
  EXPECT_NE(error_of("forward_ns", "forwards_ns").find("operators[0]"), std::string::npos);
  EXPECT_NE(error_of("32000", "-1").find("collectives[0].ns"), std::string::npos);
}

}  // namespace
}  // namespace foreshard
