#include "sim/truth/nccl_tests.h"

#include <gtest/gtest.h>

#include "sim/network/collectives.h"

namespace foreshard {
namespace {

constexpr const char* kDevices =
    "# nThread 1 nGpus 4 minBytes 1048576 maxBytes 4194304 step: 2(factor) warmup iters: 5 iters: 20\n"
    "# Using devices\n"
    "#  Rank  0 Group  0 Pid   101 on      node1 device  0 [0x1b] NVIDIA H100 80GB HBM3\n"
    "#  Rank  1 Group  0 Pid   101 on      node1 device  1 [0x43] NVIDIA H100 80GB HBM3\n"
    "#  Rank  2 Group  0 Pid   101 on      node1 device  2 [0x52] NVIDIA H100 80GB HBM3\n"
    "#  Rank  3 Group  0 Pid   101 on      node1 device  3 [0x61] NVIDIA H100 80GB HBM3\n"
    "#                                                              out-of-place                       in-place\n"
    "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw "
    "#wrong\n";

std::string gather() {
  return std::string(kDevices) +
         "     1048576         65536     float    none      -1    27.00   38.84   29.13      0    26.50   39.57   "
         "29.68      0\n"
         "     2097152        131072     float    none      -1    33.00   63.55   47.66      0    33.10   63.36   "
         "47.52      0\n"
         "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 38.5\n";
}

TEST(NcclTests, ATableBecomesACurve) {
  const auto runs = parse_nccl_tests(gather(), "out.txt");
  ASSERT_TRUE(runs) << to_text(runs.error());
  ASSERT_EQ(runs->size(), 1U);
  const NcclTestsRun& run = (*runs)[0];
  EXPECT_EQ(run.measured, (MeasuredCollective{"all_gather", 4, {1048576, 2097152}, {27'000, 33'000}}));
  EXPECT_EQ(run.device, "NVIDIA H100 80GB HBM3");
  EXPECT_EQ(run.hosts, 1);
  EXPECT_NEAR(run.worst_spread, 0.5 / 26.5, 1e-9);
}

TEST(NcclTests, TheKindFollowsFromTheBandwidths) {
  const std::string reduce = std::string(kDevices) + " 1048576 262144 float sum -1 40.0 26.21 39.32 0\n";
  const std::string scatter = std::string(kDevices) + " 1048576 262144 float sum -1 40.0 26.21 19.66 0\n";
  EXPECT_EQ(parse_nccl_tests(reduce, "f")->front().measured.kind, "all_reduce");
  EXPECT_EQ(parse_nccl_tests(scatter, "f")->front().measured.kind, "reduce_scatter");
}

TEST(NcclTests, SeveralTestsInOneLog) {
  const auto runs = parse_nccl_tests(gather() + gather(), "out.txt");
  ASSERT_TRUE(runs);
  EXPECT_EQ(runs->size(), 2U);
}

TEST(NcclTests, WhatIsNoOutputIsAnError) {
  for (const char* text : {"", "hello world\n", "1 2 float sum -1 1 1 1 0\n"}) {
    const auto runs = parse_nccl_tests(text, "out.txt");
    ASSERT_FALSE(runs) << text;
    EXPECT_EQ(runs.error().file, "out.txt");
  }
}

TEST(NcclTests, APredictionFollowsTheCurve) {
  auto profile = load_profile("h100-sxm-80");
  ASSERT_TRUE(profile);
  profile->collectives.push_back(parse_nccl_tests(gather(), "out.txt")->front().measured);
  EXPECT_EQ(collective_time(*profile, CollectiveKind::AllGather, {4, 1}, 1048576), 27'000);
}

}  // namespace
}  // namespace foreshard
