// Which modules of a model are cut over the tensor dimension of a mesh, and how: torchtitan's plans and PyTorch's
// ParallelStyles (torch/distributed/tensor/parallel/style.py) in words.
//
// Plain values; usable from any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/job.h"
#include "core/model/model.h"
#include "core/result.h"

namespace foreshard {

/// One of the words of mesh.plan.
enum class ModuleStyle : std::uint8_t {
  None,
  Colwise,  // "colwise": a linear layer's rows, an embedding's columns; the result stays cut along its last dimension
  Rowwise,  // "rowwise": a linear layer's columns, an embedding's rows; the result is summed over the ranks
  RowwiseReduced,  // "rowwise_reduced": the same; every rank has the whole sum, along the sequence too
  Head,          // "head": colwise, but what comes out is gathered, or kept cut for a loss that is (mesh.loss_parallel)
  HeadGathered,  // "head_gathered": colwise; what comes out stays cut, and is held so, until the loss gathers it
                 // (full_tensor())
  ColwiseGathered,  // "colwise_gathered": colwise; what comes out is gathered, whatever the loss is
  Sequence,         // "sequence": every rank has the weights, the input stays cut
  Gather,           // "gather": a module whose input is gathered once for all that it holds (PrepareModuleInput)
  GatherLocal,      // "gather_local": the same as a local tensor, of which each layer sums its own gradient
  GatherOutput,     // "gather_output": what it hands on is gathered along the sequence (PrepareModuleOutput)
  Part,             // "part": handed its rank's part of the sequence of what is whole (PrepareModuleInput)
  Rows,             // "rows", of the root: each rank brings rows of its own (the first dimension), layers gather them
  Local,            // "local": runs on this rank's part of the sequence alone, with whole weights (local_map)
  Replicate,        // "replicate": whole weights that the mesh knows, input and result whole (torchtitan's NoParallel)
  Summed,        // "summed": input gathered once; what comes out is a term of the ranks' sum (PrepareModuleInputOutput)
  ExpertTensor,  // "expert_tensor": stacked weights, every expert's matrices cut (torchtitan's TensorParallel)
  GradientSum,   // "gradient_sum": whole weights beside the mesh, whose gradients a hook of the script sums over the
                 // ranks
  Split,         // "split": handed this rank's rows of what every rank has (torchtitan's ReordererSequenceParallel)
  CutExperts,    // "cut_experts": both, experts over ranks and the matrices of each (torchtitan's ExpertTensorParallel)
  Experts,       // "experts": stacked weights whose first dimension counts experts; cut over the expert dimension alone
};
std::string_view module_style_name(ModuleStyle style);
constexpr bool is_rowwise(ModuleStyle style) {
  return style == ModuleStyle::Rowwise || style == ModuleStyle::RowwiseReduced;
}
/// Of what a module is handed, and hands on, alone.
constexpr bool cuts_no_weights(ModuleStyle style) {
  constexpr ModuleStyle kOnes[] = {ModuleStyle::None,         ModuleStyle::Gather, ModuleStyle::GatherLocal,
                                   ModuleStyle::GatherOutput, ModuleStyle::Part,   ModuleStyle::Summed,
                                   ModuleStyle::Split,        ModuleStyle::Rows};
  for (const ModuleStyle one : kOnes)
    if (one == style) return true;
  return false;
}
constexpr bool is_head(ModuleStyle style) {
  return style == ModuleStyle::Head || style == ModuleStyle::HeadGathered || style == ModuleStyle::ColwiseGathered;
}

/// The style of every module, by ModuleId: job.mesh.plan where it is given, else what the architecture's builder wrote
/// (Model::parallel). Errors: nobody knows how to cut this model; a pattern that matches no module; a word that is no
/// style; a style that its module cannot have (colwise and rowwise cut linear layers and embeddings).
Result<std::vector<ModuleStyle>> module_styles(const Model& model, const MeshOptions& mesh);

/// By ModuleId: its matrices hold several projections side by side, each of which is cut ("packed_colwise",
/// "packed_expert_tensor": styles colwise and expert_tensor, whose rows are no neighbours). REQUIRES module_styles'.
std::vector<bool> packed_modules(const Model& model, const MeshOptions& mesh);

/// Notes in Model::parallel of a model whose tensors are cut: what is taken apart behind a packed layer, by itself or
/// by what calls it, is no cut across its parts ("fused"). REQUIRES packed_modules'.
void mark_packed(Model& model, const std::vector<bool>& packed);

/// By ModuleId: inside a call of a module that runs on its own part of the sequence, or one itself.
std::vector<bool> local_modules(const Model& model, const std::vector<ModuleStyle>& styles);

/// Those of one dimension: of the expert dimension modules of experts alone, of the tensor dimension all others, and
/// experts that both cut.
std::vector<ModuleStyle> styles_along(std::vector<ModuleStyle> styles, bool experts);

}  // namespace foreshard
