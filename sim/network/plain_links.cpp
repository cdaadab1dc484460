#include "sim/network/plain_links.h"

namespace foreshard {
namespace {

bool is_virtual(const HardwareProfile& profile) { return profile.kind == "virtual"; }

double setting(const HardwareProfile& profile, const char* key, double otherwise) {
  const auto found = profile.extra.find(key);
  return found == profile.extra.end() ? otherwise : found->second;
}

}  // namespace

bool has_plain_links(const HardwareProfile& profile) {
  return is_virtual(profile) || profile.architecture.maker == CardArchitecture::Maker::None;
}

double plain_us(const HardwareProfile& profile, CollectiveKind kind, const GroupPlacement& group, Bytes bytes) {
  const double us = setting(profile, "nccl_latency_ns", 20e3) / 1e3;
  if (group.ranks < 2) return us;
  const bool across = is_virtual(profile) ? group.ranks > setting(profile, "cards_per_node", 8) : group.nodes > 1;
  const double bandwidth = across ? profile.scale_out_gb_per_s : profile.scale_up_gb_per_s;
  const double traffic = kind == CollectiveKind::AllReduce ? 2.0 : 1.0;
  // A message passes whole, of the others a rank's own part stays.
  const double passed = kind == CollectiveKind::SendReceive ? 1.0 : static_cast<double>(group.ranks - 1) / group.ranks;
  return us + traffic * static_cast<double>(bytes) * passed / (bandwidth * 1e3);
}

std::optional<SimDuration> one_after_the_other(const HardwareProfile& profile, const GroupPlacement& group,
                                               Bytes bytes) {
  if (!is_virtual(profile)) return std::nullopt;
  const SimDuration none = collective_time(profile, CollectiveKind::AllGather, group, 0);
  return 2 * (group.ranks - 1) * none + 2 * collective_time(profile, CollectiveKind::AllGather, group, bytes);
}

std::optional<Bytes> stated_communicator_bytes(const HardwareProfile& profile) {
  if (!is_virtual(profile)) return std::nullopt;
  return static_cast<Bytes>(setting(profile, "nccl_comm_bytes", 0));
}

}  // namespace foreshard
