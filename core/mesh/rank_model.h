// A model cut over a device mesh: the program, parameters and shapes of one rank, with the collectives in it.
//
// What PyTorch does with DTensors and hooks at run time (torch/distributed/tensor) is written down once: parameters
// become this rank's parts (ParamInfo::part), values their local shapes, and where a placement changes an operator
// named "mesh.*" stands, whose rule says what it does in forward and backward (core/lowering/mesh_rules.h). Who plans,
// lowers, simulates or runs that model needs to know nothing of the whole one.
#pragma once

#include <functional>
#include <string>

#include "core/job.h"
#include "core/model/model.h"
#include "core/result.h"

namespace foreshard {

/// True if the job asks for a dimension that the program itself communicates over.
inline bool is_cut(const MeshOptions& mesh) { return mesh.tensor > 1 || mesh.context > 1 || mesh.expert > 1; }

/// Degrees that do not fit the cluster. Named by their keys.
Result<void> check_mesh(const Job& job);

/// What a model is built from: one rank's part of the sequence where ranks share it.
ModelOptions rank_model_options(const Job& job);

/// Builds the same model with other options: where experts lie on ranks beside a tensor dimension, their tokens are one
/// rank's part of the sequence, which a whole program does not tell.
using PartBuilder = std::function<Result<Model>(const ModelOptions&)>;

/// The model of rank job.cluster.rank; the model itself where nothing is cut. What is left in Model::parallel are the
/// parameters that the plan has untied (core/model/untied.h), layers beside experts that stay whole (style "whole"),
/// modules that take a cut projection apart ("fused"), layers that are cut part by part ("packed") and their parameters
/// that hold two ("halves"), modules whose split rows are no part of the sequence ("elsewhere") and whole parameters
/// that read what is cut ("partial"). `whole` is as its source built it. Errors: check_mesh's; a plan that names
/// nothing or that the model's operators cannot follow; heads, widths and lengths that the degree does not divide;
/// experts beside a tensor dimension without `build`.
Result<Model> rank_model(Model whole, const Job& job, const PartBuilder& build = {});

/// How many projections side by side a parameter holds, of each of which this rank has its part, one behind the other.
std::int64_t packed_parts(const Model& model, const ParamInfo& param);

/// Whether the ranks divide each of those that this module's parameters hold.
bool divides_packed(const Model& model, const std::string& module);

/// Tokens of the rank's model choose their experts: how many rows come is the run's, and the plan's an assumption
/// (mesh.expert_imbalance).
bool sends_chosen_tokens(const Model& model);

/// The first operator that was told in numbers how many such rows come, and so is right for the plan's assumption
/// alone; -1: none is, the program can be run.
std::int32_t told_how_many_rows(const Model& model);

}  // namespace foreshard
