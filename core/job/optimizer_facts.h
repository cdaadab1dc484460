// What torch.optim's elementwise optimizers keep of each parameter: names as state dicts spell them, and when they are
// made. Source: torch/optim/{adagrad,rmsprop,nadam,radam,adamax,adamw,sgd}.py of PyTorch 2.11 and
// docs/measurements/2026-11-25-other-optimizers.md. What Adafactor, Muon and 8-bit AdamW keep is not elementwise.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/job.h"

namespace foreshard {

struct OptimizerFacts {
  /// Tensors of the parameter's shape, in the order in which the optimizer makes them.
  std::vector<std::string_view> states;
  /// Beside them, of no dimension; on the host unless fused.
  std::vector<std::string_view> scalars;
  bool made_by_constructor = false;  // before the first forward; else by the first step
};

/// Adagrad, RMSprop, NAdam, RAdam and Adamax: no fused step on devices, gradients of no other are decayed in a copy.
bool is_other_elementwise(OptimizerKind kind);
/// Those, AdamW and SGD.
bool is_elementwise(OptimizerKind kind);
/// The class of torch.optim.
std::string_view class_name(OptimizerKind kind);

/// Whether these make a decayed copy of the gradients: with weight decay that is not the parameters' own.
bool decays_gradients(const OptimizerOptions& options);
/// Or multiply the parameters, as AdamW.
bool decays_params(const OptimizerOptions& options);

/// The length of RAdam's average in step `step`, counted from 1: above 5 it takes an adaptive rate. Of infinitely many
/// steps (`step` 0): what it grows to.
double averaged_length(double beta2, std::int64_t step);

/// The job's own optimizer, then those of train.optimizer.parts that step.
std::vector<OptimizerOptions> optimizers_of(const TrainOptions& train);

/// Of a watched one: which of the model's it is (Model::optimizers).
const std::string& watched_name(const OptimizerOptions& options);

/// Of Muon, Adafactor and 8-bit AdamW: nothing.
OptimizerFacts optimizer_facts(const OptimizerOptions& options);

}  // namespace foreshard
