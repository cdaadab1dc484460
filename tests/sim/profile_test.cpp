#include "sim/machine/profile.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

namespace foreshard {
namespace {

std::string shipped(const std::string& id) {
  std::ifstream in(std::string(FORESHARD_SOURCE_DIR) + "/profiles/" + id + ".toml");
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const auto at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(Profile, EveryShippedProfileLoadsUnderItsOwnId) {
  const std::vector<std::string> ids = known_profiles();
  EXPECT_GE(ids.size(), 21U);
  for (const std::string& id : ids) {
    const auto profile = load_profile(id);
    ASSERT_TRUE(profile.has_value()) << to_text(profile.error());
    EXPECT_EQ(profile->id, id);
    EXPECT_FALSE(profile->peak_tflops.empty());
    EXPECT_FALSE(profile->sources.empty());
  }
}

TEST(Profile, EveryGpuOfTheSpecificationsTableIsShipped) {
  const std::vector<std::string> ids = known_profiles();
  for (const char* id :
       {"v100-sxm", "a100-sxm-40",  "a100-sxm-80", "a100-pcie-80", "h100-sxm-80", "h100-gt-96", "h100-pcie-80",
        "h100-nvl", "h200-sxm-141", "b200",        "b300",         "gb200",       "gb300",      "l40s",
        "rtx-4090", "mi300x",       "mi325x",      "mi355x",       "h100",        "cpu-host",   "virtual"}) {
    EXPECT_NE(std::find(ids.begin(), ids.end(), id), ids.end()) << id;
  }
}

TEST(Profile, EveryNumberHasASource) {
  for (const std::string& id : known_profiles()) {
    if (id == "virtual") continue;
    const auto profile = load_profile(id);
    ASSERT_TRUE(profile.has_value());
    for (const char* key :
         {"peak_tflops", "gemm_tflops", "attention_share", "hbm_gb_per_s", "hbm_share", "memory_bytes", "sm_count",
          "min_kernel_ns", "launch_ns", "op_ns", "call_ns", "driver_alloc_ns", "host_link_gb_per_s",
          "host_copy_gb_per_s", "scale_up_gb_per_s", "scale_out_gb_per_s", "channels", "channel_gb_per_s"}) {
      EXPECT_TRUE(profile->sources.contains(key)) << id << ": " << key;
    }
    for (const auto& [key, value] : profile->extra) EXPECT_TRUE(profile->sources.contains(key)) << id << ": " << key;
  }
}

TEST(Profile, TheUnknownH100IsTheSxmCardWithAWiderInterval) {
  auto sxm = load_profile("h100-sxm-80");
  const auto any = load_profile("h100");
  ASSERT_TRUE(sxm.has_value() && any.has_value());
  EXPECT_GT(any->interval, sxm->interval);
  sxm->id = any->id;
  sxm->level = any->level;
  sxm->interval = any->interval;
  EXPECT_EQ(*sxm, *any);
}

TEST(Profile, AnUnknownIdIsAnsweredWithTheKnownOnes) {
  const auto profile = load_profile("h100-sxm-800");
  ASSERT_FALSE(profile.has_value());
  EXPECT_EQ(profile.error().code, ErrorCode::NotFound);
  EXPECT_NE(profile.error().expected.find("h100-sxm-80"), std::string::npos);
}

struct BadCase {
  const char* from;
  const char* to;
  ErrorCode code;
  const char* place;
};

TEST(Profile, EveryMistakeNamesItsKey) {
  const std::string good = shipped("h100-sxm-80");
  for (const BadCase& bad : std::vector<BadCase>{
           {"hbm_gb_per_s = 3350", "hbm_gb_per_s = \"fast\"", ErrorCode::WrongType, "device.hbm_gb_per_s"},
           {"hbm_gb_per_s = 3350", "hbm_gb_per_s = -1", ErrorCode::OutOfRange, "device.hbm_gb_per_s"},
           {"hbm_gb_per_s = 3350", "hbm_gb_per_s = nan", ErrorCode::OutOfRange, "device.hbm_gb_per_s"},
           {"hbm_gb_per_s = 3350", "hbm_gb_per_sec = 3350", ErrorCode::MissingKey, "device.hbm_gb_per_s"},
           {"launch_ns = 4500", "launch_ns = 4500\nlunch_ns = 1", ErrorCode::UnknownKey, "host.lunch_ns"},
           {"channels = 16", "channels = 99999", ErrorCode::OutOfRange, "links.channels"},
           {"generation = \"hopper\"", "generation = \"hoper\"", ErrorCode::OutOfRange, "links.generation"},
           {"foreshard.profile/1", "foreshard.profile/9", ErrorCode::Unsupported, "schema"},
           {"bfloat16 = 989", "bfloat17 = 989", ErrorCode::UnknownKey, "peak_tflops.bfloat17"},
           {"[links]", "[links", ErrorCode::BadSyntax, "line "}}) {
    const auto profile = parse_profile(replaced(good, bad.from, bad.to), "mine.toml");
    ASSERT_FALSE(profile.has_value()) << bad.to;
    EXPECT_EQ(profile.error().code, bad.code) << bad.to << ": " << to_text(profile.error());
    EXPECT_EQ(profile.error().file, "mine.toml");
    EXPECT_EQ(profile.error().place.find(bad.place), 0U) << bad.to << ": " << profile.error().place;
  }
}

}  // namespace
}  // namespace foreshard
