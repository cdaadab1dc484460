// Random jobs: a schedule is never worse than fsdp2's at the same budget, stays within it, and is above the bound. How
// often FSDP1's flat parameters are faster is told. FORESHARD_SCHEDULE_JOBS and FORESHARD_LAWS_SEED say how many and
// which.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <vector>

#include "core/plan/planned/arena.h"
#include "sim/schedule/schedule_search.h"
#include "sim/search/prepare_job.h"
#include "tests/sim/laws/random_job.h"
#include "tests/support/temporary_path.h"

namespace foreshard::testing {
namespace {

std::int64_t number_from(const char* variable, std::int64_t otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoll(text, nullptr, 10);
}

struct Tally {
  std::int64_t scheduled = 0, refused = 0, none = 0, faster = 0;
  std::int64_t slower_than_fsdp1 = 0, slower_on_device = 0, slower_by_padding = 0, fsdp1_proposed = 0;
  std::vector<double> gaps, host_gaps;  // where the device, and where the host holds things up
  std::vector<double> arena_rests;      // by which an arena is larger than what is alive at once
  std::vector<double> hidden_gaps;      // of gaps: where nine tenths of the bound can have something beside them
};

/// Where there is room, an arena changes no step, and no two of its buffers share bytes while both live. Returns how
/// much larger it is than what is alive at once, as a part of that.
double expect_arena(const FoundSchedule& found, const std::string& which) {
  Job job = found.job;
  job.schedule.budget = 0;
  const auto prepared = prepare(job);
  EXPECT_TRUE(prepared.has_value()) << which;
  if (!prepared) return 0;
  SimulateOptions options = simulate_options(job);
  options.memory = 64 * 1024 * kGiB;
  const auto step = [&](bool arena) {
    job.schedule.arena = arena;
    return simulate(prepared->plan, prepared->model, prepared->lowered, job, prepared->profile, options).value();
  };
  const Prediction placed = step(true), served = step(false);
  EXPECT_EQ(placed.step_time_ns.value, served.step_time_ns.value) << which;
  const Arena arena = lay_out_arena(prepared->plan);
  EXPECT_EQ(arena_clash(prepared->plan, arena).value_or(""), "") << which;
  Bytes block = 0, at_once = 0;
  for (std::size_t s = 0; s < kStreamCount; ++s) {
    EXPECT_GE(arena.bytes[s], arena.at_once[s]) << which;
    block += arena.bytes[s];
    at_once += arena.at_once[s];
  }
  EXPECT_GT(at_once, 0) << which;  // gathers, at least
  EXPECT_GE(placed.memory.reserved, block) << which;
  return at_once == 0 ? 0 : static_cast<double>(block - at_once) / static_cast<double>(at_once);
}

/// What is proposed is as short as the shortest of fsdp2, fsdp1 and the schedule, within the budget, and what the
/// simulator says of the job that its keys make.
void expect_proposal(const FoundSchedule& found, Workbench& bench, const std::string& which) {
  const Proposal& proposal = found.proposal;
  if (proposal.step_ns <= 0) {
    EXPECT_FALSE(found.fits) << which;
    EXPECT_EQ(found.fsdp1.step_ns, 0) << which;
    return;
  }
  for (const double step : {found.fsdp1.step_ns, found.fsdp2.step_ns, found.step_ns})
    EXPECT_LE(proposal.step_ns, step > 0 ? step : proposal.step_ns) << which;
  EXPECT_LE(proposal.reserved, found.budget) << which;
  const auto prediction = bench.predict(proposal.job);
  ASSERT_TRUE(prediction.has_value()) << which;
  EXPECT_EQ(prediction->step_time_ns.value, proposal.step_ns) << which;
  EXPECT_EQ(prediction->memory.reserved, proposal.reserved) << which;
  if (proposal.runtime == Runtime::Fsdp1) {
    EXPECT_FALSE(proposal.keys.empty()) << which;
  }
}

TEST(ScheduleLaws, NeverWorseWithinTheBudgetAboveTheBound) {
  const auto seed = static_cast<std::uint64_t>(number_from("FORESHARD_LAWS_SEED", 1));
  const std::int64_t jobs = number_from("FORESHARD_SCHEDULE_JOBS", 60);
  const std::string path = temporary_path("schedule_laws.json");
  Tally tally;
  double worst_fsdp1 = 0;
  for (std::int64_t k = 0; k < jobs; ++k) {
    RandomJob random = plain_job(seed + static_cast<std::uint64_t>(k));
    random = random.with({"fsdp.runtime=planned"});
    auto job = job_of(random);
    if (!job) {
      ++tally.refused;
      continue;
    }
    std::ofstream(path) << config_text(random.sizes);
    job->model.source = path;
    const auto profile = load_profile(job->cluster.profile);
    ASSERT_TRUE(profile.has_value());
    const auto model = load_job_model(*job, *profile);
    if (!model) {
      ++tally.refused;
      continue;
    }
    SharedParts shared;
    Workbench bench(shared);
    const auto found = find_schedule(*job, *model, *profile, bench);
    if (!found) {
      ++tally.refused;
      continue;
    }
    expect_proposal(*found, bench, random.text());
    tally.fsdp1_proposed += found->proposal.runtime == Runtime::Fsdp1 ? 1 : 0;
    if (!found->fits) {
      ++tally.none;
      EXPECT_EQ(found->fsdp2.step_ns, 0) << "fsdp2 fits, planned does not: " << random.text();
      continue;
    }
    ++tally.scheduled;
    if (job->cluster.world_size > 1) tally.arena_rests.push_back(expect_arena(*found, random.text()));
    EXPECT_LE(found->peak_reserved, found->budget) << random.text();
    if (found->fsdp2.step_ns > 0) {
      EXPECT_LE(found->step_ns, found->fsdp2.step_ns) << random.text();
      tally.faster += found->step_ns < found->fsdp2.step_ns ? 1 : 0;
    }
    if (found->fsdp1.step_ns > 0 && found->step_ns > found->fsdp1.step_ns) {
      ++tally.slower_than_fsdp1;
      EXPECT_NE(found->advice, "") << random.text();  // it is offered, with the reason
      tally.slower_on_device += found->bound.host_bound() ? 0 : 1;
      tally.slower_by_padding += found->padding > 0.05 ? 1 : 0;
      if (number_from("FORESHARD_SCHEDULE_TELL", 0) > 0)
        std::printf("fsdp1 %.3f ms, planned %.3f, fsdp2 %.3f, bound %.3f, free %.3f: %s\n", found->fsdp1.step_ns / 1e6,
                    found->step_ns / 1e6, found->fsdp2.step_ns / 1e6, found->bound.ns / 1e6,
                    found->bound.free_step_ns / 1e6, random.text().c_str());
      worst_fsdp1 = std::max(worst_fsdp1, found->step_ns / found->fsdp1.step_ns - 1);
    }
    if (found->bound.ns > 0) {
      EXPECT_GE(found->step_ns * 1.000001, found->bound.ns) << random.text();
      (found->bound.host_bound() ? tally.host_gaps : tally.gaps).push_back(found->gap());
      const bool communicates = found->bound.gathers_ns + found->bound.reductions_ns > 0;
      if (!found->bound.host_bound() && communicates && found->bound.ends_ns < 0.1 * found->bound.ns)
        tally.hidden_gaps.push_back(found->gap());
      if (!found->bound.host_bound() && found->gap() > 0.1 && number_from("FORESHARD_SCHEDULE_TELL", 0) > 0)
        std::printf(
            "gap %.1f %%, planned %.3f ms, bound %.3f (compute %.3f, gathers %.3f, reductions %.3f, ends %.3f): %s\n",
            100 * found->gap(), found->step_ns / 1e6, found->bound.ns / 1e6, found->bound.compute_ns / 1e6,
            found->bound.gathers_ns / 1e6, found->bound.reductions_ns / 1e6, found->bound.ends_ns / 1e6,
            random.text().c_str());
    }
  }
  std::remove(path.c_str());
  std::sort(tally.gaps.begin(), tally.gaps.end());
  std::sort(tally.host_gaps.begin(), tally.host_gaps.end());
  std::printf("fsdp1 is proposed for %lld\n", static_cast<long long>(tally.fsdp1_proposed));
  std::printf(
      "%lld scheduled, %lld faster than fsdp2, %lld slower than fsdp1 (%lld not for the host, %lld with padding, worst "
      "%.2f %%), %lld fit "
      "nothing, "
      "%lld refused\n",
      static_cast<long long>(tally.scheduled), static_cast<long long>(tally.faster),
      static_cast<long long>(tally.slower_than_fsdp1), static_cast<long long>(tally.slower_on_device),
      static_cast<long long>(tally.slower_by_padding), 100 * worst_fsdp1, static_cast<long long>(tally.none),
      static_cast<long long>(tally.refused));
  if (!tally.gaps.empty())
    std::printf("gap to the bound, %zu jobs that the host does not hold up: median %.2f %%, worst %.2f %%\n",
                tally.gaps.size(), 100 * tally.gaps[tally.gaps.size() / 2], 100 * tally.gaps.back());
  std::sort(tally.hidden_gaps.begin(), tally.hidden_gaps.end());
  if (!tally.hidden_gaps.empty())
    std::printf("of these, %zu where the ends are no tenth of the bound: median %.2f %%, worst %.2f %%\n",
                tally.hidden_gaps.size(), 100 * tally.hidden_gaps[tally.hidden_gaps.size() / 2],
                100 * tally.hidden_gaps.back());
  if (!tally.host_gaps.empty())
    std::printf("above the host's need, %zu others: median %.2f %%, worst %.2f %%\n", tally.host_gaps.size(),
                100 * tally.host_gaps[tally.host_gaps.size() / 2], 100 * tally.host_gaps.back());
  std::sort(tally.arena_rests.begin(), tally.arena_rests.end());
  if (!tally.arena_rests.empty())
    std::printf("arenas of %zu jobs: larger than what is alive at once by %.2f %% (median), %.2f %% (worst)\n",
                tally.arena_rests.size(), 100 * tally.arena_rests[tally.arena_rests.size() / 2],
                100 * tally.arena_rests.back());
  EXPECT_GT(tally.scheduled, jobs / 3);
}

}  // namespace
}  // namespace foreshard::testing
