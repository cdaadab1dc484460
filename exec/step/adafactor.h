// Adafactor on one parameter: torch.optim's (2.11), or Transformers' (5.x) with scale_parameter and relative_step off.
// A parameter of one dimension, as FSDP1's shards are, keeps a whole second moment; matrices keep one of rows and one
// of columns.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "core/job.h"
#include "core/model/model.h"

namespace foreshard::exec {

/// Shapes of what is kept beside a parameter of this shape.
std::vector<Shape> adafactor_moments(c10::IntArrayRef param);

/// `steps`: this one counted. `moments` as adafactor_moments says.
void step_torch_adafactor(const at::Tensor& param, const at::Tensor& gradient, std::span<const at::Tensor> moments,
                          std::int64_t steps, const OptimizerOptions& options, double lr);
/// Of one dimension.
void step_transformers_adafactor(const at::Tensor& param, const at::Tensor& gradient, const at::Tensor& squares,
                                 std::int64_t steps, const OptimizerOptions& options, double lr);

}  // namespace foreshard::exec
