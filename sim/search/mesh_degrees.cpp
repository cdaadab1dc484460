#include "sim/search/mesh_degrees.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "core/job/job_file.h"
#include "core/mesh/rank_model.h"
#include "sim/search/prepare_job.h"

namespace foreshard {
namespace {

struct Dimension {
  std::string_view key;
  std::int64_t MeshOptions::*degree;
};
constexpr Dimension kTensor{"mesh.tensor", &MeshOptions::tensor}, kContext{"mesh.context", &MeshOptions::context},
    kExpert{"mesh.expert", &MeshOptions::expert};

bool is_of_experts(const std::string& style) { return style == "experts" || style == "cut_experts"; }

/// Whether the model has anything that the dimension cuts: a job that is cut already has.
bool has_meaning_for(const Dimension& dimension, const Job& job, const Model& model) {
  if (job.mesh.*dimension.degree > 1) return true;
  if (dimension.key == kContext.key) {
    return std::any_of(model.ops.begin(), model.ops.end(),
                       [](const Op& op) { return op.name.find("scaled_dot_product") != std::string::npos; });
  }
  const bool experts = dimension.key == kExpert.key;
  const auto has = [&](const auto& rows, auto style_of) {
    return std::any_of(rows.begin(), rows.end(),
                       [&](const auto& row) { return is_of_experts(style_of(row)) == experts; });
  };
  return has(model.parallel, [](const ParallelStyle& row) { return row.style; }) ||
         has(job.mesh.plan, [](const auto& row) { return row.second; });
}

/// Why the job cannot be cut so, if it cannot: its own rank's model is written.
std::optional<Error> refusal(const Job& job, const HardwareProfile& profile) {
  if (auto valid = validate_job(job); !valid) return valid.error();
  if (auto fits = check_mesh(job); !fits) return fits.error();
  if (auto model = load_job_model(job, profile); !model) return model.error();
  return std::nullopt;
}

Job at_degree(const Job& job, const Dimension& dimension, std::int64_t degree) {
  Job cut = job;
  for (const Dimension& other : {kTensor, kContext, kExpert}) cut.mesh.*other.degree = 1;
  cut.mesh.*dimension.degree = degree;
  return cut;
}

}  // namespace

MeshDegrees mesh_degrees(const Job& job, const Model& model, const HardwareProfile& profile) {
  MeshDegrees out;
  if (job.fsdp.runtime != Runtime::Fsdp1 && job.fsdp.runtime != Runtime::Fsdp2) return out;
  for (const Dimension& dimension : {kTensor, kContext, kExpert}) {
    if (!has_meaning_for(dimension, job, model)) continue;
    const std::int64_t ranks = std::min(job.cluster.ranks_per_node, job.cluster.world_size);
    MeshAxis axis{std::string(dimension.key), {}};
    std::vector<std::pair<std::string, std::vector<std::int64_t>>> why;  // degrees by what is wrong with them
    for (std::int64_t degree = 2; degree <= ranks; degree *= 2) {
      const auto refused = refusal(at_degree(job, dimension, degree), profile);
      if (!refused) {
        axis.degrees.push_back(degree);
        continue;
      }
      if (why.empty() || why.back().first != refused->message)
        why.emplace_back(refused->message, std::vector<std::int64_t>());
      why.back().second.push_back(degree);
    }
    for (const auto& [text, degrees] : why)
      out.refused.push_back(fmt::format("{} = {}: {}", dimension.key, fmt::join(degrees, ", "), text));
    if (!axis.degrees.empty()) out.axes.push_back(std::move(axis));
  }
  return out;
}

std::int64_t degree_of(const Job& job, const std::string& key) {
  for (const Dimension& dimension : {kTensor, kContext, kExpert})
    if (dimension.key == key) return job.mesh.*dimension.degree;
  return 1;
}

std::vector<std::string> settings_of_degree(const Job& job, const std::string& key, std::int64_t degree) {
  const std::int64_t now = degree_of(job, key);
  std::vector<std::string> set{fmt::format("{}={}", key, degree)};
  if (key == kExpert.key) return set;  // every rank has samples of its own
  if (job.model.batch * degree % now != 0) return {};
  set.push_back(fmt::format("model.batch={}", job.model.batch * degree / now));
  return set;
}

}  // namespace foreshard
