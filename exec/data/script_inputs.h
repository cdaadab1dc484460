// What a training script hands to a language model beside the ids: labels, a padding mask, positions of packed
// sequences, and how many labels its step counts. Which input is which: core/model/starting_values.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "core/job.h"
#include "core/model/model.h"

namespace foreshard::exec {

inline constexpr std::int64_t kNoLabel = -100;       // a position that carries no loss
inline constexpr std::int64_t kSequencesInARow = 4;  // packed, of data that do not say where sequences begin

class ScriptInputs {
 public:
  ScriptInputs(const Model& model, const Job& job);

  /// Whether the input at this place of Model::inputs follows from others, so that no data have to say it.
  bool follows(std::size_t input) const;
  bool is_mask(std::size_t input) const { return mask_ && input == *mask_; }
  bool is_count(std::size_t input) const { return count_ && input == *count_; }

  /// Makes those of `inputs` (in the order of Model::inputs) that are undefined and follow from others: labels are the
  /// ids, or where the script moves them each position's next token (none behind the last); none where the mask hides
  /// the token. The mask hides nothing; positions are those of at most kSequencesInARow equal sequences, whose first
  /// tokens carry no label. The count is of this batch alone.
  void complete(std::vector<at::Tensor>& inputs) const;

  /// Whether the model divides its loss by what tell() says.
  bool counts() const { return count_.has_value(); }
  /// How many labels carry a loss in all micro-batches of this rank's step; nullopt: the model does not ask.
  std::optional<double> counted(const std::vector<std::vector<at::Tensor>>& micro_batches) const;
  /// What every micro-batch is told instead: the number over all ranks.
  void tell(std::vector<std::vector<at::Tensor>>& micro_batches, double count) const;

 private:
  at::Tensor labels_of(const std::vector<at::Tensor>& inputs) const;

  bool aligned_;                                                  // the loss compares position p with label p
  std::optional<std::size_t> labels_, mask_, positions_, count_;  // places in Model::inputs
};

}  // namespace foreshard::exec
