#include "sim/interference.h"

#include <gtest/gtest.h>

namespace foreshard {
namespace {

constexpr double kShare = 0.2;  // compute beside a collective takes 1 / 0.8 as long

TEST(Interference, AloneNothingChanges) {
  Interference beside(kShare);
  EXPECT_EQ(beside.compute(0, 1000), 1000);
  EXPECT_EQ(beside.compute(1000, 500), 500);
}

TEST(Interference, ComputeBesideAKnownCollectiveIsStretched) {
  Interference beside(kShare);
  beside.collective(0, 10'000);
  EXPECT_EQ(beside.compute(1000, 1000), 1250);
  EXPECT_EQ(beside.compute(9600, 800), 900);  // half of it beside
}

TEST(Interference, ACollectiveIssuedLaterIsPaidByTheNextKernel) {
  Interference beside(kShare);
  beside.compute(0, 1000);
  beside.collective(200, 600);  // beside work already placed: 400 x 0.25
  EXPECT_EQ(beside.compute(1000, 50), 150);
  EXPECT_EQ(beside.compute(1150, 50), 50);  // once
}

TEST(Interference, TheShareIsThatOfTheChannelsOnMultiprocessors) {
  HardwareProfile profile;
  profile.generation = "hopper";
  profile.sm_count = 128;
  profile.channels = 16;
  Interference beside(profile);
  beside.collective(0, 1'000'000);
  EXPECT_EQ(beside.compute(0, 7000), 8000);
  profile.kind = "virtual";
  EXPECT_FALSE(Interference(profile).active());
}

}  // namespace
}  // namespace foreshard
