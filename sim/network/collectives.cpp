#include "sim/network/collectives.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <set>
#include <string_view>

#include "sim/network/links.h"
#include "sim/network/plain_links.h"
#include "sim/network/point_to_point.h"

namespace foreshard {
namespace {

constexpr const char* kMaxCtas = "nccl_max_ctas";  // in HardwareProfile::extra, by with_max_ctas

using PerProtocol = std::array<double, 3>;  // LL, LL128, Simple
using PerNodes = std::array<double, 3>;     // 1, 2, 3 or more nodes

// Section 5.1.
constexpr PerProtocol kTreeBase{6.8, 14.0, 8.4};
constexpr PerProtocol kRingBase{6.6, 14.0, 8.4};
constexpr PerProtocol kTreeNvlink{0.6, 1.25, 4.0};
constexpr PerProtocol kRingNvlink{0.6, 1.9, 3.4};
constexpr PerProtocol kTreeNetwork{5.0, 8.5, 14.0};
constexpr PerProtocol kRingNetwork{2.7, 4.0, 14.0};
constexpr double kNvlsNvlink = 25.0, kNvlsNetwork = 18.0, kNvlsTreeNetwork = 20.9;

struct Caps {
  PerNodes ll, ring_ll128, tree_ll128, tree_simple, nvls_tree;
  double nvls_efficiency;
};
constexpr Caps kVolta{{39, 39, 20.4}, {20, 20, 20}, {20, 20, 20}, {26.5, 18.5, 10}, {26.5, 18.5, 10}, 0};
constexpr Caps kAmpere{{87.7, 22.5, 19}, {20, 20, 20}, {20, 20, 20}, {24, 23.6, 17.8}, {24, 23.6, 17.8}, 0};
constexpr Caps kHopper{{141, 45, 35}, {36.7, 36.7, 36.7}, {36.7, 36.7, 29}, {38.7, 41.4, 36}, {0, 57.7, 45.5}, 0.85};
constexpr Caps kBlackwell{{282, 90, 70}, {40, 40, 40}, {55.6, 31.67, 20}, {70, 42.8, 24}, {0, 96, 80}, 0.74};

const Caps& caps_of(NcclRow row) {
  switch (row) {
    case NcclRow::Volta: return kVolta;
    case NcclRow::Ampere: return kAmpere;
    case NcclRow::Hopper: return kHopper;
    case NcclRow::Blackwell: return kBlackwell;
  }
  return kHopper;
}

// Section 5.4: tree all-reduce, by floor(log2(bytes / 64)).
constexpr std::array<std::array<double, 24>, 3> kTreeCorrection{{
    {1, 1, 1, 1, .9, .8, .7, .7, .7, .7, .6, .5, .4, .4, .5, .6, .7, .8, .9, 1, 1, 1, 1, 1},
    {1, 1, 1, 1, 1, .9, .8, .8, .8, .7, .6, .6, .6, .6, .6, .6, .8, .9, .9, .9, .9, 1, 1, 1},
    {.9, .9, .9, .9, .9, .9, .9, .8, .7, .6, .6, .5, .5, .5, .5, .6, .7, .8, .7, .7, .8, .9, .9, .9},
}};

/// Steps of the ring: 2(n-1) for all-reduce, n-1 for the others.
double ring_steps(CollectiveKind kind, int ranks) {
  return kind == CollectiveKind::AllReduce ? 2.0 * (ranks - 1) : ranks - 1.0;
}

double network_post_us(const NcclTopology& topology, CollectiveProtocol protocol) {
  const double once = topology.amd_host ? 2.0 : 1.0;
  return protocol == CollectiveProtocol::Simple ? 3 * once : once;
}

double ring_latency(const NcclTopology& topology, CollectiveKind kind, const GroupPlacement& group,
                    CollectiveProtocol protocol) {
  const auto p = static_cast<std::size_t>(protocol);
  const double steps = ring_steps(kind, group.ranks);
  const bool several = group.nodes > 1;
  const double across = several ? (kind == CollectiveKind::AllReduce ? 2.0 : 1.0) * (group.nodes - 1) : 0;
  double inter = group.ranks_per_node() == 1 ? kTreeNetwork[p] : kRingNetwork[p];
  inter += topology.nic_latency_us * (protocol == CollectiveProtocol::Simple ? 2 : 1);
  const double intra = std::max(kRingNvlink[p], several ? network_post_us(topology, protocol) : 0.0);
  return kRingBase[p] + (steps - across) * intra + across * inter;
}

double tree_latency(const NcclTopology& topology, const GroupPlacement& group, CollectiveProtocol protocol) {
  const auto p = static_cast<std::size_t>(protocol);
  const double inter = kTreeNetwork[p] + topology.nic_latency_us * (protocol == CollectiveProtocol::Simple ? 2 : 1);
  return kTreeBase[p] + 2 * ((group.ranks_per_node() - 1) * kTreeNvlink[p] + std::log2(group.nodes) * inter);
}

/// Between the measured group sizes 2, 4, 8 linearly; constant outside (section 6).
double by_ranks(int ranks, const std::array<double, 3>& values) {
  if (ranks <= 2) return values[0];
  if (ranks >= 8) return values[2];
  if (ranks <= 4) return values[0] + (ranks - 2) / 2.0 * (values[1] - values[0]);
  return values[1] + (ranks - 4) / 4.0 * (values[2] - values[1]);
}

/// What the rings of a machine carry together (section 6, measured against the link total in whole channels).
double ring_bus_gb_per_s(const HardwareProfile& profile, CollectiveKind kind, int ranks) {
  const double total = profile.channels * profile.channel_gb_per_s, reached = total * profile.ring_share;
  if (const auto links = share_of_rings(profile, ranks)) {
    return *links > 0 ? reached * *links : std::min(total, profile.host_link_gb_per_s);
  }
  if (profile.fabric == Fabric::Host) return reached;
  // Behind a switch, too, two or four of eight GPUs find fewer rings (published fits on H100: gathers 268, 325, 345;
  // all-reduce of two 324).
  const std::array<double, 3> found = kind == CollectiveKind::AllReduce ? std::array<double, 3>{0.90, 0.96, 1.0}
                                                                        : std::array<double, 3>{0.78, 0.94, 1.0};
  return reached * by_ranks(ranks, found);
}

/// All-reduce in the switch: a GPU sends its whole buffer and takes 1/n of it back per step; 0 where there is no NVLS.
double nvls_bus_gb_per_s(const HardwareProfile& profile, int ranks) {
  const double n = ranks;
  return 2 * (n - 1) / n * profile.scale_up_gb_per_s * profile.switch_sum_share / (1 + 1 / n);
}

// The clock that NCCL's model is not: a floor, the wire, and a ramp that is paid in full only by large messages,
//   time = floor + traffic / bus + ramp x bytes / (bytes + knee).
// docs/accuracy.md says which published times the constants are fitted to.
//
// In the switch (and over nodes) all ranks add at once, whatever their number.
constexpr double kFloorUs = 47, kRampUs = 110, kKneeBytes = 30.0 * 1024 * 1024;
constexpr double kFloorPerDoubling = 3.5, kRampPerDoubling = 1.2;  // per doubling of the nodes
// An all-reduce over rings is passed on from rank to rank: floor and ramp grow with the steps (section 5.2), and a step
// is dearer where messages are no longer short enough for LL.
constexpr double kRingFloorUs = 18, kRingStepUs = 1.5, kRingRampUs = 4.5, kRingKneeBytes = 0.5 * 1024 * 1024;

double law_us(double floor_us, double ramp_us, double knee, double traffic, double bus_gb_per_s, double bytes) {
  return floor_us + traffic / (bus_gb_per_s * 1e3) + ramp_us * bytes / (bytes + knee);
}

double traffic_of(CollectiveKind kind, const GroupPlacement& group, Bytes bytes) {
  const double n = group.ranks, full = static_cast<double>(bytes);
  if (kind == CollectiveKind::Broadcast || kind == CollectiveKind::SendReceive) return full;
  return full * (n - 1) / n * (kind == CollectiveKind::AllReduce ? 2 : 1);
}

/// Inside a node. `nvls` says whether the switch adds.
double one_node_us(const HardwareProfile& profile, CollectiveKind kind, const GroupPlacement& group, Bytes bytes,
                   bool nvls) {
  const double full = static_cast<double>(bytes), traffic = traffic_of(kind, group, bytes);
  if (nvls) return law_us(kFloorUs, kRampUs, kKneeBytes, traffic, nvls_bus_gb_per_s(profile, group.ranks), full);
  const double bus = ring_bus_gb_per_s(profile, kind, group.ranks);
  if (kind == CollectiveKind::AllReduce) {
    const double steps = ring_steps(kind, group.ranks);
    return law_us(kRingFloorUs + steps * kRingStepUs, steps * kRingRampUs, kRingKneeBytes, traffic, bus, full);
  }
  // Floors of gathers: published fits on H100. Beyond 8 ranks of one node the ring gets longer.
  double floor_us = by_ranks(group.ranks, {8, 17, 30});
  if (group.ranks > 8) floor_us += (group.ranks - 8) * kRingNvlink[2];
  return law_us(floor_us, kRampUs / 2, kKneeBytes, traffic, bus, full);
}

/// All-reduce over nodes: rings or trees whose edge is what the rails of a node carry together.
double all_reduce_over_nodes_us(const HardwareProfile& profile, const NcclTopology& topology,
                                const GroupPlacement& group, Bytes bytes) {
  const double doublings = std::log2(group.nodes);
  const double rails = topology.channels * topology.inter_gb_per_s;
  const double bus = std::min(rails, group.ranks_per_node() > 1
                                         ? ring_bus_gb_per_s(profile, CollectiveKind::AllReduce, group.ranks_per_node())
                                         : rails);
  return law_us(kFloorUs * (1 + kFloorPerDoubling * doublings), kRampUs * (1 + kRampPerDoubling * doublings),
                kKneeBytes * (1 + doublings), traffic_of(CollectiveKind::AllReduce, group, bytes), bus,
                static_cast<double>(bytes));
}

/// Section 6: of NCCL's own estimate over full nodes, the share that is reached, by bytes per GPU.
double reached_over_nodes(double bytes_per_gpu) {
  constexpr std::array<double, 3> kShares{0.68, 0.79, 0.87};  // up to 8 MiB, at 16 MiB, from 32 MiB
  const double at = std::log2(std::max(bytes_per_gpu, 1.0) / (8.0 * 1024 * 1024));
  if (at <= 0) return kShares[0];
  if (at >= 2) return kShares[2];
  const auto left = static_cast<std::size_t>(at);
  return kShares[left] + (at - static_cast<double>(left)) * (kShares[left + 1] - kShares[left]);
}

/// Gathers over nodes: NCCL's choice and its estimate, corrected by what is reached. Groups with few ranks on each node
/// reach it (specification of 2026's runtime: 1.4 to 6.4 % over 16 and 32 nodes); what is missing on full nodes is
/// missing where the ports of a node carry as much as its own rings do.
double several_nodes_us(const HardwareProfile& profile, const NcclTopology& topology, CollectiveKind kind,
                        const GroupPlacement& group, Bytes bytes) {
  constexpr double kFree = 0.6;  // of the rings, what the network may carry beside
  const CollectiveChoice choice = nccl_choice(topology, kind, group, bytes);
  const int per_node = group.ranks_per_node();
  double pressed = 0;
  if (per_node > 1) {
    const double network = network_gb_per_s(profile, per_node, std::max(group.job_ranks, per_node));
    pressed = std::clamp((network / ring_bus_gb_per_s(profile, kind, per_node) - kFree) / (1 - kFree), 0.0, 1.0);
  }
  const double reached = reached_over_nodes(static_cast<double>(bytes) / std::max(group.ranks, 1));
  return choice.time_us / (1 - pressed * (1 - reached));
}

}  // namespace

std::string_view algorithm_name(CollectiveAlgorithm algorithm) {
  constexpr std::array<std::string_view, 4> kNames{"ring", "tree", "nvls", "nvls_tree"};
  return kNames[static_cast<std::size_t>(algorithm)];
}

std::string_view protocol_name(CollectiveProtocol protocol) {
  constexpr std::array<std::string_view, 3> kNames{"ll", "ll128", "simple"};
  return kNames[static_cast<std::size_t>(protocol)];
}

GroupPlacement place_group(const std::vector<std::int32_t>& ranks, std::int64_t ranks_per_node) {
  const std::int64_t per_node = std::max<std::int64_t>(ranks_per_node, 1);
  std::size_t count = 0;
  if (std::is_sorted(ranks.begin(), ranks.end())) {  // as groups are made; thousands of ranks need no set
    std::int64_t last = -1;
    for (const std::int32_t rank : ranks) {
      count += rank / per_node != last ? 1 : 0;
      last = rank / per_node;
    }
  } else {
    std::set<std::int64_t> nodes;
    for (const std::int32_t rank : ranks) nodes.insert(rank / per_node);
    count = nodes.size();
  }
  return {static_cast<int>(std::max<std::size_t>(ranks.size(), 1)), static_cast<int>(std::max<std::size_t>(count, 1)),
          static_cast<int>(std::min<std::int64_t>(per_node, std::numeric_limits<int>::max()))};
}

namespace {

/// Over nodes the search finds a channel for each port at its speed; a fast one is doubled at half of it (5.1).
int channels_over_nodes(const HardwareProfile& profile, NcclRow row, int per_node, double network) {
  const int ports = std::max(1, std::min(per_node, profile.rails));
  const double speed = network / ports;
  const bool early = row == NcclRow::Volta || row == NcclRow::Ampere;
  return speed >= 25 && (early || speed >= 50 || ports <= 4) ? 2 * ports : ports;
}

}  // namespace

NcclTopology topology_of(const HardwareProfile& profile, const GroupPlacement& group) {
  constexpr double kUsableNetwork = 0.96;  // 48 of 50 GB/s a NDR port; the bus that reproduces 5.6
  NcclTopology topology;
  topology.row = nccl_row(profile.architecture);
  topology.amd_host = profile.host_cpu == "amd";
  topology.nvls = profile.switch_sum_share > 0;
  topology.channels = std::max(profile.channels, 1);
  double total = topology.channels * profile.channel_gb_per_s;
  const auto links = share_of_rings(profile, group.ranks_per_node());
  total = links && *links == 0 ? std::min(total, profile.host_link_gb_per_s) : total * links.value_or(1);
  const double network = kUsableNetwork * network_gb_per_s(profile, group.ranks_per_node(),
                                                           std::max(group.job_ranks, group.ranks_per_node()));
  if (group.nodes > 1) topology.channels = channels_over_nodes(profile, topology.row, group.ranks_per_node(), network);
  if (const auto most = profile.extra.find(kMaxCtas); most != profile.extra.end())
    topology.channels = std::min(topology.channels, static_cast<int>(most->second));
  topology.intra_gb_per_s = total / topology.channels;
  topology.inter_gb_per_s = std::min(network, profile.channels * profile.channel_gb_per_s) / topology.channels;
  if (group.nodes > 1) topology.intra_gb_per_s = std::min(topology.intra_gb_per_s, network / topology.channels);
  return topology;
}

CollectiveChoice nccl_candidate(const NcclTopology& topology, CollectiveKind kind, const GroupPlacement& group,
                                CollectiveAlgorithm algorithm, CollectiveProtocol protocol) {
  CollectiveChoice choice{algorithm, protocol};
  if (group.ranks < 2) return choice;
  const bool reduce = kind == CollectiveKind::AllReduce;
  const auto at = static_cast<std::size_t>(std::min(group.nodes, 3) - 1);
  const Caps& caps = caps_of(topology.row);
  const double steps = ring_steps(kind, group.ranks);
  const double bus = topology.channels * (group.nodes <= 2 ? topology.intra_gb_per_s : topology.inter_gb_per_s);
  // Trap of 5.1: over several nodes the LL cap is that of the host, not of the GPU.
  const double ll_cap = group.nodes > 1 ? (topology.amd_host ? kAmpere : kVolta).ll[at] : caps.ll[at];

  if (algorithm == CollectiveAlgorithm::Ring) {
    choice.latency_us = ring_latency(topology, kind, group, protocol);
    double rate = bus;
    if (protocol == CollectiveProtocol::LL) rate = std::min(ll_cap, bus / 2);
    if (protocol == CollectiveProtocol::LL128) rate = std::min(0.92 * bus, topology.channels * caps.ring_ll128[at]);
    choice.gb_per_s = rate * group.ranks / steps;
    return choice;
  }
  if (!reduce)
    return choice;  // tree exists for all-reduce only; NVLS gathers need a network plugin and run Ring in practice
  if (algorithm == CollectiveAlgorithm::Tree) {
    choice.latency_us = tree_latency(topology, group, protocol);
    double rate = std::min(0.92 * bus, topology.channels * caps.tree_simple[at]);
    if (protocol == CollectiveProtocol::LL) rate = std::min(rate / 3.8, ll_cap);
    if (protocol == CollectiveProtocol::LL128) {
      rate = std::min(rate * (group.nodes == 1 ? 7.0 / 9.0 : 120.0 / 128.0), topology.channels * caps.tree_ll128[at]);
    }
    choice.gb_per_s = rate * 0.85 * 0.5;
    return choice;
  }
  // NVLS and NVLS-tree: Simple only, Hopper and later, at least two channels.
  if (protocol != CollectiveProtocol::Simple || caps.nvls_efficiency == 0 || !topology.nvls || topology.channels < 2) {
    return choice;
  }
  const bool tree = algorithm == CollectiveAlgorithm::NvlsTree;
  if (tree != (group.nodes > 1)) return choice;
  double speed = topology.intra_gb_per_s * caps.nvls_efficiency * (topology.channels - 1) / topology.channels * 2;
  choice.latency_us = kNvlsNvlink + (tree ? 2 * std::log2(group.nodes) * kNvlsTreeNetwork : 0);
  if (tree) {
    speed = std::min({speed, topology.inter_gb_per_s * (group.nodes == 2 ? 2 : 1), caps.nvls_tree[at]});
  }
  choice.gb_per_s = topology.channels * speed * group.ranks / steps;
  return choice;
}

CollectiveChoice nccl_choice(const NcclTopology& topology, CollectiveKind kind, const GroupPlacement& group,
                             Bytes bytes) {
  CollectiveChoice best;
  for (const CollectiveAlgorithm algorithm : {CollectiveAlgorithm::Ring, CollectiveAlgorithm::Tree,
                                              CollectiveAlgorithm::Nvls, CollectiveAlgorithm::NvlsTree}) {
    for (const CollectiveProtocol protocol :
         {CollectiveProtocol::LL, CollectiveProtocol::LL128, CollectiveProtocol::Simple}) {
      CollectiveChoice choice = nccl_candidate(topology, kind, group, algorithm, protocol);
      if (choice.gb_per_s <= 0) continue;
      // 5.5: over proxied NICs LL128 is on from Hopper on.
      const bool early = topology.row == NcclRow::Volta || topology.row == NcclRow::Ampere;
      if (protocol == CollectiveProtocol::LL128 && group.nodes > 1 && early) continue;
      double bandwidth = choice.gb_per_s, latency = choice.latency_us;
      if (algorithm == CollectiveAlgorithm::Tree) {  // 5.4
        const double log = std::log2(std::max(static_cast<double>(bytes), 64.0) / 64.0);
        if (log < 23) bandwidth *= kTreeCorrection[static_cast<std::size_t>(protocol)][static_cast<std::size_t>(log)];
      }
      const bool ring_simple = algorithm == CollectiveAlgorithm::Ring && protocol == CollectiveProtocol::Simple;
      if (ring_simple && kind == CollectiveKind::AllReduce && group.nodes > 1 &&
          bytes >= 64LL * topology.channels * group.ranks) {
        latency *= topology.row == NcclRow::Volta ? 1.9 : 1.4;
      }
      choice.time_us = latency + static_cast<double>(bytes) / (bandwidth * 1e3);
      if (best.gb_per_s <= 0 || choice.time_us < best.time_us) best = choice;
    }
  }
  return best;
}

namespace {

/// 90 % of the published times lie within this factor, each machine predicted by constants fitted without it.
double interval_factor(Bytes bytes) {
  if (bytes < 16 * kMiB) return 1.45;
  if (bytes < 64 * kMiB) return 1.30;
  return bytes < 512 * kMiB ? 1.22 : 1.12;
}

bool runs_nvls(const HardwareProfile& profile, CollectiveKind kind, const GroupPlacement& group) {
  return kind == CollectiveKind::AllReduce && group.nodes == 1 &&
         nvls_bus_gb_per_s(profile, group.ranks) > ring_bus_gb_per_s(profile, kind, group.ranks);
}

double choice_us(const HardwareProfile& profile, CollectiveKind kind, const GroupPlacement& group, Bytes bytes,
                 bool nvls) {
  if (has_plain_links(profile)) return plain_us(profile, kind, group, bytes);
  if (group.ranks < 2)
    return 8.4 + static_cast<double>(bytes) / (profile.hbm_gb_per_s * profile.hbm_share * 1e3);  // NCCL copies
  if (kind == CollectiveKind::AllToAll) return all_to_all_us(profile, group, bytes);
  if (kind == CollectiveKind::SendReceive) return send_receive_us(profile, group, bytes);
  if (group.nodes == 1) return one_node_us(profile, kind, group, bytes, nvls);
  const NcclTopology topology = topology_of(profile, group);
  if (kind == CollectiveKind::AllReduce) return all_reduce_over_nodes_us(profile, topology, group, bytes);
  return several_nodes_us(profile, topology, kind, group, bytes);
}

/// By a curve of this kind between as many ranks: in between by power laws, beyond its ends by the last two points.
std::optional<SimDuration> measured_time(const HardwareProfile& profile, CollectiveKind kind,
                                         const GroupPlacement& group, Bytes bytes) {
  // As many bytes leave a rank in an all-to-all as in a gather, and in a message that is so much shorter.
  constexpr std::array<std::string_view, 6> kKinds{"all_gather", "reduce_scatter", "all_reduce",
                                                   "broadcast",  "all_gather",     "all_gather"};
  if (kind == CollectiveKind::SendReceive && group.ranks > 1) bytes = bytes * group.ranks / (group.ranks - 1);
  for (const MeasuredCollective& curve : profile.collectives) {
    if (curve.kind != kKinds[static_cast<std::size_t>(kind)] || curve.ranks != group.ranks || group.nodes != 1)
      continue;
    if (bytes <= curve.bytes.front() || curve.bytes.size() < 2) return curve.ns.front();
    const auto above = std::upper_bound(curve.bytes.begin(), curve.bytes.end() - 1, bytes) - curve.bytes.begin();
    const auto high = static_cast<std::size_t>(above), low = high - 1;
    const double step = std::log(static_cast<double>(bytes) / static_cast<double>(curve.bytes[low])) /
                        std::log(static_cast<double>(curve.bytes[high]) / static_cast<double>(curve.bytes[low]));
    const double from = std::log(static_cast<double>(std::max<SimDuration>(curve.ns[low], 1)));
    const double to = std::log(static_cast<double>(std::max<SimDuration>(curve.ns[high], 1)));
    return static_cast<SimDuration>(std::exp(from + step * (to - from)));
  }
  return std::nullopt;
}

}  // namespace

CollectiveEstimate estimate_collective(const HardwareProfile& profile, CollectiveKind kind, const GroupPlacement& group,
                                       Bytes bytes, std::optional<CollectiveAlgorithm> forced) {
  CollectiveEstimate estimate;
  bool nvls = runs_nvls(profile, kind, group);
  estimate.choice = nccl_choice(topology_of(profile, group), kind, group, bytes);
  if (forced) {
    estimate.choice = nccl_candidate(topology_of(profile, group), kind, group, *forced, CollectiveProtocol::Simple);
    if (estimate.choice.gb_per_s <= 0) return estimate;
    nvls = *forced == CollectiveAlgorithm::Nvls;
  }
  estimate.us = choice_us(profile, kind, group, bytes, nvls);
  estimate.low_us = estimate.us / interval_factor(bytes);
  estimate.high_us = estimate.us * interval_factor(bytes);
  return estimate;
}

SimDuration collective_time(const HardwareProfile& profile, CollectiveKind kind, const GroupPlacement& group,
                            Bytes bytes) {
  if (const auto measured = measured_time(profile, kind, group, bytes)) return *measured;
  return static_cast<SimDuration>(choice_us(profile, kind, group, bytes, runs_nvls(profile, kind, group)) * 1e3);
}

HardwareProfile with_max_ctas(HardwareProfile profile, std::int64_t ctas) {
  if (ctas <= 0 || profile.kind != "gpu" || profile.channels <= 0) return profile;
  const double total = profile.channels * profile.channel_gb_per_s;
  const double of_one = caps_of(nccl_row(profile.architecture)).ring_ll128[0];
  profile.channels = static_cast<int>(std::min<std::int64_t>(profile.channels, ctas));
  profile.channel_gb_per_s = std::min(total / profile.channels, std::max(of_one, profile.channel_gb_per_s));
  profile.extra[kMaxCtas] = static_cast<double>(ctas);
  // Sums in a switch and what was measured lose what the links lose.
  const double left = profile.channels * profile.channel_gb_per_s / total;
  profile.switch_sum_share *= left;
  for (MeasuredCollective& curve : profile.collectives)
    for (SimDuration& ns : curve.ns) ns = std::llround(static_cast<double>(ns) / left);
  return profile;
}

bool copies_over_switch(const HardwareProfile& profile, const GroupPlacement& group) {
  return profile.kind == "gpu" && profile.fabric == Fabric::Switch && group.nodes == 1 && group.ranks > 1;
}

SimDuration saved_by_symmetric_memory(const HardwareProfile& profile, CollectiveKind kind, const GroupPlacement& group,
                                      Bytes bytes) {
  constexpr double kSavedNs = 24e3, kKnee = 3.0 * 1024 * 1024;
  const bool shards = kind == CollectiveKind::AllGather || kind == CollectiveKind::ReduceScatter;
  if (!shards || !copies_over_switch(profile, group)) return 0;
  const auto full = static_cast<double>(bytes);
  return static_cast<SimDuration>(kSavedNs * full / (full + kKnee));
}

Bytes communicator_bytes(const HardwareProfile& profile, const GroupPlacement& group) {
  if (const auto stated = stated_communicator_bytes(profile)) return *stated;
  if (group.ranks < 2 || profile.kind == "cpu") return 0;
  const double per_channel = 4 + 0.5 + 4.7;  // MiB: Simple, LL, LL128 FIFOs
  return static_cast<Bytes>(profile.channels * per_channel * 2 * static_cast<double>(kMiB));
}

}  // namespace foreshard
