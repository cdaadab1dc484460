// Many ranks: those that cannot be told apart are one class and cost as one; the classes are simulated together and
// wait for each other in their collectives.
//
// What tells ranks apart: a slower or another device, the rows of fsdp2's shards that they hold (dimension 0 does not
// always divide), and which such ranks are in their groups. The flat shards of fsdp1 are equal.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/job.h"
#include "core/result.h"
#include "sim/simulate.h"

namespace foreshard {

/// Ranks first..last that differ from what the job says.
struct RankTrait {
  std::int64_t first = 0, last = 0;
  double slow = 1.0;    // compute takes this many times as long
  std::string profile;  // another kind of device; empty = the job's
  bool operator==(const RankTrait&) const = default;
};

struct RanksOptions {
  std::vector<RankTrait> traits;  // a later one of the same rank adds to an earlier
  double jitter = 0.0;            // see RankSpeed
  std::uint64_t seed = 0;
  int iterations = 0;  // 0 = those of the plan
};

/// "3=1.2", "8-15=1.3": ranks and how many times as long they take.
Result<RankTrait> parse_slow_ranks(const std::string& text);
/// "8-15=a100-sxm-80": ranks and their profile.
Result<RankTrait> parse_rank_profiles(const std::string& text);

/// Ranks that cannot be told apart.
struct RankClass {
  std::int64_t representative = 0;  // the first of them
  std::int64_t members = 0;
  double slow = 1.0;
  std::string profile;
  std::int64_t uneven = 0;  // which of the job's shard shapes; 0 = rank 0's
  bool operator==(const RankClass&) const = default;
};

struct RankClasses {
  std::vector<RankClass> classes;
  std::vector<std::uint16_t> class_of;  // by rank

  /// The classes that a class's representative meets in its own group of this communicator, in order.
  std::vector<std::size_t> peers(const PlanCommunicator& communicator, std::size_t of) const;
};

/// Errors: traits of ranks that do not exist, more than kMostRankClasses.
inline constexpr std::size_t kMostRankClasses = 256;
Result<RankClasses> rank_classes(const Job& job, const Model& model, const std::vector<RankTrait>& traits);

struct RanksPrediction {
  std::vector<RankClass> classes;
  std::vector<Prediction> predictions;  // by class
  std::size_t slowest = 0;              // the class that keeps the others waiting: the most compute
  Estimate step_time_ns;                // of all: they end together but for what follows the last collective
  bool fits = true;
};

Result<RanksPrediction> simulate_ranks(const Job& job, const RanksOptions& options);

}  // namespace foreshard
