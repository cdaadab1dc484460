#include "sim/network/point_to_point.h"

#include <gtest/gtest.h>

namespace foreshard {
namespace {

HardwareProfile card(const char* id) { return *load_profile(id); }

double all_to_all_rate(const HardwareProfile& profile, const GroupPlacement& group) {
  constexpr Bytes kBytes = 16 * kGiB;
  return static_cast<double>(kBytes) * (group.ranks - 1) / group.ranks / all_to_all_us(profile, group, kBytes) / 1e3;
}

TEST(PointToPoint, PartsInsideANodeRunOnCopyEngines) {
  // Specification, section 6: 380 GB/s after 50 us on H100.
  EXPECT_NEAR(all_to_all_rate(card("h100-sxm-80"), {8, 1}), 380, 4);
  EXPECT_NEAR(all_to_all_us(card("h100-sxm-80"), {8, 1}, 0), 50, 5);
  // Kernels of earlier cards send in short steps.
  EXPECT_LT(all_to_all_rate(card("a100-sxm-80"), {8, 1}), 0.75 * 235);
}

TEST(PointToPoint, OnAFullMeshEveryPairHasItsLink) {
  const HardwareProfile mesh = card("mi300x");
  EXPECT_NEAR(all_to_all_rate(mesh, {2, 1}) / all_to_all_rate(mesh, {8, 1}), 1.0 / 7, 0.01);
  EXPECT_NEAR(all_to_all_rate(mesh, {4, 1}) / all_to_all_rate(mesh, {8, 1}), 3.0 / 7, 0.02);
}

TEST(PointToPoint, OverNodesThePortsCarryWhatIsForOtherNodes) {
  const HardwareProfile profile = card("h100-sxm-80");
  // Two nodes of eight: 8 of 16 parts leave, over 48 GB/s a card of which 0.78 are reached.
  const double us = all_to_all_us(profile, {16, 2, 8}, 16 * kGiB);
  EXPECT_NEAR(us, 16.0 * kGiB / 2 / (48 * 0.78 * 1e3), 0.01 * us);
  // The more nodes, the larger the share that leaves.
  EXPECT_LT(all_to_all_us(profile, {16, 2, 8}, kGiB), all_to_all_us(profile, {64, 8, 8}, kGiB));
  // Ranks of a node that other groups share have their part of its ports.
  HardwareProfile shared = profile;
  shared.rails = 1;
  shared.scale_out_gb_per_s = 6.25;
  EXPECT_NEAR(all_to_all_us(shared, {4, 2, 8}, 16 * kGiB) / all_to_all_us(shared, {4, 2, 2}, 16 * kGiB), 4, 0.1);
}

TEST(PointToPoint, PartsForOtherRailsPassTheLinksOfTheNodeFirst) {
  HardwareProfile narrow = card("a100-sxm-80");
  narrow.scale_out_gb_per_s = 400;  // so that the node's own links decide
  HardwareProfile one_rail = narrow;
  one_rail.rails = 1;
  EXPECT_GT(all_to_all_us(narrow, {32, 4, 8}, kGiB), 1.5 * all_to_all_us(one_rail, {32, 4, 8}, kGiB));
}

TEST(PointToPoint, AMessageToTheNextRankTakesTheSlowestHop) {
  const auto rate = [](const char* id, const GroupPlacement& group) {
    return 4.0 * kGiB / send_receive_us(card(id), group, 4 * kGiB) / 1e3;
  };
  EXPECT_NEAR(rate("h100-sxm-80", {16, 2, 8}), 48, 1) << "over the border of a node";
  EXPECT_GT(rate("h100-sxm-80", {8, 1}), 300);
  EXPECT_NEAR(rate("h100-pcie-80", {8, 1}), 55, 1) << "pairs meet over the host";
  EXPECT_GT(rate("h100-pcie-80", {2, 1}), 200);
  EXPECT_NEAR(rate("mi300x", {8, 1}) * 7, 352, 10) << "one of seven links";
}

}  // namespace
}  // namespace foreshard
