// The ends of language models: their inputs, the head, and the loss that model.loss asks for.
//
// The architecture's own loss ("auto"), the training script's on the logits, or the script's wrapper that runs head and
// cross entropy over pieces of the sequence.
#pragma once

#include <optional>

#include "core/model/families/family.h"

namespace foreshard::families {

/// The inputs of a language model. Labels are an input only where the architecture computes its own loss, or where they
/// differ from the ids.
struct TokenInputs {
  Tensor ids;
  std::optional<Tensor> labels;
  std::optional<Tensor> counted;    // num_items_in_batch
  std::optional<Tensor> mask;       // [batch, seq]: which tokens are there
  std::optional<Tensor> positions;  // [batch, seq]: of each token in its sequence, where rows hold several
  bool shifted = true;              // each position predicts the next label (causal language models)
};
TokenInputs write_token_inputs(ProgramWriter& writer, const FamilyInput& input, std::int64_t seq);

/// Writes the loss that the options ask for behind the logits and sets outputs and has_loss.
void finish_with_loss(Model& model, ProgramWriter& writer, const FamilyInput& input, const TokenInputs& tokens,
                      const Tensor& logits);

/// The layer that makes logits of hidden states [batch, seq, width].
struct HeadModules {
  ModuleId root;  // whose forward calls it
  LinearModule linear;
  bool sliced = true;  // the library's heads take hidden_states[:, slice_indices, :]
};
/// Head and loss: over the whole sequence, or over pieces of it.
void finish_with_head(Model& model, ProgramWriter& writer, const FamilyInput& input, const TokenInputs& tokens,
                      const HeadModules& head, const Tensor& hidden);

/// The architecture's own loss: a mean over the labels, or ("per_token") their sum divided by what the script has
/// counted over all micro-batches.
bool is_own_loss(const ModelOptions& options);
/// Head and loss as one function, inside the model.
bool fuses_head_with_loss(const ModelOptions& options);
/// Head and loss over pieces of the sequence: the script's wrapper is the root, the model its child "model".
bool wraps_for_loss(const ModelOptions& options);

}  // namespace foreshard::families
