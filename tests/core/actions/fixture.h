// Small models and jobs for the plans of wrapping, unshard_params, saving and loading, and ways to look at such a plan.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/plan/actions/build_actions.h"
#include "core/plan/actions/state_dict.h"

namespace foreshard::actions_test {

using Json = nlohmann::ordered_json;

struct Subject {
  Model model;
  Job job;
};

/// embed (20 elements), B0, B1, B2 (100 each), head (20); the blocks are units. FULL_SHARD on 4 ranks.
Subject chain();
/// Two layers of one unit: 3 x 5 and 5 x 3, on `world_size` ranks.
Subject uneven(std::int64_t world_size);
/// What one row of the fsdp1 recordings describes.
Subject of_row(const Json& row, std::int64_t rank);
std::vector<Json> recorded_rows();

UnitTable units_of(const Subject& subject);
/// Throws what could not be planned.
Plan plan_of(const Subject& subject, const std::string& actions);
/// The message of the error that planning ends in; empty if it does not.
std::string error_of(const Subject& subject, const std::string& actions);

int count(const PlanIteration& iteration, InstructionKind kind);
/// "+flat:B0 400", "-shard:B0", "all_gather full:B0 400": the buffers and collectives of an iteration, one string each;
/// the host's are in brackets.
std::vector<std::string> events(const Plan& plan, std::size_t iteration);
/// Those of events() that name `unit` as the instruction's or the buffer's unit.
std::vector<std::string> events_of(const Plan& plan, std::size_t iteration, const std::string& unit);

}  // namespace foreshard::actions_test
