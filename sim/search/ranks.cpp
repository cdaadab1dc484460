#include "sim/search/ranks.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "core/plan/process_groups.h"
#include "core/plan/units/groups.h"
#include "core/runtime_layouts.h"
#include "sim/search/shared_parts.h"

namespace foreshard {
namespace {

Error bad_trait(const std::string& text, std::string expected) {
  return {.code = ErrorCode::Usage,
          .message = "this names no ranks",
          .file = {},
          .place = "ranks that differ",
          .expected = std::move(expected),
          .got = "\"" + text + "\"",
          .hint = "ranks are counted from 0"};
}

/// "3" or "8-15" before the '='; what follows it in `rest`.
bool read_ranks(const std::string& text, RankTrait& trait, std::string& rest) {
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos) return false;
  rest = text.substr(equals + 1);
  const char* end = text.data() + equals;
  const auto first = std::from_chars(text.data(), end, trait.first);
  if (first.ec != std::errc() || trait.first < 0) return false;
  trait.last = trait.first;
  if (first.ptr == end) return true;
  if (*first.ptr != '-') return false;
  const auto last = std::from_chars(first.ptr + 1, end, trait.last);
  return last.ec == std::errc() && last.ptr == end && trait.last >= trait.first;
}

/// Rows of dimension 0 that a rank of a shard group holds, as fsdp2 cuts them (F2-1): a number for each distinct answer
/// over all parameters.
std::vector<std::int64_t> shard_shapes(const Job& job, const Model& model, std::int64_t shard_size) {
  std::vector<std::int64_t> shape_of(static_cast<std::size_t>(shard_size), 0);
  if (!has_fsdp2_layouts(job.fsdp.runtime) || shard_size <= 1) return shape_of;
  std::set<std::int64_t> rows;
  for (const ParamInfo& param : model.params) {
    if (!param.shares.valid() && !param.shape.empty()) rows.insert(param.shape.front());
  }
  std::map<std::vector<std::int64_t>, std::int64_t> known;
  for (std::int64_t r = 0; r < shard_size; ++r) {
    std::vector<std::int64_t> held;
    for (const std::int64_t row : rows) {
      const std::int64_t chunk = ceil_div(row, shard_size);
      held.push_back(std::clamp<std::int64_t>(row - r * chunk, 0, chunk));
    }
    shape_of[static_cast<std::size_t>(r)] =
        known.emplace(std::move(held), static_cast<std::int64_t>(known.size())).first->second;
  }
  return shape_of;
}

/// Who shards and replicates with whom, and how many classes there are at most.
struct Groups {
  std::int64_t world = 1, shard = 1;
  std::int64_t shard_group(std::int64_t rank) const { return rank / shard; }
  std::int64_t replicate_group(std::int64_t rank) const { return rank % shard; }
};

using Colour = std::int64_t;

/// A colour for every group: the set of colours in it.
std::vector<Colour> group_colours(const std::vector<Colour>& colours, const std::vector<std::int64_t>& group_of,
                                  std::int64_t groups) {
  std::vector<std::set<Colour>> sets(static_cast<std::size_t>(groups));
  for (std::size_t r = 0; r < colours.size(); ++r) sets[static_cast<std::size_t>(group_of[r])].insert(colours[r]);
  std::map<std::set<Colour>, Colour> known;
  std::vector<Colour> of_group;
  for (std::set<Colour>& set : sets)
    of_group.push_back(known.emplace(std::move(set), static_cast<Colour>(known.size())).first->second);
  return of_group;
}

/// Splits colours until ranks of one colour meet the same colours in their groups.
void refine(std::vector<Colour>& colours, const Groups& groups) {
  const std::int64_t replicas = groups.world / groups.shard;
  std::vector<std::int64_t> shard(colours.size()), replicate(colours.size());
  for (std::size_t r = 0; r < colours.size(); ++r) {
    shard[r] = groups.shard_group(static_cast<std::int64_t>(r));
    replicate[r] = groups.replicate_group(static_cast<std::int64_t>(r));
  }
  for (std::size_t count = 0;;) {
    const std::vector<Colour> in_shard = group_colours(colours, shard, replicas);
    const std::vector<Colour> in_replicate = group_colours(colours, replicate, groups.shard);
    std::map<std::tuple<Colour, Colour, Colour>, Colour> known;
    for (std::size_t r = 0; r < colours.size(); ++r) {
      const std::tuple key{colours[r], in_shard[static_cast<std::size_t>(shard[r])],
                           in_replicate[static_cast<std::size_t>(replicate[r])]};
      colours[r] = known.emplace(key, static_cast<Colour>(known.size())).first->second;
    }
    if (known.size() == count) return;
    count = known.size();
  }
}

}  // namespace

Result<RankTrait> parse_slow_ranks(const std::string& text) {
  RankTrait trait;
  std::string rest;
  const bool ranks = read_ranks(text, trait, rest);
  const auto [end, ec] = std::from_chars(rest.data(), rest.data() + rest.size(), trait.slow);
  if (!ranks || ec != std::errc() || end != rest.data() + rest.size() || !(trait.slow >= 0.01 && trait.slow <= 1000))
    return fail(bad_trait(text, "RANK=FACTOR or FIRST-LAST=FACTOR, as in 3=1.2"));
  return trait;
}

Result<RankTrait> parse_rank_profiles(const std::string& text) {
  RankTrait trait;
  if (!read_ranks(text, trait, trait.profile) || trait.profile.empty())
    return fail(bad_trait(text, "RANK=PROFILE or FIRST-LAST=PROFILE, as in 8-15=a100-sxm-80"));
  return trait;
}

// One long function on purpose: each part needs the colours that the parts before have settled.
Result<RankClasses> rank_classes(const Job& job, const Model& model, const std::vector<RankTrait>& traits) {
  Groups groups;
  const auto of_job =
      rank_groups(job.cluster, is_hybrid(job.fsdp.strategy) && job.fsdp.runtime != Runtime::None, job.mesh.tensor);
  if (!of_job) return fail(of_job.error());
  groups.world = job.cluster.world_size;
  groups.shard = std::max<std::int64_t>(of_job->shard_size, 1);

  struct Kind {
    double slow = 1.0;
    std::string profile;
    std::int64_t uneven = 0;
    auto operator<=>(const Kind&) const = default;
  };
  const std::vector<std::int64_t> shapes = shard_shapes(job, model, groups.shard);
  std::vector<Kind> kinds(static_cast<std::size_t>(groups.world));
  for (std::size_t r = 0; r < kinds.size(); ++r) kinds[r].uneven = shapes[r % static_cast<std::size_t>(groups.shard)];
  for (const RankTrait& trait : traits) {
    if (trait.last >= groups.world) {
      return fail({.code = ErrorCode::OutOfRange,
                   .message = "there is no such rank",
                   .file = {},
                   .place = "cluster.world_size",
                   .expected = "0 to " + std::to_string(groups.world - 1),
                   .got = std::to_string(trait.last),
                   .hint = "ranks are counted from 0"});
    }
    for (std::int64_t r = trait.first; r <= trait.last; ++r) {
      Kind& kind = kinds[static_cast<std::size_t>(r)];
      kind.slow *= trait.slow;
      if (!trait.profile.empty()) kind.profile = trait.profile;
    }
  }
  std::map<Kind, Colour> known;
  std::vector<Colour> colours;
  for (const Kind& kind : kinds)
    colours.push_back(known.emplace(kind, static_cast<Colour>(known.size())).first->second);
  if (known.size() > 1) refine(colours, groups);

  RankClasses result;
  std::vector<RankClass>& classes = result.classes;
  for (std::size_t r = 0; r < colours.size(); ++r) {  // refined colours are numbered by their first rank
    const auto c = static_cast<std::size_t>(colours[r]);
    if (c >= classes.size()) classes.resize(c + 1);
    if (classes[c].members++ > 0) continue;
    classes[c].representative = static_cast<std::int64_t>(r);
    classes[c].slow = kinds[r].slow;
    classes[c].profile = kinds[r].profile;
    classes[c].uneven = kinds[r].uneven;
  }
  if (classes.size() > kMostRankClasses) {
    return fail({.code = ErrorCode::TooLarge,
                 .message = "too many ranks differ from each other",
                 .file = {},
                 .place = "ranks that differ",
                 .expected = "at most " + std::to_string(kMostRankClasses) + " kinds of ranks",
                 .got = std::to_string(classes.size()),
                 .hint = "give neighbours the same factor"});
  }
  for (const Colour colour : colours) result.class_of.push_back(static_cast<std::uint16_t>(colour));
  return result;
}

std::vector<std::size_t> RankClasses::peers(const PlanCommunicator& communicator, std::size_t of) const {
  std::set<std::size_t> met;
  const auto own = static_cast<std::int32_t>(classes[of].representative);
  for (const std::int32_t rank : ranks_beside(communicator, own)) met.insert(class_of[static_cast<std::size_t>(rank)]);
  return {met.begin(), met.end()};
}

Result<RanksPrediction> simulate_ranks(const Job& job, const RanksOptions& options) {
  SharedParts shared;
  const auto profile = shared.profile(job.cluster.profile);
  if (!profile) return fail(profile.error());
  const auto model = shared.model(job, **profile);
  if (!model) return fail(model.error());
  auto classes = rank_classes(job, **model, options.traits);
  if (!classes) return fail(classes.error());

  RanksPrediction result;
  result.classes = classes->classes;
  Workbench bench(shared);
  std::vector<Job> jobs;
  std::vector<JobParts> parts;
  std::map<std::tuple<std::int64_t, std::string>, std::size_t> planned;  // classes that differ in speed share a plan
  for (const RankClass& one : result.classes) {
    Job own = job;
    if (!one.profile.empty()) own.cluster.profile = one.profile;
    const auto [at, added] = planned.emplace(std::tuple(one.uneven, own.cluster.profile), parts.size());
    own.cluster.rank = added ? one.representative : jobs[at->second].cluster.rank;
    const JobParts known = added ? JobParts{} : parts[at->second];
    jobs.push_back(std::move(own));
    if (!added) {
      parts.push_back(known);
      continue;
    }
    auto made = bench.prepare(jobs.back());
    if (!made) return fail(made.error());
    parts.push_back(std::move(*made));
  }
  std::vector<RankRequest> requests;
  for (std::size_t c = 0; c < result.classes.size(); ++c) {
    const RankClass& one = result.classes[c];
    const RankSpeed speed{one.slow, options.jitter, options.seed + 0x9e3779b97f4a7c15U * (c + 1), one.members};
    std::vector<std::vector<std::size_t>> peers;
    for (const PlanCommunicator& met : parts[c].plan->communicators) peers.push_back(classes->peers(met, c));
    requests.push_back(
        {*parts[c].plan, *parts[c].model, *parts[c].lowered, jobs[c], *parts[c].profile, speed, std::move(peers)});
  }
  SimulateOptions simulate;
  simulate.memory = job.cluster.memory;
  simulate.per_kernel = false;
  simulate.iterations = options.iterations;
  auto predictions = simulate_together(requests, simulate);
  if (!predictions) return fail(predictions.error());
  result.predictions = std::move(*predictions);
  SimDuration most = -1;
  for (std::size_t c = 0; c < result.predictions.size(); ++c) {
    const Prediction& p = result.predictions[c];
    result.fits = result.fits && p.fits;
    if (p.iterations.empty()) continue;
    if (p.step_time_ns.value > result.step_time_ns.value) result.step_time_ns = p.step_time_ns;
    if (p.iterations.back().compute > most) {
      most = p.iterations.back().compute;
      result.slowest = c;
    }
  }
  return result;
}

}  // namespace foreshard
