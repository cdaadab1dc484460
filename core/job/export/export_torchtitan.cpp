// torchtitan's TOML, as its trainer read it until 2026.
#include <algorithm>
#include <bit>

#include "core/job/export/export_writer.h"

namespace foreshard::exporting {
namespace {

void put_training(const Job& job, JobValue& tree) {
  const auto put = [&](const char* path, JobValue value) { put_in_tree(tree, path, std::move(value)); };
  const MixedPrecision& precision = job.fsdp.mixed_precision;
  const std::int64_t data_ranks = job.cluster.world_size / job.mesh.tensor / job.mesh.context;
  put("training.local_batch_size", tree_integer(job.model.batch));
  if (job.train.micro_batches > 1)
    put("training.global_batch_size", tree_integer(job.model.batch * data_ranks * job.train.micro_batches));
  put("training.seq_len", tree_integer(job.model.seq));
  put("training.steps", tree_integer(job.train.steps));
  put("training.max_norm", tree_number(job.train.clip_grad_norm));
  put("training.seed", tree_integer(job.train.seed));
  put("training.dtype", tree_text_value(job.model.dtype == DType::BFloat16 ? "bfloat16" : "float32"));
  put("training.mixed_precision_param", tree_text_value(precision.param == DType::BFloat16 ? "bfloat16" : "float32"));
  put("training.mixed_precision_reduce", tree_text_value(precision.reduce == DType::BFloat16 ? "bfloat16" : "float32"));
  if (job.fsdp.cpu_offload) put("training.enable_cpu_offload", tree_flag(true));
  if (job.model.compile) put("compile.enable", tree_flag(true));
}

/// The converter of linear layers, and what their matrices are gathered in.
void put_float8(const Job& job, JobValue& tree) {
  if (job.model.float8 == "none") return;
  const std::string table = "quantize.linear.float8";
  put_in_tree(tree, "model.converters", tree_texts({table}));
  put_in_tree(tree, table + ".filter_fqns", tree_texts({"output"}));
  if (job.model.float8 != "tensorwise") {
    put_in_tree(tree, table + ".recipe_name", tree_text_value(job.model.float8));
    return;
  }
  // What is left to "auto" must not fail on another machine: powers of two divide the rows of layers of all usual
  // sizes.
  const bool even = std::has_single_bit(static_cast<std::uint64_t>(shard_ranks(job)));
  const bool gathers = gathers_float8(job) && (even || job.fsdp.float8_all_gather != "auto");
  put_in_tree(tree, table + ".enable_fsdp_float8_all_gather", tree_flag(gathers));
  put_in_tree(tree, table + ".precompute_float8_dynamic_scale_for_fsdp",
              tree_flag(gathers && job.fsdp.float8_all_gather != "dynamic"));
}

void put_parallelism(const Job& job, JobValue& tree) {
  const auto put = [&](const char* path, JobValue value) { put_in_tree(tree, path, std::move(value)); };
  const std::int64_t data_ranks = job.cluster.world_size / job.mesh.tensor;
  const std::int64_t shards = job.fsdp.runtime == Runtime::None ? 1 : shard_ranks(job);
  put("parallelism.data_parallel_replicate_degree", tree_integer(data_ranks / shards));
  put("parallelism.data_parallel_shard_degree", tree_integer(std::max<std::int64_t>(shards / job.mesh.context, 1)));
  put("parallelism.fsdp_reshard_after_forward",
      tree_text_value(job.fsdp.reshard_after_forward.kind == ReshardAfterForward::Kind::False ? "never" : "always"));
  put("parallelism.tensor_parallel_degree", tree_integer(job.mesh.tensor));
  if (job.mesh.context > 1) {
    put("parallelism.context_parallel_degree", tree_integer(job.mesh.context));
    put("parallelism.context_parallel_rotate_method", tree_text_value(job.mesh.context_rotate));
  }
  if (job.mesh.expert > 1) put("parallelism.expert_parallel_degree", tree_integer(job.mesh.expert));
  if (job.mesh.tensor > 1 && job.mesh.async_tensor) put("parallelism.enable_async_tensor_parallel", tree_flag(true));
  if (job.mesh.tensor > 1 && !job.mesh.loss_parallel) put("parallelism.disable_loss_parallel", tree_flag(true));
}

void put_optimizer(const Job& job, JobValue& tree) {
  const auto put = [&](const char* path, JobValue value) { put_in_tree(tree, path, std::move(value)); };
  const OptimizerOptions& optimizer = job.train.optimizer;
  static const std::vector<std::pair<OptimizerImpl, std::string_view>> forms = {
      {OptimizerImpl::Fused, "fused"},
      {OptimizerImpl::Foreach, "foreach"},
      {OptimizerImpl::ForLoop, "for-loop"},
      {OptimizerImpl::InBackwardForeach, "foreach"}};
  put("optimizer.name", tree_text_value("AdamW"));
  const std::string_view form = word_of(forms, optimizer.impl);
  if (!form.empty()) put("optimizer.implementation", tree_text_value(form));
  if (steps_in_backward(optimizer.impl)) put("optimizer.early_step_in_backward", tree_flag(true));
  put("optimizer.lr", tree_number(optimizer.lr));
  put("optimizer.beta1", tree_number(optimizer.beta1));
  put("optimizer.beta2", tree_number(optimizer.beta2));
  put("optimizer.eps", tree_number(optimizer.eps));
  put("optimizer.weight_decay", tree_number(optimizer.weight_decay));
  put("lr_scheduler.warmup_steps", tree_integer(job.train.schedule.warmup));
  if (job.train.schedule.name == "cosine") {
    put("lr_scheduler.decay_type", tree_text_value("cosine"));
    put("lr_scheduler.min_lr_factor", tree_number(job.train.schedule.min_ratio));
  } else {
    put("lr_scheduler.decay_ratio", tree_number(0.0));  // no decay after the warm-up
  }
}

void put_checkpointing(const Job& job, JobValue& tree) {
  const auto put = [&](const char* path, JobValue value) { put_in_tree(tree, path, std::move(value)); };
  switch (job.checkpointing.policy) {
    case CheckpointPolicy::Block: put("activation_checkpoint.mode", tree_text_value("full")); break;
    case CheckpointPolicy::EveryK:
      put("activation_checkpoint.mode", tree_text_value("selective"));
      put("activation_checkpoint.selective_ac_option", tree_text_value(std::to_string(job.checkpointing.k)));
      break;
    case CheckpointPolicy::Ops:
      put("activation_checkpoint.mode", tree_text_value("selective"));
      put("activation_checkpoint.selective_ac_option", tree_text_value("op"));
      break;
    default: put("activation_checkpoint.mode", tree_text_value("none"));
  }
  if (job.train.checkpoint.dir.empty()) return;
  put("checkpoint.enable", tree_flag(true));
  put("checkpoint.folder", tree_text_value(job.train.checkpoint.dir));
  if (job.train.checkpoint.every > 0) put("checkpoint.interval", tree_integer(job.train.checkpoint.every));
  put("checkpoint.keep_latest_k", tree_integer(job.train.checkpoint.keep));
}

}  // namespace

JobValue torchtitan_tree(const Job& job) {
  JobValue tree;
  put_in_tree(tree, "job.description", tree_text_value("written by foreshard export"));
  put_training(job, tree);
  put_float8(job, tree);
  put_parallelism(job, tree);
  put_optimizer(job, tree);
  put_checkpointing(job, tree);
  return tree;
}

}  // namespace foreshard::exporting
