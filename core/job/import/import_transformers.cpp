// Transformers: TrainingArguments as JSON or YAML, or its fsdp_config alone.
#include "core/job/import/import_reader.h"

namespace foreshard::import {

namespace {

/// --fsdp "full_shard auto_wrap offload"
void read_words(Reader& r, const std::string& words) {
  static const Words kStrategies = {{"full_shard", "FULL_SHARD"},
                                    {"shard_grad_op", "SHARD_GRAD_OP"},
                                    {"no_shard", "NO_SHARD"},
                                    {"hybrid_shard", "HYBRID_SHARD"},
                                    {"hybrid_shard_zero2", "_HYBRID_SHARD_ZERO2"}};
  std::size_t at = 0;
  while (at < words.size()) {
    const std::size_t end = std::min(words.find_first_of(" ,", at), words.size());
    const std::string word = words.substr(at, end - at);
    at = end + 1;
    if (word.empty() || word == "auto_wrap" || word == "true") continue;
    bool known = false;
    for (const auto& [theirs, ours] : kStrategies) {
      if (word != theirs) continue;
      r.set_word("fsdp.strategy", ours, "fsdp");
      known = true;
    }
    if (word == "offload") r.set_flag("fsdp.cpu_offload", true, "fsdp");
    if (!known && word != "offload") r.note("fsdp = " + word + " is not understood");
  }
}

void read_optimizer_arguments(Reader& r) {
  static const Words kNames = {{"adamw_torch", "adamw"}, {"adamw_torch_fused", "adamw"}, {"adamw_hf", "adamw"},
                               {"sgd", "sgd"},           {"adagrad", "adagrad"},         {"rmsprop", "rmsprop"}};
  static const Words kSchedules = {{"cosine", "cosine"},
                                   {"cosine_with_min_lr", "cosine"},
                                   {"constant", "constant"},
                                   {"constant_with_warmup", "constant"}};
  const std::string name = r.text("optim");
  if (name == "adafactor" || name == "adamw_bnb_8bit" || name == "adamw_8bit") {
    r.set_if_built("train.optimizer.name", word_value(name == "adafactor" ? "adafactor" : "adamw8bit"), "optim");
    if (name == "adafactor") r.set_word("train.optimizer.impl", "for_loop", "optim");
  } else {
    r.translate("optim", "train.optimizer.name", kNames);
  }
  if (name == "adamw_torch_fused") r.set_word("train.optimizer.impl", "fused", "optim");
  r.copy("learning_rate", "train.optimizer.lr");
  r.copy("weight_decay", "train.optimizer.weight_decay");
  if (name == "adagrad" || name == "rmsprop") {  // torch.optim's own arguments: the trainer hands none on
    JobValue eps;
    eps.kind = JobValue::Kind::Float;
    eps.number = name == "adagrad" ? 1e-10 : 1e-8;
    r.set("train.optimizer.eps", eps, "optim");
    r.ignore("adam_epsilon");
  } else {
    r.copy("adam_epsilon", "train.optimizer.eps");
  }
  const JobValue* beta1 = r.take("adam_beta1");
  const JobValue* beta2 = r.take("adam_beta2");
  if (beta1 != nullptr && beta2 != nullptr) {
    JobValue betas;
    betas.kind = JobValue::Kind::Array;
    betas.items = {*beta1, *beta2};
    r.set("train.optimizer.betas", betas, "adam_beta1");
  } else if (beta1 != nullptr || beta2 != nullptr) {
    r.note("adam_beta1 and adam_beta2 are read together; one of them is missing");
  }
  r.translate("lr_scheduler_type", "train.schedule.name", kSchedules);
  r.copy("lr_scheduler_kwargs.min_lr_rate", "train.schedule.min_ratio");
  r.copy("warmup_steps", "train.schedule.warmup");
  r.copy("max_grad_norm", "train.clip_grad_norm");
}

/// Trainer and accelerate hold gradients back between micro-batches unless they are told to reduce each.
void read_accumulation(Reader& r) {
  r.copy("gradient_accumulation_steps", "train.micro_batches");
  const bool each = r.flag("accelerator_config.gradient_accumulation_kwargs.sync_each_batch");
  if (r.integer("gradient_accumulation_steps", 1) > 1)
    r.set_flag("train.no_sync", !each, "gradient_accumulation_steps");
}

/// `name` is gradient_checkpointing, or what Transformers calls it since 5.20.
void read_recomputation(Reader& r, const std::string& name) {
  if (!r.flag(name)) return;
  const std::int64_t every = r.integer(name + "_kwargs.every_n_layers", 1);
  r.set_word("checkpointing.policy", every > 1 ? "every_k" : "block", name);
  if (every > 1) r.set_number("checkpointing.k", every, name + "_kwargs.every_n_layers");
  r.copy(name + "_kwargs.use_reentrant", "checkpointing.reentrant");
}

/// Under mixed precision FSDP's parameters are stored in float32, whatever they were loaded in.
void read_model(Reader& r, bool mixed) {
  static const Words kTypes = {
      {"auto", "config"}, {"float32", "float32"}, {"bfloat16", "bfloat16"}, {"float16", "float16"}};
  static const Words kAttention = {{"sdpa", "sdpa"},
                                   {"eager", "eager"},
                                   {"flash_attention_2", "sdpa_flash"},
                                   {"flash_attention_3", "sdpa_flash"},
                                   {"flash_attention_4", "sdpa_flash"},
                                   {"flex_attention", "sdpa"}};
  for (const char* name : {"dtype", "torch_dtype"}) {
    if (mixed) {
      r.ignore(name);
    } else {
      r.translate(name, "model.dtype", kTypes);
    }
  }
  r.translate("attn_implementation", "model.attention", kAttention);
  if (r.text("attn_implementation") == "flex_attention") {
    r.note(
        "attn_implementation = flex_attention: planned as scaled dot product attention, which keeps the same tensors "
        "as its compiled kernel; uncompiled it holds every score");
  }
}

constexpr const char* kLengths[] = {"max_seq_length", "max_length", "block_size", "cutoff_len"};

/// TRL's packing: unless its rows are pieces of one text ("wrapped"), the collator joins a batch's rows to one and
/// hands positions instead of a mask. Kernels of variable lengths read the sequences' lengths off them, others take a
/// mask.
void read_packing(Reader& r) {
  const bool packs = r.flag("packing"), wrapped = r.text("packing_strategy") == "wrapped";
  const bool joins = r.flag("padding_free") || (packs && !wrapped);
  if (!joins) return;
  const char* const from = packs ? "packing" : "padding_free";
  const std::int64_t rows = r.integer("per_device_train_batch_size", 8);
  std::int64_t length = 1024;  // TRL's, as the 8
  for (const char* name : kLengths) length = r.integer(name, length);
  r.set_number("model.batch", 1, from);
  r.set_number("model.seq", rows * length, from);
  const std::string attention = r.text("attn_implementation");
  if (attention.starts_with("flash_attention") || attention == "flex_attention") {
    return r.note(std::string(from) +
                  ": the kernel's time is that of one sequence as long as the row; its memory is the same");
  }
  r.set_if_built("model.packed", flag_value(true), from);
}

/// TRL's ModelConfig.
void read_adapters(Reader& r) {
  const char* const kKeys[] = {"lora_r",       "lora_alpha",   "lora_target_modules", "load_in_4bit",
                               "load_in_8bit", "lora_dropout", "lora_modules_to_save"};
  if (!r.flag("use_peft")) {
    for (const char* name : kKeys) r.ignore(name);
  } else {
    r.set_if_built("adapters.kind", word_value("lora"), "use_peft");
    r.copy("lora_r", "adapters.rank");
    r.copy("lora_alpha", "adapters.alpha");
    if (const JobValue* targets = r.take("lora_target_modules"))
      r.set("adapters.targets", text_list(*targets), "lora_target_modules");
    r.copy("lora_dropout", "adapters.dropout");
    if (const JobValue* saved = r.take("lora_modules_to_save"))
      r.set("adapters.modules_to_save", text_list(*saved), "lora_modules_to_save");
    if (r.flag("load_in_4bit")) r.set_word("adapters.base", "nf4", "load_in_4bit");
    if (r.flag("load_in_8bit")) r.set_word("adapters.base", "int8", "load_in_8bit");
  }
  r.refuse("bnb_4bit_quant_type", "only nf4 is known", "nf4");
}

}  // namespace

// One long function on purpose: one key of the arguments after the other.
void read_transformers(Reader& r, const JobValue& tree) {
  const bool arguments = find_in_tree(tree, "fsdp") != nullptr || find_in_tree(tree, "fsdp_config") != nullptr ||
                         find_in_tree(tree, "per_device_train_batch_size") != nullptr;
  if (!arguments) {  // the file of --fsdp_config
    const bool version_2 = r.integer("version", r.integer("fsdp_version", 1)) == 2;
    const bool prefixed = find_in_tree(tree, "fsdp_transformer_layer_cls_to_wrap") != nullptr ||
                          find_in_tree(tree, "fsdp_min_num_params") != nullptr ||
                          find_in_tree(tree, "fsdp_backward_prefetch") != nullptr;
    const bool plain =
        find_in_tree(tree, "transformer_layer_cls_to_wrap") != nullptr ||
        find_in_tree(tree, "min_num_params") != nullptr || find_in_tree(tree, "backward_prefetch") != nullptr ||
        find_in_tree(tree, "activation_checkpointing") != nullptr || find_in_tree(tree, "use_orig_params") != nullptr ||
        find_in_tree(tree, "reshard_after_forward") != nullptr;
    if (!prefixed && !plain) return;
    r.set_word("fsdp.runtime", version_2 ? "fsdp2" : "fsdp1", "version");
    read_plugin(r, prefixed ? "fsdp_" : "", version_2);
    for (const char* name : {"xla", "xla_fsdp_v2", "xla_fsdp_grad_ckpt"}) r.refuse(name, "a setting of TPUs");
    return;
  }
  const std::string words = r.text("fsdp");
  // Transformers writes `fsdp: []` beside a whole fsdp_config for a run without FSDP.
  const bool said = find_in_tree(tree, "fsdp") != nullptr;
  const bool fsdp =
      said ? !words.empty() && words != "false" && words != "[]" : find_in_tree(tree, "fsdp_config") != nullptr;
  if (fsdp) read_words(r, words);
  const bool version_2 = r.integer("fsdp_config.version", r.integer("fsdp_config.fsdp_version", 1)) == 2;
  r.set_word("fsdp.runtime", !fsdp ? "none" : version_2 ? "fsdp2" : "fsdp1", "fsdp");
  read_plugin(r, "fsdp_config.", version_2);
  read_plugin(r, "fsdp_config.fsdp_", version_2);
  for (const char* name : {"fsdp_config.xla", "fsdp_config.xla_fsdp_v2", "fsdp_config.xla_fsdp_grad_ckpt"})
    r.refuse(name, "a setting of TPUs");

  const bool bf16 = r.flag("bf16"), fp16 = r.flag("fp16");
  if (bf16 || fp16) {
    const char* dtype = bf16 ? "bfloat16" : "float16";
    for (const char* key : {"fsdp.mixed_precision.param", "fsdp.mixed_precision.reduce",
                            version_2 ? "fsdp.mixed_precision.output" : "fsdp.mixed_precision.buffer"})
      r.set_word(key, dtype, bf16 ? "bf16" : "fp16");
    read_autocast(r, dtype, fsdp && version_2, r.flag("torch_compile"), bf16 ? "bf16" : "fp16");
  } else {
    r.set_word("fsdp.mixed_precision.param", "none", "bf16");
    r.set_word("fsdp.mixed_precision.reduce", "none", "bf16");
  }
  r.copy("model_name_or_path", "model.source");
  r.copy("per_device_train_batch_size", "model.batch");
  for (const char* name : kLengths) r.copy(name, "model.seq");
  read_accumulation(r);
  if (r.integer("max_steps", -1) > 0) r.copy("max_steps", "train.steps");
  for (const char* name : {"gradient_checkpointing", "activation_checkpointing"}) read_recomputation(r, name);
  read_packing(r);
  read_model(r, bf16 || fp16);
  read_adapters(r);
  if (r.flag("activation_offloading"))
    r.set_if_built("checkpointing.offload_activations", flag_value(true), "activation_offloading");
  r.copy("seed", "train.seed");
  read_optimizer_arguments(r);
  const std::string liger = "liger_kernel_config.";
  if (r.flag("use_liger_kernel") && r.flag(liger + "fused_linear_cross_entropy", true)) {
    r.set_if_built("model.loss", word_value("fused_linear_cross_entropy"), "use_liger_kernel");
    for (const char* kernel : {"rms_norm", "rope", "swiglu"}) {
      if (r.flag(liger + kernel, true))
        r.note("use_liger_kernel: its " + std::string(kernel) + " runs as Transformers' own");
    }
  }
  if (r.flag("torch_compile")) r.set_if_built("model.compile", flag_value(true), "torch_compile");
  r.refuse("deepspeed", "DeepSpeed is not FSDP");
  for (const char* name : {"output_dir",
                           "run_name",
                           "logging_steps",
                           "logging_dir",
                           "report_to",
                           "save_strategy",
                           "eval_strategy",
                           "evaluation_strategy",
                           "save_total_limit",
                           "dataloader_num_workers",
                           "remove_unused_columns",
                           "do_train",
                           "eval_packing",
                           "dataset_name",
                           "do_eval",
                           "overwrite_output_dir",
                           "push_to_hub",
                           "per_device_eval_batch_size",
                           "num_train_epochs",
                           "save_steps",
                           "eval_steps",
                           "logging_strategy",
                           "disable_tqdm"})
    r.ignore(name);
}

}  // namespace foreshard::import
