// Small models and jobs for the fsdp1 tests: a chain of three blocks (100 elements each) between two layers of the root
// (20 + 20), written as the recordings write them, and the plan as event lists in the short form of the semantics
// page's section 19.
#pragma once

#include <string>
#include <vector>

#include "core/plan/build_plan.h"
#include "tests/oracle/oracle.h"

namespace foreshard::fsdp1_test {

using oracle::Json;

/// A job over one of the models below: options as in the recordings, and the actions of each iteration.
struct Scenario {
  Json model;
  std::vector<std::string> units = {"B0", "B1", "B2"};
  Json options = Json::object();
  std::vector<std::vector<std::string>> iterations = {{"zero", "fwd", "bwd", "step"}};
  std::int64_t world_size = 4;
  std::int64_t rank = 0;
  bool scaler = false;  // ShardedGradScaler
};

/// embed, B0 .. B(n-1), head; `op` is how blocks are called ("call", "ckpt_nr", "ckpt_r"), `frozen` names layers.
Json chain(int blocks, const std::string& op = "call", const std::vector<std::string>& frozen = {});
/// B0 is called twice; `dead` drops the result of the first call.
Json twice(bool dead);
/// Iterations of the usual loop.
std::vector<std::vector<std::string>> train(int iterations);

Plan plan_of(const Scenario& scenario);
/// The usual loop, repeated until the plan is steady.
Plan repeating_plan_of(const Scenario& scenario);

/// One string a line, "head | tokens", without notes, divisions and void waits.
std::vector<std::string> lines(const Scenario& scenario, const Plan& plan, std::size_t iteration);
/// Names of live units after each line, in the order of lines().
std::vector<std::string> live(const Scenario& scenario, const Plan& plan, std::size_t iteration);
/// Only the lines whose head starts with one of these words.
std::vector<std::string> only(const std::vector<std::string>& lines, const std::vector<std::string>& heads);

int count(const PlanIteration& iteration, InstructionKind kind);
/// Largest sum of elements of gathered buffers within the phases before, or from, the first backward.
Numel live_peak(const PlanIteration& iteration, bool in_backward);

}  // namespace foreshard::fsdp1_test
