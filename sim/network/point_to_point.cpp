#include "sim/network/point_to_point.h"

#include <algorithm>

#include "sim/network/links.h"

namespace foreshard {
namespace {

constexpr double kUsableNetwork = 0.96;  // as rings have it

// Published all-to-all of H100 (specification, section 6): 380 of 450 GB/s by copy engines, after 50 us; of B200 0.597
// of its links. Where multiprocessors send, short steps reach 0.7 of what a ring does.
constexpr double kHopperShare = 380.0 / 450, kBlackwellShare = 0.597, kSentByKernel = 0.7;
constexpr double kCopyEngineUs = 50, kLaunchUs = 12, kNetworkUs = 14;
constexpr double kPostUs = 0.55;  // a peer's send and receive
// A port is busy only while messages are long (the published ramp over two nodes), and while it has several to send to
// (0.78, 0.89 and 0.95 of it over 2, 4 and 8 nodes).
constexpr double kMessageKnee = 12.0 * 1024, kFewPeers = 0.44;

double ring_total(const HardwareProfile& profile) {
  return profile.channels * profile.channel_gb_per_s * profile.ring_share;
}

bool has_copy_engines(const HardwareProfile& profile) {
  const NcclRow row = nccl_row(profile.architecture);
  return profile.fabric == Fabric::Switch && row != NcclRow::Volta && row != NcclRow::Ampere;
}

}  // namespace

double exchange_gb_per_s(const HardwareProfile& profile, int ranks_per_node) {
  if (has_copy_engines(profile)) {
    const bool blackwell = nccl_row(profile.architecture) == NcclRow::Blackwell;
    return profile.scale_up_gb_per_s * (blackwell ? kBlackwellShare : kHopperShare);
  }
  // Every pair has a link of its own, and all of them are used.
  if (profile.fabric == Fabric::Mesh) {
    return ring_total(profile) * std::min(1.0, (ranks_per_node - 1.0) / std::max(profile.cards - 1, 1));
  }
  const double links = share_of_rings(profile, ranks_per_node).value_or(1);
  return kSentByKernel *
         (links > 0 ? ring_total(profile) * links : std::min(ring_total(profile), profile.host_link_gb_per_s));
}

double all_to_all_us(const HardwareProfile& profile, const GroupPlacement& group, Bytes bytes) {
  const int n = group.ranks, p = group.ranks_per_node();
  const double part = static_cast<double>(bytes) / n;
  const double away = part * (n - p);
  double beside = part * (p - 1);
  if (group.nodes > 1 && profile.fabric == Fabric::Switch && profile.rails > 1) beside += away * (p - 1) / p;  // PXN
  double us = p > 1 ? beside / (exchange_gb_per_s(profile, p) * 1e3) : 0;
  const double floor = has_copy_engines(profile) && group.nodes == 1 ? kCopyEngineUs : kLaunchUs;
  if (group.nodes > 1) {
    const double port = kUsableNetwork * network_gb_per_s(profile, p, std::max(group.job_ranks, p)) / p;
    const double reached = 1 - kFewPeers / group.nodes;
    us = std::max(us, (away + kMessageKnee * (n - p)) / (port * reached * 1e3)) + kNetworkUs;
  }
  return floor + kPostUs * (n - 1) + us;
}

double send_receive_us(const HardwareProfile& profile, const GroupPlacement& group, Bytes bytes) {
  double rate = ring_total(profile);
  if (profile.fabric != Fabric::Switch && profile.fabric != Fabric::Host) {
    const double links = share_of_rings(profile, 2).value_or(1);  // of one pair
    rate = links > 0 && (profile.fabric != Fabric::Pairs || group.ranks_per_node() <= 2)
               ? rate * links
               : std::min(rate, profile.host_link_gb_per_s);
  }
  double us = kLaunchUs;
  if (group.nodes > 1) {  // one rank of a node sends over its border
    rate = std::min(rate, kUsableNetwork * network_gb_per_s(profile, 1, std::max(group.job_ranks, 1)));
    us += kNetworkUs;
  }
  return us + static_cast<double>(bytes) / (rate * 1e3);
}

}  // namespace foreshard
