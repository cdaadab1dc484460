#include "sim/network/collectives.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "sim/network/links.h"

namespace foreshard {
namespace {

std::string digit(double value) {  // one digit behind the point, as NCCL prints
  std::string text = std::to_string(std::round(value * 10) / 10);
  return text.substr(0, text.find('.') + 2);
}

std::string entry(const CollectiveChoice& choice) { return digit(choice.latency_us) + " / " + digit(choice.gb_per_s); }

struct Row {
  int nodes;
  const char* ll;
  const char* ll128;
  const char* simple;
  const char* reduce_ring;
  const char* reduce_tree;
};

// Specification 5.6: NCCL's printed table, H100 NVSwitch, 8 NICs of 400 Gb/s, Intel hosts.
TEST(NcclModel, ReproducesThePrintedTable) {
  const NcclTopology topology{NcclRow::Hopper, false, 8, 48, 48, 0};
  for (const Row& row :
       {Row{2, "23.3 / 41.6", "44.6 / 313.2", "70.0 / 409.6", "131.6 / 204.8", "92.4 / 140.8"},
        Row{4, "42.7 / 21.1", "79.2 / 303.1", "145.6 / 396.4", "282.8 / 198.2", "120.4 / 122.4"},
        Row{8, "81.5 / 20.7", "148.4 / 298.3", "296.8 / 390.1", "585.2 / 195.0", "148.4 / 122.4"},
        Row{16, "159.1 / 20.6", "286.8 / 295.9", "599.2 / 387.0", "1190.0 / 193.5", "176.4 / 122.4"},
        Row{32, "314.3 / 20.5", "563.6 / 294.8", "1204.0 / 385.5", "2399.6 / 192.8", "204.4 / 122.4"}}) {
    const GroupPlacement group{row.nodes * 8, row.nodes};
    const auto of = [&](CollectiveKind kind, CollectiveAlgorithm algorithm, CollectiveProtocol protocol) {
      return entry(nccl_candidate(topology, kind, group, algorithm, protocol));
    };
    using enum CollectiveProtocol;
    for (const CollectiveKind kind : {CollectiveKind::AllGather, CollectiveKind::ReduceScatter}) {
      EXPECT_EQ(of(kind, CollectiveAlgorithm::Ring, LL), row.ll);
      EXPECT_EQ(of(kind, CollectiveAlgorithm::Ring, LL128), row.ll128);
      EXPECT_EQ(of(kind, CollectiveAlgorithm::Ring, Simple), row.simple);
    }
    EXPECT_EQ(of(CollectiveKind::AllReduce, CollectiveAlgorithm::Ring, Simple), row.reduce_ring);
    EXPECT_EQ(of(CollectiveKind::AllReduce, CollectiveAlgorithm::Tree, Simple), row.reduce_tree);
  }
}

struct TableRow {
  int nodes, per_node;
  double ll, ll128, simple;         // gathers and reduce-scatters over rings, GB/s of the algorithm
  double reduce_simple, reduce_us;  // all-reduce over rings
};

// NCCL 2.27.5's own logs on H100 with NVSwitch and a port of 400 Gb/s a card (autoparallel, nccl_cost_model.py): what
// its topology search finds for 1, 2, 4 and 8 ranks of a node. Here from the profile's links and ports.
TEST(NcclModel, FindsWhatNcclFindsForAnyNumberOfRanksOfANode) {
  const auto profile = load_profile("h100-sxm-80");
  ASSERT_TRUE(profile.has_value());
  for (const TableRow& row : {TableRow{2, 1, 48.0, 88.3, 96.0, 48.0, 36.4},
                              {2, 2, 52.0, 117.8, 128.0, 64.0, 50.0},
                              {2, 4, 44.6, 201.9, 219.4, 109.7, 77.2},
                              {2, 8, 41.6, 313.2, 409.6, 204.8, 131.6},
                              {4, 1, 27.2, 58.9, 64.0, 32.0, 92.4},
                              {4, 4, 21.8, 188.4, 204.8, 102.4, 174.0},
                              {8, 2, 21.8, 94.2, 102.4, 51.2, 258.8},
                              {16, 1, 21.8, 47.1, 51.2, 25.6, 428.4},
                              {16, 4, 20.7, 179.4, 195.0, 97.5, 754.8},
                              {32, 1, 21.1, 45.6, 49.5, 24.8, 876.4},
                              {32, 2, 20.7, 89.7, 97.5, 48.8, 1094.0},
                              {32, 4, 20.6, 178.0, 193.5, 96.8, 1529.2}}) {
    const GroupPlacement group{row.nodes * row.per_node, row.nodes, row.per_node};
    const NcclTopology topology = topology_of(*profile, group);
    const auto of = [&](CollectiveKind kind, CollectiveProtocol protocol) {
      return nccl_candidate(topology, kind, group, CollectiveAlgorithm::Ring, protocol);
    };
    const std::string where = std::to_string(row.nodes) + " x " + std::to_string(row.per_node);
    using enum CollectiveProtocol;
    for (const CollectiveKind kind : {CollectiveKind::AllGather, CollectiveKind::ReduceScatter}) {
      EXPECT_NEAR(of(kind, LL).gb_per_s / row.ll, 1, 0.08) << where;
      EXPECT_NEAR(of(kind, LL128).gb_per_s / row.ll128, 1, 0.08) << where;
      EXPECT_NEAR(of(kind, Simple).gb_per_s / row.simple, 1, 0.08) << where;
    }
    EXPECT_NEAR(of(CollectiveKind::AllReduce, Simple).gb_per_s / row.reduce_simple, 1, 0.08) << where;
    EXPECT_NEAR(of(CollectiveKind::AllReduce, Simple).latency_us, row.reduce_us, 0.1) << where;
    // Large messages reach it where the ports are what limits; full nodes do not.
    for (const CollectiveKind kind :
         {CollectiveKind::AllGather, CollectiveKind::ReduceScatter, CollectiveKind::AllReduce}) {
      const double table = kind == CollectiveKind::AllReduce ? row.reduce_simple : row.simple;
      const double us = estimate_collective(*profile, kind, group, 16 * kGiB).us;
      const double reached = 16.0 * kGiB / us / 1e3 / table;
      EXPECT_NEAR(reached, row.per_node < 8 ? 1.0 : 0.87, 0.08) << where;
    }
  }
}

TEST(NcclModel, ChoosesLowLatencyProtocolsForSmallAndSimpleForLargeMessages) {
  const NcclTopology topology{NcclRow::Hopper, false, 8, 48, 48, 0};
  const GroupPlacement group{16, 2};
  EXPECT_EQ(nccl_choice(topology, CollectiveKind::AllGather, group, 4096).protocol, CollectiveProtocol::LL);
  EXPECT_EQ(nccl_choice(topology, CollectiveKind::AllGather, group, kGiB).protocol, CollectiveProtocol::Simple);
}

TEST(NcclModel, GathersRunRingsEvenBehindNvswitch) {
  const NcclTopology topology{NcclRow::Hopper, false, 16, 22.5, 22.5, 0};
  const GroupPlacement group{8, 1};
  for (const Bytes bytes : {64 * kKiB, 16 * kMiB, 4 * kGiB}) {
    EXPECT_EQ(nccl_choice(topology, CollectiveKind::AllGather, group, bytes).algorithm, CollectiveAlgorithm::Ring);
  }
  EXPECT_EQ(nccl_choice(topology, CollectiveKind::AllReduce, group, 4 * kGiB).algorithm, CollectiveAlgorithm::Nvls);
}

TEST(Collectives, AGroupIsPlacedByTheNodesOfItsRanks) {
  EXPECT_EQ(place_group({0, 1, 2, 3}, 8), (GroupPlacement{4, 1, 8}));
  EXPECT_EQ(place_group({6, 7, 8, 9}, 8), (GroupPlacement{4, 2, 8}));
  EXPECT_EQ(place_group({3, 11, 19}, 8), (GroupPlacement{3, 3, 8}));
  EXPECT_EQ(place_group({}, 8), (GroupPlacement{1, 1, 8}));
}

// Specification 8: one Llama 3 8B block, bf16, 8 H200: 436,224,000 x 7/8 / 361.4 GB/s = 1.056 ms plus latency.
TEST(Collectives, GatherOfOneBlockOnEightH200IsWithinAFewPercentOfTheMeasuredBandwidth) {
  const auto profile = load_profile("h200-sxm-141");
  ASSERT_TRUE(profile.has_value());
  const double ns = static_cast<double>(collective_time(*profile, CollectiveKind::AllGather, {8, 1}, 436'224'000));
  EXPECT_NEAR(ns, 1.056e6 + 30e3, 0.06e6);
}

TEST(Collectives, MoreBytesNeverTakeLessTime) {
  for (const char* id : {"a100-sxm-80", "h100-sxm-80", "b200", "rtx-4090", "mi300x", "virtual", "cpu-host"}) {
    const auto profile = load_profile(id);
    ASSERT_TRUE(profile.has_value());
    for (const GroupPlacement group :
         {GroupPlacement{1, 1}, GroupPlacement{2, 1}, GroupPlacement{8, 1}, GroupPlacement{16, 2},
          GroupPlacement{64, 8}, GroupPlacement{512, 64}, GroupPlacement{8, 8}}) {
      for (const CollectiveKind kind :
           {CollectiveKind::AllGather, CollectiveKind::ReduceScatter, CollectiveKind::AllReduce,
            CollectiveKind::AllToAll, CollectiveKind::SendReceive}) {
        SimDuration last = 0;
        for (Bytes bytes = 1; bytes <= 64 * kGiB; bytes *= 2) {
          const SimDuration now = collective_time(*profile, kind, group, bytes);
          EXPECT_GE(now, last) << id << " " << group.ranks << "/" << group.nodes << " " << bytes;
          last = now;
        }
      }
    }
  }
}

TEST(Collectives, AnAllReduceOverRingsPaysForEveryStep) {
  const auto us = [](const char* card, int ranks, Bytes bytes) {
    return estimate_collective(*load_profile(card), CollectiveKind::AllReduce, {ranks, 1}, bytes).us;
  };
  // 2 (n - 1) steps; of small messages the wire is nothing.
  const double two = us("a100-sxm-80", 2, 4096), four = us("a100-sxm-80", 4, 4096), eight = us("a100-sxm-80", 8, 4096);
  EXPECT_NEAR((eight - four) / (four - two), 2.0, 0.1);
  // The step is dearer beyond the short messages of LL.
  EXPECT_GT(us("a100-sxm-80", 8, 2 * kMiB) - us("a100-sxm-80", 4, 2 * kMiB), 1.5 * (eight - four));
  // In the switch all ranks add at once.
  EXPECT_NEAR(us("h200-sxm-141", 8, 4096), us("h200-sxm-141", 4, 4096), 1.0);
}

TEST(Collectives, BridgesJoinTwoCardsAndMoreMeetOverTheHost) {
  const auto profile = load_profile("h100-pcie-80");
  ASSERT_TRUE(profile.has_value());
  const auto rate = [&](int ranks) {  // of a large gather, what a card takes in
    const double us = estimate_collective(*profile, CollectiveKind::AllGather, {ranks, 1}, 4096 * kMiB).us;
    return 4096.0 * kMiB * (ranks - 1) / ranks / us / 1e3;
  };
  EXPECT_NEAR(rate(2), 240, 3);
  for (const int ranks : {3, 4, 8}) EXPECT_NEAR(rate(ranks), profile->host_link_gb_per_s, 1) << ranks;
}

TEST(Collectives, RanksOfANodeShareItsPorts) {
  HardwareProfile profile = *load_profile("a100-sxm-80");
  profile.scale_out_gb_per_s = 6.25;  // one port of 400 Gb/s for eight cards
  profile.rails = 1;
  profile.host_link_gb_per_s = 26;
  EXPECT_EQ(network_gb_per_s(profile, 8, 8), 50);
  EXPECT_EQ(network_gb_per_s(profile, 1, 8), 6.25) << "the seven other groups are busy too";
  EXPECT_EQ(network_gb_per_s(profile, 2, 2), 50);
  EXPECT_EQ(network_gb_per_s(profile, 1, 1), 26) << "no more than a card's link";
  profile.rails = 8;
  for (const int ranks : {1, 2, 4, 8}) EXPECT_EQ(network_gb_per_s(profile, ranks, ranks), 6.25 * ranks);
}

TEST(Collectives, CardsWithoutASwitchAddNothingInIt) {
  for (const char* card : {"h100-pcie-80", "h100-nvl", "mi300x", "mi325x", "mi355x"}) {
    const auto profile = load_profile(card);
    ASSERT_TRUE(profile.has_value()) << card;
    for (const int ranks : {2, 4, 8}) {
      const auto estimate = estimate_collective(*profile, CollectiveKind::AllReduce, {ranks, 1}, 256 * kMiB);
      EXPECT_NE(estimate.choice.algorithm, CollectiveAlgorithm::Nvls) << card << ", " << ranks;
      EXPECT_EQ(
          estimate_collective(*profile, CollectiveKind::AllReduce, {ranks, 1}, 256 * kMiB, CollectiveAlgorithm::Nvls)
              .us,
          0)
          << card;
      EXPECT_EQ(
          estimate_collective(*profile, CollectiveKind::AllReduce, {ranks, 1}, 256 * kMiB, CollectiveAlgorithm::Ring)
              .us,
          estimate.us)
          << card << ", " << ranks;
    }
  }
}

TEST(Collectives, WithoutASwitchAPartOfTheCardsHasTheRingsThroughThem) {
  EXPECT_EQ(rings_through(cube_mesh(), 8), 6) << "three rings through all, each in both directions";
  EXPECT_EQ(rings_through(cube_mesh(), 4), 4);
  EXPECT_EQ(rings_through(cube_mesh(), 2), 1);
  EXPECT_EQ(rings_through(cube_mesh(), 5), 0) << "the fifth card has links to the first alone";
  EXPECT_EQ(rings_of_full_mesh(8, 1), 7);
  EXPECT_EQ(rings_of_full_mesh(4, 1), 2);
  EXPECT_EQ(rings_of_full_mesh(4, 3), 8);
  EXPECT_EQ(rings_of_full_mesh(4, 6), 18) << "all links of an H100 on a board of four";
  EXPECT_EQ(rings_of_full_mesh(2, 1), 1);
  const auto rate = [](const char* card, int ranks) {  // of a large gather, what a card takes in
    const double us = estimate_collective(*load_profile(card), CollectiveKind::AllGather, {ranks, 1}, 4096 * kMiB).us;
    return 4096.0 * kMiB * (ranks - 1) / ranks / us;
  };
  EXPECT_NEAR(rate("v100-sxm", 4) / rate("v100-sxm", 8), 4.0 / 6, 0.02);
  EXPECT_NEAR(rate("v100-sxm", 2) / rate("v100-sxm", 8), 1.0 / 6, 0.02);
  EXPECT_NEAR(rate("mi300x", 2) / rate("mi300x", 8), 1.0 / 7, 0.02);
  EXPECT_NEAR(rate("h200-sxm-141-x4", 2) / rate("h200-sxm-141-x4", 4), 1.0 / 3, 0.02);
  EXPECT_LT(rate("v100-sxm", 5), rate("v100-sxm", 2)) << "over the host";
  EXPECT_GT(rate("h100-sxm-80", 2) / rate("h100-sxm-80", 8), 0.7) << "behind a switch";
}

TEST(Collectives, FewerThreadBlocksCarryLess) {
  const auto profile = load_profile("h100-sxm-80");
  ASSERT_TRUE(profile.has_value());
  const auto rate = [&](std::int64_t ctas) {
    const HardwareProfile limited = with_max_ctas(*profile, ctas);
    EXPECT_EQ(with_max_ctas(limited, ctas), limited) << "twice is once";
    return 4.0 * kGiB * 7 / 8 / estimate_collective(limited, CollectiveKind::AllGather, {8, 1}, 4 * kGiB).us / 1e3;
  };
  EXPECT_NEAR(rate(2), 2 * 36.7, 5) << "what NCCL lets a channel of Hopper carry";
  EXPECT_NEAR(rate(4), 4 * 36.7, 8);
  EXPECT_NEAR(rate(12), rate(64), 1) << "the links are full";
  EXPECT_EQ(with_max_ctas(*profile, 0), *profile);
}

TEST(Collectives, SymmetricMemorySavesWhatWasPublished) {
  const auto profile = load_profile("h100-sxm-80");
  ASSERT_TRUE(profile.has_value());
  // 8 H100, plain less symmetric (specification of 2026's runtime): gathers, and where there is a row the mean with
  // reductions.
  for (const auto& [mebibytes, saved_us] : {std::pair{2, 8.6}, {8, 17.1}, {32, 17.9}, {128, 22.1}}) {
    const double us =
        static_cast<double>(saved_by_symmetric_memory(*profile, CollectiveKind::AllGather, {8, 1}, mebibytes * kMiB)) /
        1e3;
    EXPECT_NEAR(us, saved_us, 4.5) << mebibytes;
  }
  EXPECT_EQ(saved_by_symmetric_memory(*profile, CollectiveKind::AllGather, {16, 2}, kGiB), 0) << "over nodes";
  EXPECT_EQ(saved_by_symmetric_memory(*load_profile("rtx-4090"), CollectiveKind::AllGather, {8, 1}, kGiB), 0);
}

// Latency + bytes (W-1)/W / bandwidth, all-reduce twice.
TEST(Collectives, TheVirtualDeviceHasItsOwnFormula) {
  const auto profile = load_profile("virtual");
  ASSERT_TRUE(profile.has_value());
  EXPECT_EQ(collective_time(*profile, CollectiveKind::AllGather, {8, 1}, 131'074'048), 402'299);
  EXPECT_EQ(collective_time(*profile, CollectiveKind::AllGather, {8, 1}, 23'597'056), 88'824);
  EXPECT_EQ(collective_time(*profile, CollectiveKind::AllReduce, {64, 8}, 4), 20'000);
}

}  // namespace
}  // namespace foreshard
