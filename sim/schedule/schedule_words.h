// A found schedule for people: every unit with everything written out and why, and one sentence. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "sim/schedule/schedule_search.h"

namespace foreshard {

/// Units with parameters, in the order in which they run. `left` are bytes of the budget that nothing uses.
std::vector<ScheduledUnit> scheduled_units(const UnitFrame& frame, const Candidate& candidate, const Model& model,
                                           const HardwareProfile& profile, Bytes left);

std::string schedule_sentence(const FoundSchedule& found);

/// Empty where nothing is shorter than what was found.
std::string advice_of(const FoundSchedule& found);
/// What shards along another dimension would do; empty where that is nothing.
std::string shard_advice_of(const FoundSchedule& found);
/// What a little more memory would do; empty where the card is not full.
std::string room_advice_of(const FoundSchedule& found);

/// "12.5 GiB".
std::string bytes_in_words(Bytes bytes);
/// The same, never less than it is: what it says is enough.
std::string least_in_words(Bytes bytes);

}  // namespace foreshard
