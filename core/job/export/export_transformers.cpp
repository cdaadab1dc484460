// Transformers' TrainingArguments for run_clm.py and scripts like it, and TRL's `trl sft`.
#include <cmath>
#include <filesystem>

#include "core/job/export/export_writer.h"

namespace foreshard::exporting {
namespace {

/// from_pretrained wants the folder of a config.json.
std::string model_name(const Job& job) {
  const std::filesystem::path path(job.model.source);
  if (path.filename() != "config.json") return job.model.source;
  return path.has_parent_path() ? path.parent_path().string() : ".";
}

void put_fsdp(const Job& job, JobValue& tree) {
  const auto put = [&](const char* path, JobValue value) { put_in_tree(tree, path, std::move(value)); };
  if (job.fsdp.runtime == Runtime::None) return;
  const bool version_1 = job.fsdp.runtime == Runtime::Fsdp1;
  put("fsdp", tree_flag(true));
  put("fsdp_config.version", tree_integer(version_1 ? 1 : 2));
  if (version_1) {
    static const std::vector<std::pair<Strategy, std::string_view>> kStrategies = {
        {Strategy::FullShard, "full_shard"},
        {Strategy::ShardGradOp, "shard_grad_op"},
        {Strategy::NoShard, "no_shard"},
        {Strategy::HybridShard, "hybrid_shard"},
        {Strategy::HybridShardZero2, "hybrid_shard_zero2"}};
    put("fsdp_config.reshard_after_forward", tree_text_value(word_of(kStrategies, job.fsdp.strategy)));
    if (!job.fsdp.limit_all_gathers) put("fsdp_config.limit_all_gathers", tree_flag(false));
  }
  if (job.fsdp.cpu_offload) put("fsdp_config.cpu_offload", tree_flag(true));
  put_plugin(job, "fsdp_config.", tree);
  if (!job.fsdp.wrap.classes.empty() && job.fsdp.wrap.policy == WrapPolicyKind::ModuleClass)
    put("fsdp_config.transformer_layer_cls_to_wrap", tree_texts(job.fsdp.wrap.classes));
}

void put_optimizer_arguments(const Job& job, JobValue& tree) {
  const auto put = [&](const char* path, JobValue value) { put_in_tree(tree, path, std::move(value)); };
  const OptimizerOptions& optimizer = job.train.optimizer;
  switch (optimizer.name) {
    case OptimizerKind::Sgd: put("optim", tree_text_value("sgd")); break;
    case OptimizerKind::Adafactor: put("optim", tree_text_value("adafactor")); break;
    case OptimizerKind::Adagrad: put("optim", tree_text_value("adagrad")); break;
    case OptimizerKind::RMSprop: put("optim", tree_text_value("rmsprop")); break;
    case OptimizerKind::AdamW8bit: put("optim", tree_text_value("adamw_bnb_8bit")); break;
    default:
      put("optim", tree_text_value(optimizer.impl == OptimizerImpl::Fused ? "adamw_torch_fused" : "adamw_torch"));
  }
  put("learning_rate", tree_number(optimizer.lr));
  put("weight_decay", tree_number(optimizer.weight_decay));
  put("adam_beta1", tree_number(optimizer.beta1));
  put("adam_beta2", tree_number(optimizer.beta2));
  put("adam_epsilon", tree_number(optimizer.eps));
  put("max_grad_norm", tree_number(job.train.clip_grad_norm));
  const ScheduleOptions& schedule = job.train.schedule;
  if (schedule.name == "cosine" && schedule.min_ratio > 0) {
    put("lr_scheduler_type", tree_text_value("cosine_with_min_lr"));
    put("lr_scheduler_kwargs.min_lr_rate", tree_number(schedule.min_ratio));
  } else {
    put("lr_scheduler_type", tree_text_value(schedule.name == "cosine" ? "cosine"
                                             : schedule.warmup > 0     ? "constant_with_warmup"
                                                                       : "constant"));
  }
  put("warmup_steps", tree_integer(schedule.warmup));
}

/// What TrainingArguments and TRL's SFTConfig have in common.
void put_arguments(const Job& job, JobValue& tree) {
  const auto put = [&](const char* path, JobValue value) { put_in_tree(tree, path, std::move(value)); };
  put("output_dir", tree_text_value(job.train.checkpoint.dir.empty() ? "out" : job.train.checkpoint.dir));
  put("per_device_train_batch_size", tree_integer(job.model.batch));
  put("gradient_accumulation_steps", tree_integer(job.train.micro_batches));
  if (job.train.micro_batches > 1)
    put("accelerator_config.gradient_accumulation_kwargs.sync_each_batch", tree_flag(!job.train.no_sync));
  put("max_steps", tree_integer(job.train.steps));
  put("seed", tree_integer(job.train.seed));
  put("bf16", tree_flag(one_precision(job) == "bf16"));
  put("fp16", tree_flag(one_precision(job) == "fp16"));
  const bool plugin = job.fsdp.runtime != Runtime::None && !job.checkpointing.reentrant;
  const bool checkpoints = job.checkpointing.policy == CheckpointPolicy::Block && !plugin;
  put("gradient_checkpointing", tree_flag(checkpoints));
  if (checkpoints) put("gradient_checkpointing_kwargs.use_reentrant", tree_flag(job.checkpointing.reentrant));
  if (job.model.compile) put("torch_compile", tree_flag(true));
  if (job.model.loss == "fused_linear_cross_entropy") {  // of Liger's kernels this one alone
    put("use_liger_kernel", tree_flag(true));
    for (const char* kernel : {"rms_norm", "rope", "swiglu"})
      put((std::string("liger_kernel_config.") + kernel).c_str(), tree_flag(false));
    put("liger_kernel_config.fused_linear_cross_entropy", tree_flag(true));
  }
  put_optimizer_arguments(job, tree);
  put_fsdp(job, tree);
}

void put_dtype(const Job& job, JobValue& tree) {
  put_in_tree(tree, "dtype", tree_text_value(job.model.dtype ? dtype_name(*job.model.dtype) : "auto"));
}

}  // namespace

JobValue transformers_tree(const Job& job) {
  JobValue tree;
  put_in_tree(tree, "model_name_or_path", tree_text_value(model_name(job)));
  put_dtype(job, tree);
  put_in_tree(tree, "block_size", tree_integer(job.model.seq));
  put_in_tree(tree, "do_train", tree_flag(true));
  put_arguments(job, tree);
  return tree;
}

JobValue trl_tree(const Job& job) {
  JobValue tree;
  const auto put = [&](const char* path, JobValue value) { put_in_tree(tree, path, std::move(value)); };
  put("model_name_or_path", tree_text_value(model_name(job)));
  put_dtype(job, tree);
  put("attn_implementation", tree_text_value(job.model.attention == "eager" ? "eager" : "sdpa"));
  put("max_length", tree_integer(job.model.seq));
  put("packing", tree_flag(true));  // full rows, as the job's are; of several sequences they would be joined to one
  put("packing_strategy", tree_text_value(job.model.packed ? "bfd" : "wrapped"));
  if (job.adapters.kind == "lora") {
    const std::vector<std::string>& targets = job.adapters.targets;
    put("use_peft", tree_flag(true));
    put("lora_r", tree_integer(job.adapters.rank));
    put("lora_alpha", tree_integer(std::llround(job.adapters.alpha)));
    put("lora_dropout", tree_number(job.adapters.dropout));
    if (!job.adapters.modules_to_save.empty()) put("lora_modules_to_save", tree_texts(job.adapters.modules_to_save));
    put("lora_target_modules", targets.size() == 1 ? tree_text_value(targets.front()) : tree_texts(targets));
    if (job.adapters.base == "nf4") {
      put("load_in_4bit", tree_flag(true));
      put("bnb_4bit_quant_type", tree_text_value("nf4"));
    }
    if (job.adapters.base == "int8") put("load_in_8bit", tree_flag(true));
  }
  put_arguments(job, tree);
  if (job.checkpointing.offload_activations) put("activation_offloading", tree_flag(true));
  return tree;
}

}  // namespace foreshard::exporting
