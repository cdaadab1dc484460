// The groups of ranks that a plan's collectives need, and the communicators that stand for them.
//
// A communicator belongs to one stream (exec/backend/backend.h), so a group whose collectives run on two streams has two.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "core/plan.h"
#include "core/result.h"
#include "exec/communicators/communicator.h"

namespace foreshard::exec {

struct PlanGroup {
  Stream stream = Stream::D;
  GroupKind group = GroupKind::Shard;
  std::vector<std::int32_t> ranks;  // of the world, in the order of the group; the plan's own rank among them
  bool operator==(const PlanGroup&) const = default;
};

/// Every group of more than one rank that an iteration of the plan meets in, in order of first use: equal on all ranks
/// but for the members, so that ranks that connect them one after another agree.
std::vector<PlanGroup> groups_of(const Plan& plan);

/// One rank's communicators. Several of one stream and kind differ in size (fsdp2's partial reshard).
class Communicators {
 public:
  Communicators() = default;
  /// Of shard groups only: enough without replicas.
  Communicators(const std::map<Stream, std::shared_ptr<Communicator>>& shard_groups);

  void add(Stream stream, GroupKind group, std::shared_ptr<Communicator> communicator);
  /// Empty if there is none.
  std::shared_ptr<Communicator> find(Stream stream, GroupKind group, int size) const;

 private:
  struct Entry {
    Stream stream;
    GroupKind group;
    std::shared_ptr<Communicator> communicator;
  };
  std::vector<Entry> entries_;
};

/// The first group of the plan that has no communicator, or one in which this rank stands elsewhere.
std::optional<Error> missing_communicator(const Plan& plan, const Communicators& communicators);

}  // namespace foreshard::exec
