#include "core/plan/checks/collectives_in_turn.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/dtype.h"
#include "core/plan/checks/check_parts.h"
#include "core/plan/form/plan_writer.h"

namespace foreshard {
namespace {

/// A collective of one rank's plan.
struct Issued {
  const Instruction* instruction = nullptr;
  std::int64_t id = 0;
};

using Issue = std::vector<Issued>;  // in issue order

std::vector<Issue> by_communicator(const Plan& plan) {
  std::vector<Issue> issued(plan.communicators.size());
  std::int64_t id = 0;
  for (const PlanIteration& iteration : plan.iterations) {
    for (const Instruction& i : iteration.instructions) {
      if (is_collective(i.kind) && i.communicator.valid()) issued[i.communicator.index()].push_back({&i, id});
      ++id;
    }
  }
  return issued;
}

bool same(const Instruction& a, const Instruction& b) {
  return a.kind == b.kind && a.numel == b.numel && a.dtype == b.dtype && a.reduce_op == b.reduce_op;
}

std::string described(const Plan& plan, const Issue& issue, std::size_t k) {
  if (k >= issue.size()) return fmt::format("rank {}: no more than {} of them", plan.rank, issue.size());
  const Instruction& i = *issue[k].instruction;
  return fmt::format("rank {}: {}, {} {} elements", plan.rank, detail::show(plan, issue[k].id, i), i.numel,
                     dtype_name(i.dtype));
}

Error error_about(const PlanCommunicator& communicator, std::string message, std::string expected, std::string got) {
  return {.code = ErrorCode::Inconsistent,
          .message = std::move(message),
          .file = {},
          .place = "communicator " + communicator.name,
          .expected = std::move(expected),
          .got = std::move(got),
          .hint = {}};
}

}  // namespace

std::optional<Error> collectives_differ(std::span<const Plan* const> plans) {
  struct First {
    const Plan* plan = nullptr;
    Issue issue;
  };
  std::map<std::pair<std::string, std::vector<std::int32_t>>, First> first;
  for (const Plan* plan : plans) {
    std::vector<Issue> issued = by_communicator(*plan);
    for (std::size_t c = 0; c < issued.size(); ++c) {
      const PlanCommunicator& communicator = plan->communicators[c];
      const auto [at, fresh] = first.try_emplace({communicator.name, communicator.ranks}, First{plan, {}});
      if (fresh) {
        at->second.issue = std::move(issued[c]);
        continue;
      }
      const Issue &theirs = at->second.issue, &own = issued[c];
      for (std::size_t k = 0; k < std::max(theirs.size(), own.size()); ++k) {
        if (k < theirs.size() && k < own.size() && same(*theirs[k].instruction, *own[k].instruction)) continue;
        return error_about(communicator, fmt::format("ranks disagree about collective {}", k),
                           described(*at->second.plan, theirs, k), described(*plan, own, k));
      }
    }
  }
  return std::nullopt;
}

std::optional<Error> collectives_overlap(const Plan& plan, const Timeline& timeline) {
  std::vector<const Instruction*> by_id;
  for (const PlanIteration& iteration : plan.iterations) {
    for (const Instruction& i : iteration.instructions) by_id.push_back(&i);
  }
  // A repeated steady iteration goes on numbering.
  const std::size_t steady = plan.iterations.empty() ? 0 : plan.iterations.back().instructions.size();
  const auto instruction_of = [&](InstructionId id) -> const Instruction* {
    if (!id.valid() || (id.index() >= by_id.size() && steady == 0)) return nullptr;
    const std::size_t all = by_id.size();
    return by_id[id.index() < all ? id.index() : all - steady + (id.index() - all) % steady];
  };
  std::vector<std::vector<const Span*>> runs(plan.communicators.size());
  for (const Span& span : timeline.spans) {
    const Lane& lane = timeline.lanes[span.lane.index()];
    const Instruction* instruction = instruction_of(span.instruction);
    if (lane.rank != plan.rank || lane.stream == "host" || instruction == nullptr) continue;
    if (is_collective(instruction->kind) && instruction->communicator.valid()) {
      runs[instruction->communicator.index()].push_back(&span);
    }
  }
  for (std::size_t c = 0; c < runs.size(); ++c) {
    std::sort(runs[c].begin(), runs[c].end(), [](const Span* a, const Span* b) {
      return std::pair(a->start, a->instruction) < std::pair(b->start, b->instruction);
    });
    for (std::size_t k = 1; k < runs[c].size(); ++k) {
      const Span &before = *runs[c][k - 1], &next = *runs[c][k];
      if (next.instruction < before.instruction) {
        return error_about(plan.communicators[c], "collectives of one communicator left the order of issue (R4)",
                           fmt::format("instruction {} first", next.instruction.value),
                           fmt::format("{} before it", before.instruction.value));
      }
      if (next.start >= before.start + before.duration) continue;
      return error_about(plan.communicators[c], "two collectives of one communicator overlap (R4)",
                         fmt::format("instruction {} until {} ns, then {}", before.instruction.value,
                                     before.start + before.duration, next.instruction.value),
                         fmt::format("{} at {} ns", next.instruction.value, next.start));
    }
  }
  return std::nullopt;
}

}  // namespace foreshard
