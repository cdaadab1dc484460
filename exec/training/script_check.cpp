#include "exec/training/script_check.h"

#include <algorithm>
#include <string>
#include <utility>

#include "core/model/op_keywords.h"

namespace foreshard::exec {

Result<void> check_script(const Job& job, DeviceKind device) {
  const OptimizerOptions& optimizer = job.train.optimizer;
  const bool fsdp1 = job.fsdp.runtime == Runtime::Fsdp1;
  const bool half = job.model.dtype == DType::BFloat16 || job.model.dtype == DType::Float16;
  const bool adafactor = optimizer.name == OptimizerKind::Adafactor;
  const bool adapts = job.adapters.kind != "none";
  const struct {
    bool asked;
    const char *key, *what, *works;
  } kOnly[] = {
      {optimizer.name == OptimizerKind::AdamW8bit, "train.optimizer.name",
       "8-bit AdamW is torchao's, whose kernels are compiled for CUDA devices: it is", "adamw"},
      {optimizer.name == OptimizerKind::Watched, "train.optimizer.name",
       "an optimizer of a script's, of which memory alone was seen, is", "adamw"},
      {optimizer.name == OptimizerKind::Muon && device == DeviceKind::Cuda, "train.optimizer.name",
       "Muon on CUDA devices is", "adamw"},
      {optimizer.name == OptimizerKind::Adagrad && optimizer.impl == OptimizerImpl::Fused && device == DeviceKind::Cuda,
       "train.optimizer.impl", "fused Adagrad is a host's in PyTorch: on CUDA devices it is", "foreach"},
      // What the scaler found is read by fused kernels alone there, and Muon's step is none.
      {optimizer.name == OptimizerKind::Muon && optimizer.impl == OptimizerImpl::Fused && job.train.grad_scaler.enabled,
       "train.optimizer.impl", "fused steps beside Muon's under train.grad_scaler are", "foreach"},
      // Transformers' step and the checkpoints know moments of one dimension alone.
      {adafactor && (!fsdp1 || job.fsdp.strategy == Strategy::NoShard), fsdp1 ? "fsdp.strategy" : "fsdp.runtime",
       "Adafactor over matrices (means by row and column) is", fsdp1 ? "FULL_SHARD or SHARD_GRAD_OP" : "fsdp1"},
      {adafactor && !job.fsdp.use_orig_params, "fsdp.use_orig_params", "Adafactor over flat parameters is", "true"},
      {adafactor && is_transformers(optimizer) && half, "model.dtype",
       "Transformers' Adafactor on parameters of half precision is", "float32"},
      // On CPU ranks the hooks keep what lies on the host already.
      {job.checkpointing.offload_activations && device == DeviceKind::Cuda, "checkpointing.offload_activations",
       "activation offload on CUDA devices is", "false"},
      {job.model.compile, "model.compile", "compiled blocks are", "false"},
      {job.fsdp.symmetric_memory, "fsdp.symmetric_memory", "collectives over symmetric memory are", "false"},
      {optimizer.amsgrad && optimizer.name == OptimizerKind::AdamW, "train.optimizer.amsgrad",
       "AdamW that keeps its largest moments is", "false"},
      {!job.train.optimizer_parts.empty(), "train.optimizer.parts", "several optimizers are", "[]"},
      {job.model.autocast.has_value(), "model.autocast", "a forward under autocast is", "none"},
      {steps_in_backward(optimizer.impl) && job.fsdp.cpu_offload, "fsdp.cpu_offload",
       "an optimizer in backward beside offload, which steps before its gradients have reached the host, is", "false"},
      {job.model.float8 != "none", "model.float8", "products in 8 bits are", "none"},
      {adapts && job.adapters.dropout > 0, "adapters.dropout", "dropout of adapters is", "0"},
      {adapts && !job.adapters.modules_to_save.empty(), "adapters.modules_to_save", "copied modules are", "[]"},
      {adapts && job.adapters.base != "model.dtype", "adapters.base", "a base in 4 or 8 bits is", "model.dtype"},
      {adapts && job.checkpointing.reentrant, "checkpointing.reentrant", "a reentrant checkpoint around adapters is",
       "false"},
      {adapts && job.model.loss.starts_with("chunked_"), "model.loss", "a loss in pieces around adapters is", "auto"},
  };
  for (const auto& one : kOnly) {
    if (!one.asked) continue;
    Error error;
    error.code = ErrorCode::Unsupported;
    error.place = one.key;
    error.message = std::string(one.what) + " planned and simulated only";
    error.expected = one.works;
    error.hint = std::string("set ") + one.key + " to " + one.works + " to run";
    return fail(std::move(error));
  }
  return {};
}

Result<void> check_saves(const Model& model, DeviceKind device) {
  const bool sends = std::any_of(model.ops.begin(), model.ops.end(), [](const Op& op) {
    return keyword(op, "saved_on_host") != nullptr || keyword(op, "region_on_host") != nullptr;
  });
  if (!sends || device != DeviceKind::Cuda) return {};
  Error error;
  error.code = ErrorCode::Unsupported;
  error.place = "model.source";
  error.message =
      "what hooks of the model's own keep on the host (save_on_cpu) is on CUDA devices planned and simulated only";
  error.expected = "a program that saves on the device";
  error.hint = "capture it without the hooks, or run it with --backend host";
  return fail(std::move(error));
}

}  // namespace foreshard::exec
