#include "cli/exec_program/devices/emulated_peers.h"

#include <algorithm>

#include "sim/network/collectives.h"

namespace foreshard::cli {
namespace {

CollectiveKind kind_of(InstructionKind kind) {
  switch (kind) {
    case InstructionKind::ReduceScatter: return CollectiveKind::ReduceScatter;
    case InstructionKind::AllReduce: return CollectiveKind::AllReduce;
    case InstructionKind::Broadcast: return CollectiveKind::Broadcast;
    default: return CollectiveKind::AllGather;
  }
}

}  // namespace

Result<EmulatedPeers> EmulatedPeers::of(const Job& job) {
  auto profile = load_profile(job.cluster.profile);
  if (!profile) return fail(profile.error());
  return EmulatedPeers(std::move(*profile), job.cluster.ranks_per_node);
}

exec::CollectiveDuration EmulatedPeers::duration(const std::vector<int>& ranks) const {
  const GroupPlacement group = place_group({ranks.begin(), ranks.end()}, ranks_per_node_);
  return [profile = profile_, group](InstructionKind kind, Bytes bytes) {
    return static_cast<std::int64_t>(collective_time(profile, kind_of(kind), group, bytes));
  };
}

int EmulatedPeers::channels(const std::vector<int>& ranks) const {
  return topology_of(profile_, place_group({ranks.begin(), ranks.end()}, ranks_per_node_)).channels;
}

int place_among(const std::vector<int>& ranks, int rank) {
  return static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
}

}  // namespace foreshard::cli
