// Collectives: which algorithm and protocol NCCL would choose (its own latency and bandwidth model, specification page
// "Hardware profiles and NCCL", section 5) and how long it takes (the fits of section 6). Pure functions.
//
// `bytes` is always the full buffer: gathered output, reduce-scatter input, reduced tensor. Bandwidths are algorithm
// bandwidths in 10^9 bytes per second, latencies microseconds; only collective_time speaks nanoseconds.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/units.h"
#include "sim/machine/profile.h"

namespace foreshard {

/// AllToAll and SendReceive: see point_to_point.h.
enum class CollectiveKind : std::uint8_t { AllGather, ReduceScatter, AllReduce, Broadcast, AllToAll, SendReceive };
enum class CollectiveAlgorithm : std::uint8_t { Ring, Tree, Nvls, NvlsTree };
enum class CollectiveProtocol : std::uint8_t { LL, LL128, Simple };
std::string_view algorithm_name(CollectiveAlgorithm algorithm);
std::string_view protocol_name(CollectiveProtocol protocol);

/// How a group lies over nodes.
struct GroupPlacement {
  int ranks = 1;
  int nodes = 1;
  int job_ranks = 0;  // of the whole job on each of the nodes; 0: those of the group
  int ranks_per_node() const { return nodes > 0 ? ranks / nodes : ranks; }
  bool operator==(const GroupPlacement&) const = default;
};
GroupPlacement place_group(const std::vector<std::int32_t>& ranks, std::int64_t ranks_per_node);

/// What NCCL's topology search hands to its model.
struct NcclTopology {
  NcclRow row = NcclRow::Hopper;
  bool amd_host = false;
  int channels = 8;
  double intra_gb_per_s = 48;  // one channel, inside a node
  double inter_gb_per_s = 48;  // one channel, between nodes
  double nic_latency_us = 0;
  bool nvls = true;  // a switch between the cards that adds, where the row has one
};
NcclTopology topology_of(const HardwareProfile& profile, const GroupPlacement& group);

struct CollectiveChoice {
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::Ring;
  CollectiveProtocol protocol = CollectiveProtocol::Simple;
  double latency_us = 0;
  double gb_per_s = 0;  // 0: this candidate does not exist
  double time_us = 0;   // NCCL's own estimate: ranks candidates, is no clock
};

/// One entry of the table that NCCL makes with a communicator (5.2, 5.3), before the corrections of a call.
CollectiveChoice nccl_candidate(const NcclTopology& topology, CollectiveKind kind, const GroupPlacement& group,
                                CollectiveAlgorithm algorithm, CollectiveProtocol protocol);
/// The candidate with the smallest time for this size (5.4).
CollectiveChoice nccl_choice(const NcclTopology& topology, CollectiveKind kind, const GroupPlacement& group,
                             Bytes bytes);

/// How long a collective takes, alone on the links, with the 90 % interval of the model.
struct CollectiveEstimate {
  CollectiveChoice choice;
  double us = 0, low_us = 0, high_us = 0;  // 0: the algorithm asked for does not exist there
};
/// With `forced` that algorithm, else NCCL's choice.
CollectiveEstimate estimate_collective(const HardwareProfile& profile, CollectiveKind kind, const GroupPlacement& group,
                                       Bytes bytes, std::optional<CollectiveAlgorithm> forced = std::nullopt);

/// The links of a machine whose collectives run in no more than so many thread blocks (0: as many as NCCL chooses),
/// each of which carries what NCCL's model lets one channel carry.
HardwareProfile with_max_ctas(HardwareProfile profile, std::int64_t ctas);

/// Whether collectives of shards over symmetric memory are copies by the cards' own engines: inside a node, behind a
/// switch.
bool copies_over_switch(const HardwareProfile& profile, const GroupPlacement& group);

/// What a collective is done sooner with its buffers in symmetric memory: there is no copying into NCCL's own buffers
/// and no handshake (published for 8 H100, 2 to 128 MiB: 8 to 24 us). 0 where copies_over_switch() does not hold.
SimDuration saved_by_symmetric_memory(const HardwareProfile& profile, CollectiveKind kind, const GroupPlacement& group,
                                      Bytes bytes);

/// Duration on the stream, alone on the links. Kind "virtual" has the virtual device's own formula.
SimDuration collective_time(const HardwareProfile& profile, CollectiveKind kind, const GroupPlacement& group,
                            Bytes bytes);

/// Upper estimate of what a ring communicator allocates outside PyTorch (5.5).
Bytes communicator_bytes(const HardwareProfile& profile, const GroupPlacement& group);

}  // namespace foreshard
