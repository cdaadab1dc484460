#include "core/job.h"

#include <algorithm>
#include <array>

namespace foreshard {
namespace {

constexpr std::array<std::string_view, 5> kStrategyNames{"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD",
                                                         "_HYBRID_SHARD_ZERO2"};

}  // namespace

Job::Job() = default;
Job::Job(const Job&) = default;
Job::Job(Job&&) noexcept = default;
Job& Job::operator=(const Job&) = default;
Job& Job::operator=(Job&&) noexcept = default;
Job::~Job() = default;

std::string_view strategy_name(Strategy strategy) { return kStrategyNames[static_cast<std::size_t>(strategy)]; }

std::optional<Strategy> parse_strategy(std::string_view text) {
  for (std::size_t i = 0; i < kStrategyNames.size(); ++i) {
    if (text == kStrategyNames[i]) return static_cast<Strategy>(i);
  }
  return std::nullopt;
}

bool is_hybrid(Strategy strategy) {
  return strategy == Strategy::HybridShard || strategy == Strategy::HybridShardZero2;
}

std::string_view runtime_name(Runtime runtime) {
  switch (runtime) {
    case Runtime::Fsdp1: return "fsdp1";
    case Runtime::Fsdp2: return "fsdp2";
    case Runtime::None: return "none";
    case Runtime::Planned: return "planned";
  }
  return "none";
}

std::string_view backward_prefetch_name(BackwardPrefetch prefetch) {
  switch (prefetch) {
    case BackwardPrefetch::Pre: return "BACKWARD_PRE";
    case BackwardPrefetch::Post: return "BACKWARD_POST";
    case BackwardPrefetch::None: return "NONE";
  }
  return "NONE";
}

std::int64_t shard_ranks(const Job& job) {
  const std::int64_t data_ranks = job.cluster.world_size / job.mesh.tensor;
  if (!is_hybrid(job.fsdp.strategy)) return data_ranks;
  if (job.cluster.shard_group > 0) return job.cluster.shard_group;
  return std::min(std::max<std::int64_t>(job.cluster.ranks_per_node / job.mesh.tensor, 1), data_ranks);
}

bool gathers_float8(const Job& job) {
  const bool fsdp2 = job.fsdp.runtime == Runtime::Fsdp2 || job.fsdp.runtime == Runtime::Planned;
  if (job.model.float8 != "tensorwise" || job.fsdp.float8_all_gather == "none" || !fsdp2) return false;
  if (job.fsdp.float8_all_gather != "auto") return true;
  const auto partial = [](const std::optional<ReshardAfterForward>& reshard) {
    return reshard && reshard->kind == ReshardAfterForward::Kind::GroupSize;
  };
  const std::vector<UnitOverride>& overrides = job.fsdp.overrides;
  return !partial(job.fsdp.reshard_after_forward) &&
         std::none_of(overrides.begin(), overrides.end(),
                      [&](const UnitOverride& unit) { return partial(unit.reshard_after_forward); });
}

bool matches_pattern(std::string_view pattern, std::string_view text) {
  if (!pattern.empty() && pattern.back() != '*' && pattern.back() != '?' &&
      (text.empty() || text.back() != pattern.back()))
    return false;  // most names part here: those of blocks begin alike
  // Greedy matching with one remembered star: linear in practice, no recursion on user input.
  std::size_t p = 0, t = 0, star = std::string_view::npos, mark = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++, mark = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p, ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1, t = ++mark;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

}  // namespace foreshard
