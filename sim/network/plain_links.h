// Links of which a profile knows a latency and a rate alone: hosts, cards of unknown makers, and the virtual device
// (kind "virtual", shadow/device), whose clock the model of NCCL is not. Microseconds; bytes as in collectives.h.
#pragma once

#include <optional>

#include "core/units.h"
#include "sim/machine/profile.h"
#include "sim/network/collectives.h"

namespace foreshard {

bool has_plain_links(const HardwareProfile& profile);

/// The virtual device counts a group's ranks against the cards of a node and does not look where they are.
double plain_us(const HardwareProfile& profile, CollectiveKind kind, const GroupPlacement& group, Bytes bytes);

/// An all-to-all or an exchange of messages, in nanoseconds, where sends and receives do not run at once: on the
/// virtual device. Nothing where they do.
std::optional<SimDuration> one_after_the_other(const HardwareProfile& profile, const GroupPlacement& group,
                                               Bytes bytes);

/// What a communicator allocates outside PyTorch, where the device itself says it.
std::optional<Bytes> stated_communicator_bytes(const HardwareProfile& profile);

}  // namespace foreshard
