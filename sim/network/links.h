// The links between the cards of a node where there is no switch, the rings that a group finds on them, and the ports
// of a node to the network.
//
// Behind a switch a group of any size has the links of its cards whole. Without one a part of the cards has only the
// links between themselves: two cards of a full mesh of eight have one of their seven.
#pragma once

#include <optional>
#include <vector>

#include "sim/machine/profile.h"

namespace foreshard {

/// links[a][b]: how many links join the cards a and b, each as wide in either direction. Symmetric, 0 on the diagonal.
using LinkGraph = std::vector<std::vector<int>>;

/// The cube mesh of DGX-1 (V100): eight cards of six links each, as `nvidia-smi topo -m` shows them.
LinkGraph cube_mesh();

/// How many rings, each in its direction, go through all of the first `ranks` cards without sharing a link's direction.
int rings_through(const LinkGraph& links, int ranks);
/// The same where each card has so many links to each other one: a complete directed graph falls into n - 1 rings, of
/// four and of six cards into one less (Tillson 1980); two of them lie in rings without a rest.
int rings_of_full_mesh(int ranks, int links);

/// Of what the rings of a whole node carry, the share of a group of `ranks` of its cards, the first ones. 0: they reach
/// each other over the host alone. nullopt: the cards are behind a switch or on the host's links, and each has its own
/// whole.
std::optional<double> share_of_rings(const HardwareProfile& profile, int ranks);

/// What the network gives a group with `group_ranks` ranks on each node, in 10^9 bytes per second and direction, while
/// the other groups of the job's `job_ranks` ranks of that node are busy too: every rank its own port, or its part of
/// the ports, or, where there are fewer ranks than cards, no more than its link to the host.
double network_gb_per_s(const HardwareProfile& profile, int group_ranks, int job_ranks);

/// Whether somebody measured what it gives: the machine, or, as its source says ("measured ..."), that number alone.
bool is_network_measured(const HardwareProfile& profile);

}  // namespace foreshard
