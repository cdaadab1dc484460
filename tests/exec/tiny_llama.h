// The tiny Llama of the recorded training runs, from the copies in tests/data/exec/llama_tiny: model, weights, data,
// and what PyTorch recorded (losses and gradient norms per step, sums of the final parameters).
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "core/job.h"
#include "core/model/model.h"
#include "exec/checkpoint/safetensors.h"

namespace foreshard::exec {

inline constexpr int kTinySteps = 20;
inline constexpr int kTinyRows = 8;  // of the global batch

struct RecordedRun {
  std::vector<double> loss, grad_norm, lr;
  std::map<std::string, double> final_abs_sum;
};

/// Job of a run over `world` ranks: fsdp2 defaults in fp32, no clipping.
Job tiny_llama_job(int world);
Model tiny_llama(const Job& job);
NamedTensors tiny_llama_weights();
/// A small model of another family, from tests/data/exec/NAME: "moe_tiny". It trains on the same data.
Job tiny_job(const std::string& name, int world);
/// Of the model that the job names.
NamedTensors tiny_weights(const Job& job);
/// Tokens and labels of one rank in one step, in the order of Model::inputs.
std::vector<at::Tensor> tiny_llama_inputs(const NamedTensors& data, int step, int rank, int world, int micro_batch = 0);
NamedTensors tiny_llama_data();
/// Rotary frequencies, in the order of Model::buffers.
std::vector<at::Tensor> tiny_llama_buffers(const Model& model);
/// "fp32-adamw/single-w1"; of another model: "ep/fsdp2-edp1-ep2", "moe_tiny".
RecordedRun recorded_run(const std::string& id, const std::string& model = "llama_tiny");

}  // namespace foreshard::exec
