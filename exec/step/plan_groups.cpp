#include "exec/step/plan_groups.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace foreshard::exec {
namespace {

bool is_collective(InstructionKind kind) {
  return kind == InstructionKind::AllGather || kind == InstructionKind::ReduceScatter ||
         kind == InstructionKind::AllReduce || kind == InstructionKind::Broadcast;
}

std::string_view group_name(GroupKind group) {
  switch (group) {
    case GroupKind::Shard: return "shard";
    case GroupKind::Replicate: return "replicate";
    case GroupKind::World: return "world";
  }
  return "";
}

/// The ranks that an instruction's collective meets. A smaller shard group is a run of neighbours in the whole one
/// (F2-13); plain data parallelism replicates over the world.
std::vector<std::int32_t> ranks_of(const Plan& plan, const Instruction& instruction) {
  const auto size = static_cast<std::size_t>(instruction.group_size);
  const std::vector<std::int32_t>& whole =
      instruction.group == GroupKind::Replicate ? plan.groups.replicate : plan.groups.shard;
  if (instruction.group != GroupKind::World && whole.size() == size) return whole;
  if (size == static_cast<std::size_t>(plan.world_size)) {
    std::vector<std::int32_t> world(size);
    for (std::size_t r = 0; r < size; ++r) world[r] = static_cast<std::int32_t>(r);
    return world;
  }
  const auto own = std::find(whole.begin(), whole.end(), plan.rank);
  const auto place = static_cast<std::size_t>(own - whole.begin());
  if (own == whole.end() || size == 0 || whole.size() % size != 0) return {};
  const auto first = whole.begin() + static_cast<std::ptrdiff_t>(place / size * size);
  return {first, first + static_cast<std::ptrdiff_t>(size)};
}

}  // namespace

std::vector<PlanGroup> groups_of(const Plan& plan) {
  std::vector<PlanGroup> groups;
  for (const PlanIteration& iteration : plan.iterations) {
    for (const Instruction& instruction : iteration.instructions) {
      if (!is_collective(instruction.kind) || instruction.group_size <= 1) continue;
      const auto known = std::find_if(groups.begin(), groups.end(), [&](const PlanGroup& group) {
        return group.stream == instruction.stream && group.group == instruction.group &&
               group.ranks.size() == static_cast<std::size_t>(instruction.group_size);
      });
      if (known == groups.end()) groups.push_back({instruction.stream, instruction.group, ranks_of(plan, instruction)});
    }
  }
  return groups;
}

Communicators::Communicators(const std::map<Stream, std::shared_ptr<Communicator>>& shard_groups) {
  for (const auto& [stream, communicator] : shard_groups) add(stream, GroupKind::Shard, communicator);
}

void Communicators::add(Stream stream, GroupKind group, std::shared_ptr<Communicator> communicator) {
  entries_.push_back({stream, group, std::move(communicator)});
}

std::shared_ptr<Communicator> Communicators::find(Stream stream, GroupKind group, int size) const {
  for (const Entry& entry : entries_) {
    if (entry.stream == stream && entry.group == group && entry.communicator->size() == size) return entry.communicator;
  }
  return nullptr;
}

std::optional<Error> missing_communicator(const Plan& plan, const Communicators& communicators) {
  for (const PlanGroup& group : groups_of(plan)) {
    const auto found = communicators.find(group.stream, group.group, static_cast<int>(group.ranks.size()));
    const auto own = std::find(group.ranks.begin(), group.ranks.end(), plan.rank) - group.ranks.begin();
    if (found != nullptr && found->rank() == own) continue;
    Error error;
    error.code = ErrorCode::Inconsistent;
    error.message = "a group of the plan has no communicator of its own";
    error.place = fmt::format("{} group on stream {}", group_name(group.group), stream_name(group.stream));
    error.expected = fmt::format("rank {} of {}", own, group.ranks.size());
    error.got = found == nullptr ? "none" : fmt::format("rank {}", found->rank());
    return error;
  }
  return std::nullopt;
}

}  // namespace foreshard::exec
