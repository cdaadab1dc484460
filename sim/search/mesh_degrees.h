// Degrees of a mesh that a job could be cut by, for searches: those that the rank's own model can be written for, and
// why the others cannot. Pure functions; each degree costs one model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/job.h"
#include "core/model/model.h"
#include "sim/machine/profile.h"

namespace foreshard {

struct MeshAxis {
  std::string key;                    // "mesh.tensor", "mesh.context", "mesh.expert"
  std::vector<std::int64_t> degrees;  // above 1, ascending
};

struct MeshDegrees {
  std::vector<MeshAxis> axes;        // without degrees: left out
  std::vector<std::string> refused;  // "mesh.tensor = 4, 8: the ranks do not divide ..."
};

/// Powers of two up to a node, each dimension alone beside FSDP. One that means nothing to the model (no plan, no
/// experts, no attention) is left out without a word. `model` is the job's.
MeshDegrees mesh_degrees(const Job& job, const Model& model, const HardwareProfile& profile);

std::int64_t degree_of(const Job& job, const std::string& key);

/// The job at another degree of one dimension with as many tokens in a step: ranks of a tensor or context group share
/// their batches. Settings as --set takes them; empty where no whole batch makes up the tokens.
std::vector<std::string> settings_of_degree(const Job& job, const std::string& key, std::int64_t degree);

}  // namespace foreshard
