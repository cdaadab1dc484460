#include "sim/machine/profile.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <sstream>

#include "sim/network/links.h"
#include "tests/support/temporary_path.h"

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
    EXPECT_TRUE(profile->sources.contains("architecture")) << id;
    const bool card = profile->kind == "gpu";
    EXPECT_EQ(profile->sources.contains("fabric"), card) << id;
    EXPECT_EQ(profile->sources.contains("ring_share"), profile->ring_share != 1) << id;
    EXPECT_EQ(profile->sources.contains("switch_sum_share"), profile->switch_sum_share > 0) << id;
    for (const auto& [key, value] : profile->extra) EXPECT_TRUE(profile->sources.contains(key)) << id << ": " << key;
  }
}

TEST(Profile, TheUnknownH100IsTheSlowerSxmCardWithAWiderInterval) {
  auto sxm = load_profile("h100-sxm-80-2023");
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

TEST(Profile, AFileFromBeforeFabricsMeansWhatItMeant) {
  const std::string now = shipped("h100-sxm-80");
  std::string old = replaced(now, "architecture = \"sm_90\"\n", "");
  old = replaced(old, "switch_sum_share = 0.685\n", "");
  old = replaced(old, "fabric = \"switch\"", "generation = \"hopper\"");
  const auto read = parse_profile(old, "old.toml");
  ASSERT_TRUE(read.has_value()) << to_text(read.error());
  EXPECT_EQ(*read, *load_profile("h100-sxm-80"));
  const auto mesh = parse_profile(replaced(old, "[extra]", "[extra]\nnvls = 0\nmesh_cards = 4"), "old.toml");
  ASSERT_TRUE(mesh.has_value()) << to_text(mesh.error());
  EXPECT_EQ(mesh->fabric, Fabric::Mesh);
  EXPECT_EQ(mesh->cards, 4);
  EXPECT_EQ(mesh->switch_sum_share, 0);
  EXPECT_EQ(mesh->extra, read->extra) << "said once";
  const auto again = parse_profile(profile_text(*mesh), "again.toml");
  ASSERT_TRUE(again.has_value()) << to_text(again.error());
  EXPECT_EQ(*again, *mesh);
}

TEST(Profile, WhatAFileDoesNotSayItsBaseDoes) {
  const auto card = load_profile("h100-sxm-80");
  const auto ours = parse_profile(
      "schema = \"foreshard.profile/1\"\nbase = \"h100-sxm-80\"\nid = \"ours\"\n[links]\nscale_out_gb_per_s = 25\n"
      "[gemm_tflops]\nbfloat16 = 700\n[sources]\nscale_out_gb_per_s = \"measured\"\n",
      "ours.toml");
  ASSERT_TRUE(ours.has_value()) << to_text(ours.error());
  HardwareProfile expected = *card;
  expected.id = "ours";
  expected.scale_out_gb_per_s = 25;
  expected.gemm_tflops[DType::BFloat16] = 700;
  expected.sources["scale_out_gb_per_s"] = "measured";
  expected.sources.erase("gemm_tflops");  // the base's are of other numbers
  expected.sources.erase("id");
  EXPECT_EQ(*ours, expected);
}

TEST(Profile, ABaseThatIsNotThereOrIsTheFileItselfIsNamed) {
  const auto error_of = [](const std::string& base, const std::string& file) {
    const auto read = parse_profile("schema = \"foreshard.profile/1\"\nid = \"x\"\nbase = " + base + "\n", file);
    EXPECT_FALSE(read.has_value());
    return read ? Error{} : read.error();
  };
  const Error none = error_of("\"h100-sxm-800\"", "ours.toml");
  EXPECT_EQ(none.code, ErrorCode::NotFound);
  EXPECT_EQ(none.file, "ours.toml");
  EXPECT_EQ(none.place, "base");
  EXPECT_EQ(error_of("8", "ours.toml").code, ErrorCode::WrongType);
  const Error gone = error_of("\"./gone.toml\"", "/nowhere/ours.toml");
  EXPECT_EQ(gone.file, "/nowhere/ours.toml");
  EXPECT_NE(gone.got.find("/nowhere/./gone.toml"), std::string::npos) << gone.got;
  const auto nameless = parse_profile("schema = \"foreshard.profile/1\"\nbase = \"h100-sxm-80\"\n", "ours.toml");
  ASSERT_FALSE(nameless.has_value());
  EXPECT_EQ(nameless.error().place, "id");
  const std::string path = testing::temporary_path("circle.toml");
  std::ofstream(path) << "schema = \"foreshard.profile/1\"\nid = \"x\"\nbase = \"" << path << "\"\n";
  const auto circle = load_profile(path);
  ASSERT_FALSE(circle.has_value());
  EXPECT_EQ(circle.error().code, ErrorCode::OutOfRange);
  EXPECT_EQ(circle.error().place, "base");
  std::remove(path.c_str());
}

TEST(Profile, ABoardOfFourHasAThirdOfItsLinksBetweenTwoCards) {
  for (const char* id : {"h200-sxm-141", "h100-sxm-80", "a100-sxm-80", "a100-sxm-40"}) {
    const auto whole = load_profile(id), four = load_profile(std::string(id) + "-x4");
    ASSERT_TRUE(whole.has_value() && four.has_value()) << id;
    EXPECT_EQ(four->fabric, Fabric::Mesh);
    EXPECT_EQ(four->cards, 4);
    EXPECT_EQ(four->rails, 4) << "a port a card";
    EXPECT_DOUBLE_EQ(share_of_rings(*four, 2).value_or(0), 1.0 / 3) << id;
    EXPECT_DOUBLE_EQ(share_of_rings(*four, 4).value_or(0), 1.0) << id;
    EXPECT_EQ(four->gemm_tflops, whole->gemm_tflops);
    const auto again = parse_profile(profile_text(*four), "again.toml");
    ASSERT_TRUE(again.has_value()) << to_text(again.error());
    EXPECT_EQ(*again, *four);
  }
}

TEST(Profile, AHostSaysHowItsCollectivesSpread) {
  const std::string plain = shipped("cpu-host");
  const auto read = [&](const std::string& spread) {
    return parse_profile(replaced(plain, "[host]\n", "[host]\ncollective_spread = " + spread + "\n"), "mine.toml");
  };
  const auto profile = read("[0.5, 0.5, 1, 2]");
  ASSERT_TRUE(profile.has_value()) << to_text(profile.error());
  EXPECT_EQ(profile->collective_spread, (std::vector<double>{0.5, 0.5, 1, 2}));
  EXPECT_EQ(*parse_profile(profile_text(*profile), "again.toml"), *profile);
  for (const char* const wrong : {"[]", "[2, 0.5, 0.5]", "[0.5, 2]", "[0, 2]", "[-1, 3]", "1", "['1']"}) {
    const auto refused = read(wrong);
    ASSERT_FALSE(refused.has_value()) << wrong;
    EXPECT_EQ(refused.error().place, "host.collective_spread") << wrong;
  }
}

TEST(CardArchitecture, IsWrittenAsCompilersNameIt) {
  for (const char* name : {"none", "sm_70", "sm_100", "gfx942", "gfx90a"}) {
    const auto card = parse_architecture(name);
    ASSERT_TRUE(card.has_value()) << name;
    EXPECT_EQ(architecture_name(*card), name);
  }
  EXPECT_EQ(parse_architecture("sm_90a"), parse_architecture("sm_90"));
  for (const char* name : {"", "sm_", "sm_9", "sm_90ab", "gfx", "gfxyz", "hopper", "90"}) {
    EXPECT_FALSE(parse_architecture(name).has_value()) << name;
  }
}

// Matrix products and addmm of PyTorch 2.11, 2.12.1 and 2.15 on the virtual device, FAKEGPU_CC = 7.0 to 12.1.
TEST(CardArchitecture, ProductsHaveTheWorkspaceOfTheReleaseAndTheCard) {
  const auto sizes = [](const char* card, const char* release) {
    const BlasWorkspaceSizes found = blas_workspaces(*parse_architecture(card), blas_workspace_use(release));
    return std::pair(found.blas, found.lt);
  };
  for (const char* card : {"sm_70", "sm_80", "sm_89", "sm_110"}) {
    EXPECT_EQ(sizes(card, "torch-2.11"), std::pair(Bytes{8519680}, kMiB)) << card;
    EXPECT_EQ(sizes(card, "torch-2.12"), std::pair(Bytes{8519680}, Bytes{0})) << card;
    EXPECT_EQ(sizes(card, "torch-2.15"), std::pair(Bytes{8519680}, kMiB)) << card;
  }
  for (const char* card : {"sm_100", "sm_103", "sm_120"}) {
    EXPECT_EQ(sizes(card, "torch-2.11"), std::pair(Bytes{8519680}, kMiB)) << card;
    EXPECT_EQ(sizes(card, "torch-2.12"), std::pair(32 * kMiB, Bytes{0})) << card;
    EXPECT_EQ(sizes(card, "torch-2.15"), std::pair(32 * kMiB, kMiB)) << card;
  }
  EXPECT_EQ(sizes("sm_90", "torch-2.4"), std::pair(32 * kMiB, kMiB));
  EXPECT_EQ(sizes("sm_90", "torch-2.12"), std::pair(32 * kMiB, Bytes{0}));
  EXPECT_EQ(sizes("gfx942", "torch-2.11"), std::pair(128 * kMiB, 76 * kMiB));
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
           {"product_share_at_2_bytes = 0.156", "product_share_at_2_bytes = 0", ErrorCode::OutOfRange,
            "extra.product_share_at_2_bytes"},
           {"fabric = \"switch\"", "fabric = \"swich\"", ErrorCode::OutOfRange, "links.fabric"},
           {"fabric = \"switch\"", "generation = \"hoper\"", ErrorCode::OutOfRange, "links.generation"},
           {"fabric = \"switch\"", "rails = 8", ErrorCode::MissingKey, "links.fabric"},
           {"\"sm_90\"", "\"hopper\"", ErrorCode::OutOfRange, "device.architecture"},
           {"architecture = \"sm_90\"\n", "", ErrorCode::MissingKey, "device.architecture"},
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
