// The small model of the recordings in tests/data/exec/unit_precision and comm_hook: three linear layers, started and
// fed with numbers that both sides work out.
#pragma once

#include <ATen/ATen.h>

#include <cmath>
#include <string>

#include "core/job.h"
#include "core/model/model.h"

namespace foreshard::exec::toy {

inline constexpr int kSize = 8, kRows = 4, kSteps = 3;
inline constexpr double kRate = 0.05;
inline const std::string kFolder = std::string(FORESHARD_TEST_DATA) + "/exec/";

inline at::Tensor numbers(Numel count, double phase) {
  const at::Tensor out = at::empty({count}, at::kFloat);
  for (Numel i = 0; i < count; ++i) {
    out.data_ptr<float>()[i] = static_cast<float>(std::sin(0.37 * static_cast<double>(i + 1) + phase) / 3);
  }
  return out;
}

/// The input of a step; `phase` differs by rank and step.
inline at::Tensor input(int phase) { return numbers(kRows * kSize, phase).view({kRows, kSize}); }

inline at::Tensor start_of(const Model& model, ParamId id) {
  const Shape& shape = model.params[id.index()].shape;
  return numbers(numel_of(shape), id.value).view(shape);
}

/// Layers a, b, c are units; plain SGD.
inline Job job(Runtime runtime, const MixedPrecision& precision, int world) {
  Job job;
  job.model.source = kFolder + "unit_precision/model.json";
  job.model.loss = "none";
  job.fsdp.runtime = runtime;
  job.fsdp.mixed_precision = precision;
  job.fsdp.wrap.policy = WrapPolicyKind::Units;
  job.fsdp.wrap.units = {{"a"}, {"b"}, {"c"}};
  job.train.optimizer.name = OptimizerKind::Sgd;
  job.train.optimizer.weight_decay = 0;
  job.train.clip_grad_norm = 0;
  job.cluster.world_size = job.cluster.ranks_per_node = world;
  return job;
}

}  // namespace foreshard::exec::toy
