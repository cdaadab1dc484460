// torch.amp.GradScaler over sharded gradients: the loss is multiplied before backward, the gradients are divided before
// they are used, and a step whose gradients hold an infinity or a NaN is left out, on all ranks.
//
//   scale   backward begins with the scale instead of 1
//   unscale gradients /= scale; found_inf: whether this rank found one       (then the ranks meet over found_inf)
//   step    left out where found_inf is not 0
//   update  found_inf ? scale *= backoff : after growth_interval good steps scale *= growth
//
// Inside work. The scale lies where the loss does, what was found where the gradients are; both in float32.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "core/job.h"
#include "exec/checkpoint/train_state.h"

namespace foreshard::exec {

class GradientScaler {
 public:
  explicit GradientScaler(const GradScalerOptions& options) : options_(options) {}

  bool enabled() const { return options_.enabled; }

  /// 0-dim; made where it is first asked for.
  at::Tensor scale(c10::Device device);
  /// Divides in place, in groups of one type, whatever the type is; `device`: of the gradients.
  void unscale(std::span<const at::Tensor> gradients, c10::Device device);
  /// One element; 0: all gradients were finite. From unscale to update.
  const at::Tensor& found_inf() const { return found_inf_; }
  void update();

  // ---- After a synchronize; these wait for the device.
  ScalerState state() const;
  /// Takes effect with the next scale().
  void set_state(const ScalerState& state);

 private:
  GradScalerOptions options_;
  ScalerState start_{options_.init_scale, 0};
  at::Tensor scale_, growth_tracker_, found_inf_;
};

}  // namespace foreshard::exec
