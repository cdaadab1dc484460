#include "exec/data/script_inputs.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "core/model/starting_values.h"

namespace foreshard::exec {

ScriptInputs::ScriptInputs(const Model& model, const Job& job) : aligned_(job.model.loss.starts_with("chunked_")) {
  if (model.inputs.empty()) return;
  const ValueInfo& ids = model.values[model.inputs.front().index()];
  if (input_role(ids) != InputRole::Ids) return;
  for (std::size_t i = 1; i < model.inputs.size(); ++i) {
    const ValueInfo& value = model.values[model.inputs[i].index()];
    const bool beside = value.shape == ids.shape;
    switch (input_role(value)) {
      case InputRole::Labels:
        if (beside) labels_ = i;
        break;
      case InputRole::PaddingMask:
        if (beside) mask_ = i;
        break;
      case InputRole::Positions:
        if (beside) positions_ = i;
        break;
      case InputRole::LabelCount:
        if (value.shape.empty()) count_ = i;
        break;
      default: break;
    }
  }
  if (!labels_) count_.reset();
}

bool ScriptInputs::follows(std::size_t input) const {
  return (labels_ && input == *labels_) || (positions_ && input == *positions_) || is_mask(input) || is_count(input);
}

at::Tensor ScriptInputs::labels_of(const std::vector<at::Tensor>& inputs) const {
  at::Tensor labels = inputs.front().clone();
  if (mask_) labels.masked_fill_(inputs[*mask_].eq(0), kNoLabel);
  if (positions_)
    labels.masked_fill_(inputs[*positions_].eq(0), kNoLabel);  // nothing predicts a sequence's first token
  if (!aligned_) return labels;                                // the model moves them itself
  return at::constant_pad_nd(labels.narrow(-1, 1, labels.size(-1) - 1), {0, 1}, kNoLabel);
}

void ScriptInputs::complete(std::vector<at::Tensor>& inputs) const {
  if (positions_ && !inputs[*positions_].defined()) {
    const at::Tensor& ids = inputs.front();
    // A sequence of one token would carry no label.
    const std::int64_t each = std::max<std::int64_t>((ids.size(-1) + kSequencesInARow - 1) / kSequencesInARow, 2);
    inputs[*positions_] = at::arange(ids.size(-1), ids.options()).remainder(each).expand_as(ids).contiguous();
  }
  if (mask_ && !inputs[*mask_].defined()) inputs[*mask_] = at::ones_like(inputs.front());
  if (labels_ && !inputs[*labels_].defined()) inputs[*labels_] = labels_of(inputs);
  if (!count_ || inputs[*count_].defined()) return;
  const at::Tensor& labels = inputs[*labels_];
  const at::Tensor predicted = aligned_ ? labels : labels.narrow(-1, 1, labels.size(-1) - 1);
  inputs[*count_] = predicted.ne(kNoLabel).sum();
}

std::optional<double> ScriptInputs::counted(const std::vector<std::vector<at::Tensor>>& micro_batches) const {
  if (!count_) return std::nullopt;
  double count = 0;
  for (const std::vector<at::Tensor>& inputs : micro_batches) count += inputs[*count_].item<double>();
  return count;
}

void ScriptInputs::tell(std::vector<std::vector<at::Tensor>>& micro_batches, double count) const {
  for (std::vector<at::Tensor>& inputs : micro_batches) inputs[*count_].fill_(count);
}

}  // namespace foreshard::exec
