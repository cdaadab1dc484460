// R4 between ranks and on a timeline: what one plan cannot decide about its communicators.
#pragma once

#include <optional>
#include <span>

#include "core/plan.h"
#include "core/result.h"
#include "core/timeline.h"

namespace foreshard {

/// The ranks of every communicator issue the same collectives on it (kind, elements, dtype, operation) in the same
/// order, all iterations after each other. The first difference, with both ranks and instructions. Communicators are
/// the same where name and ranks are; ranks that are not among `plans` are not asked.
std::optional<Error> collectives_differ(std::span<const Plan* const> plans);

/// On the plan's rank, collectives of one communicator run one after the other, in issue order.
/// The first pair that does not. Spans without an instruction of the plan are left out.
std::optional<Error> collectives_overlap(const Plan& plan, const Timeline& timeline);

}  // namespace foreshard
