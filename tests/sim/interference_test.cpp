#include "sim/device/interference.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "sim/device/device.h"
#include "sim/machine/profile.h"

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

TEST(Interference, WorkAlreadyPlacedOwesByItsOwnSlowdown) {
  Interference nothing(kShare);
  nothing.compute(0, 1000, 0);  // a product that loses no wave
  nothing.collective(0, 1000);
  EXPECT_EQ(nothing.compute(2000, 100), 100);
  Interference wave(kShare);
  wave.compute(0, 1000, 1);
  wave.collective(400, 1000);
  EXPECT_EQ(wave.compute(2000, 100), 700);
  Interference mixed(kShare);  // one behind the other, as one window
  mixed.compute(0, 500, 0);
  mixed.compute(500, 500, 1);
  mixed.collective(0, 1000);
  EXPECT_EQ(mixed.compute(2000, 100), 600);
}

/// What is beside what must not depend on how launches are handed over.
TEST(Interference, AListOfLaunchesIsPlacedAsItsLaunchesOneByOne) {
  const auto profile = load_profile("h100-sxm-80");
  ASSERT_TRUE(profile.has_value());
  std::mt19937 random(7);
  const auto below = [&random](int limit) { return static_cast<SimDuration>(random() % static_cast<unsigned>(limit)); };
  Device one(*profile, {}, kGiB), all(*profile, {}, kGiB), each(*profile, {}, kGiB);
  ActivitySpan what;
  what.phase = Phase::Forward;
  for (int run = 0; run < 400; ++run) {
    LaunchList list;
    const bool slow_host = run % 7 == 0;  // else the host is far ahead, and waits for the queue of launches
    for (SimDuration k = below(60); k >= 0; --k)
      list.launches.push_back({below(slow_host ? 40'000 : 4'000), below(20'000), below(3) == 0 ? -1 : 0.1});
    for (std::size_t k = 0; run % 3 == 0 && k < list.launches.size(); ++k)
      if (below(20) == 0) list.waits.push_back(k);
    const auto waits = [&list](Device& device, std::size_t k) {
      if (std::find(list.waits.begin(), list.waits.end(), k) != list.waits.end())
        device.clock.stream_synchronize(index_of(Stream::D));
    };
    list.host_after = below(5'000);
    std::vector<SimDuration> paid(list.launches.size(), 0);  // by the host before each, for something else
    const bool pays = run % 4 == 0;
    for (SimDuration& before : paid) before = pays && below(3) == 0 ? below(6'000) : 0;
    if (run % 5 > 0) all.interference.settle(list);
    for (std::size_t k = 0; k < list.launches.size(); ++k) {
      const LaunchList::Launch& launch = list.launches[k];
      one.clock.host_cost(paid[k]);
      one.launch(Stream::D, launch.host, {launch.device, launch.slowdown}, what);
      waits(one, k);
    }
    one.clock.host_cost(list.host_after);
    if (pays)
      all.launch_all(list, Phase::Forward, paid);
    else
      all.launch_all(list, Phase::Forward);
    for (std::size_t k = 0; k < list.launches.size(); ++k) {
      const LaunchList::Launch& launch = list.launches[k];
      each.clock.host_cost(paid[k]);
      each.launch_kernel(launch.host, {launch.device, launch.slowdown}, what.phase);
      waits(each, k);
    }
    each.clock.host_cost(list.host_after);
    EXPECT_EQ(one.activity.events, each.activity.events) << run;
    for (const Device* other : {&all, &each}) {
      ASSERT_EQ(one.clock.host(), other->clock.host()) << run;
      ASSERT_EQ(one.compute_tail, other->compute_tail) << run;
      ASSERT_EQ(one.clock.tail(index_of(Stream::D)), other->clock.tail(index_of(Stream::D))) << run;
      ASSERT_EQ(one.activity.compute_busy, other->activity.compute_busy) << run;
      ASSERT_EQ(one.activity.gaps.size(), other->activity.gaps.size()) << run;
    }
    const SimTime begin = std::max<SimTime>(0, one.compute_tail - below(100'000)), end = begin + below(150'000);
    if (below(3) > 0) continue;
    for (Device* device : {&one, &all, &each}) device->interference.collective(begin, end);
  }
}

TEST(Interference, TheShareIsThatOfTheChannelsOnMultiprocessors) {
  HardwareProfile profile;
  profile.architecture = {CardArchitecture::Maker::Nvidia, 90};
  profile.sm_count = 128;
  profile.channels = 16;
  Interference beside(profile);
  beside.collective(0, 1'000'000);
  EXPECT_EQ(beside.compute(0, 7000), 8000);
  profile.kind = "virtual";
  EXPECT_FALSE(Interference(profile).active());
}

TEST(Interference, AProductLosesNothingOrAWholeWave) {
  HardwareProfile profile;
  profile.architecture = {CardArchitecture::Maker::Nvidia, 90};
  profile.sm_count = 132;
  profile.channels = 24;
  Interference beside(profile);
  EXPECT_DOUBLE_EQ(beside.slowdown(132), 1) << "measured on 132 tiles: 80 % of the peak, then 47";
  EXPECT_DOUBLE_EQ(beside.slowdown(108), 0) << "they fit beside the gather";
  EXPECT_DOUBLE_EQ(beside.slowdown(216), 0) << "two waves either way";
  EXPECT_DOUBLE_EQ(beside.slowdown(264), 0.5);
  EXPECT_NEAR(beside.slowdown(132 * 1000), 24.0 / 108, 1e-3) << "of many waves as of any other kernel";
  EXPECT_DOUBLE_EQ(beside.slowdown(0), 24.0 / 108);
  beside.collective(0, 10'000);
  EXPECT_EQ(beside.compute(0, 1000, beside.slowdown(132)), 2000);
  EXPECT_EQ(beside.compute(2000, 1000, beside.slowdown(108)), 1000);
}

/// Each kernel beside every window there is: what Interference says without looking at all of them each time.
TEST(Interference, KernelsInAndAcrossCollectivesTakeWhatTheirOverlapSays) {
  constexpr double kSlowdown = kShare / (1 - kShare);
  std::mt19937_64 random(7);
  const auto below = [&](SimTime n) { return static_cast<SimTime>(random() % static_cast<std::uint64_t>(n)); };
  for (int round = 0; round < 200; ++round) {
    Interference interference(kShare);
    std::vector<WorkSpan> windows, computed;
    const auto overlap = [](const std::vector<WorkSpan>& all, SimTime begin, SimTime end) {
      SimDuration total = 0;
      for (const WorkSpan& one : all) {
        total += std::max<SimDuration>(0, std::min(one.end, end) - std::max(one.start, begin));
      }
      return total;
    };
    SimTime now = 0, channel = 0;
    double owed = 0;
    for (int k = 0; k < 60; ++k) {
      if (below(6) == 0) {  // one communicator, now or some time ahead, sometimes right behind the one before
        const SimTime begin = std::max(channel, now + below(900) - 300), end = begin + 1 + below(700);
        interference.collective(begin, end);
        owed += kSlowdown * static_cast<double>(overlap(computed, begin, end));
        windows.push_back({begin, end});
        channel = end + below(2) * below(200);
        continue;
      }
      const SimTime start = now + below(2) * below(100);
      const SimDuration alone = below(5) == 0 ? below(900) : below(60);
      const double beside = kSlowdown * static_cast<double>(overlap(windows, start, start + alone));
      const auto expected = static_cast<SimDuration>(static_cast<double>(alone) + owed + beside);
      owed = 0;
      ASSERT_EQ(interference.compute(start, alone), expected) << "round " << round << ", kernel " << k;
      now = start + expected;
      computed.push_back({start, now});
    }
  }
}

}  // namespace
}  // namespace foreshard
