// Point to point: the parts of an all-to-all, and a message to the next rank of a ring. No ring of NCCL carries them: a
// rank posts a send and a receive for every peer, and they run at once. Microseconds; bytes as in collectives.h.
#pragma once

#include "core/units.h"
#include "sim/machine/profile.h"
#include "sim/network/collectives.h"

namespace foreshard {

/// What the ranks of one node carry to each other, in 10^9 bytes per second and rank, when each has a part for all.
double exchange_gb_per_s(const HardwareProfile& profile, int ranks_per_node);

/// `bytes` is what a rank holds for all ranks together, its own part with it.
///
/// Over nodes the parts for the other nodes pass the network ports. With PXN a part for another rail goes to the card
/// beside that rail's port first, over the node's own links: the ports are all used alike, and the links carry more.
double all_to_all_us(const HardwareProfile& profile, const GroupPlacement& group, Bytes bytes);

/// `bytes` to the next rank while as many come from the one before. The slowest hop decides: over nodes it is the port.
double send_receive_us(const HardwareProfile& profile, const GroupPlacement& group, Bytes bytes);

}  // namespace foreshard
