// What `fit` varies: how parameters are sharded, what is recomputed, how many sequences a rank takes at a time.
//
// Pure values and functions. Everything a variant changes is a setting as --set takes it, so that an answer can be
// typed.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/job.h"
#include "core/result.h"
#include "sim/search/mesh_degrees.h"

namespace foreshard::fit_axes {

/// One value of an axis: the settings that make it.
struct Variant {
  std::string text;  // "fsdp2, resharding after forward"
  std::vector<std::string> set;
};

/// How parameters, gradients and states are laid out over the ranks of this job: the first one uses least memory
/// without a mesh and offload.
/// `beside`: degrees above 1 of "mesh.context" and "mesh.expert" that cut the job's model.
std::vector<Variant> layouts(const Job& job, const std::vector<MeshAxis>& beside = {});
/// What is recomputed in backward, from nothing to every block.
std::vector<Variant> recomputations();
/// Parameters, gradients and optimizer on the host: slower than what fits without, so it is tried where nothing does.
Variant offload();
/// FSDP gathers and reduces in one dtype where the program that runs the job has one word for all (accelerate).
Variant one_precision(const Job& job);

/// Sequences of a rank at a time, and accumulated ones, ascending.
struct Batch {
  std::int64_t batch = 1, micro_batches = 1;
};
/// Ranks that have batches of their own.
std::int64_t data_ranks(const Job& job);
/// `tokens_per_step` of all ranks; 0 = whatever fits, without accumulation. Errors: tokens that no batch makes up.
Result<std::vector<Batch>> batches(const Job& job, std::int64_t tokens_per_step);

/// The job with the settings. Errors: as validate_job.
Result<Job> with_settings(const Job& job, const std::vector<std::string>& set);

}  // namespace foreshard::fit_axes
