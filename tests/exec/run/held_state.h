// What a rank holds after an optimizer's state was loaded.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "exec/checkpoint/train_state.h"

namespace foreshard::testing {

/// Every piece is the weight's, times `k` as the parameter, 2 k as exp_avg, 3 k as exp_avg_sq; there are some.
inline void expect_multiples(const exec::TrainState& state, const std::function<at::Tensor(const std::string&)>& weight,
                             double k, const std::string& what) {
  std::size_t held = 0;
  for (const exec::StateTensor& tensor : state.tensors) {
    const double factor = k * (tensor.slot == "param" ? 1 : tensor.slot == "exp_avg" ? 2 : 3);
    const at::Tensor flat = weight(tensor.fqn).reshape({-1}) * factor;
    for (const exec::StatePiece& piece : tensor.pieces) {
      held += tensor.slot == "exp_avg" ? 1 : 0;
      EXPECT_TRUE(tensor.local.narrow(0, piece.local_offset, piece.numel)
                      .allclose(flat.narrow(0, piece.global_offset, piece.numel)))
          << what << ": " << tensor.slot << " " << tensor.fqn;
    }
  }
  EXPECT_GT(held, 0u) << what;
}

}  // namespace foreshard::testing
