// torchtitan's job configuration (train_configs/*.toml).
#include <algorithm>

#include "core/job/import/import_reader.h"

namespace foreshard::import {

namespace {

/// Accumulation is what is left of the global batch. `data_ranks` is negative where the file does not say it.
void read_micro_batches(Reader& r, std::int64_t data_ranks) {
  const std::int64_t step = r.integer("training.num_tokens_per_train_step", -1);
  const std::int64_t global = step > 0 ? step : r.integer("training.global_batch_size", -1);
  if (global <= 0) return;
  const std::int64_t local = r.integer("training.num_tokens_per_microbatch_per_dp_rank",
                                       r.integer("training.local_batch_size", r.integer("training.batch_size", 1)));
  const bool known = local > 0 && local < 1'000'000 && data_ranks > 0 && data_ranks < 1'000'000;
  const std::int64_t at_once = known ? local * data_ranks : -1;
  if (at_once > 0 && global % at_once == 0) {
    r.set_number("train.micro_batches", global / at_once, "training.global_batch_size");
  } else {
    r.note("training.global_batch_size = " + std::to_string(global) +
           ": train.micro_batches = it / (world size x model.batch)");
  }
}

/// Ranks that share a sequence; 1 where nobody asks, or no job can have both.
std::int64_t read_context(Reader& r, std::int64_t degree) {
  static const Words kRotates = {{"allgather", "allgather"}, {"alltoall", "alltoall"}};
  if (degree <= 1) {
    r.ignore("parallelism.context_parallel_rotate_method");
    return 1;
  }
  r.set_number("mesh.context", degree, "parallelism.context_parallel_degree");
  r.translate("parallelism.context_parallel_rotate_method", "mesh.context_rotate", kRotates);
  r.set_word("mesh.context_buffers", "whole",
             "parallelism.context_parallel_degree");  // since 0.2.2 it cuts inputs and positions alone
  return degree;
}

/// Experts lie on ranks that FSDP has already: the degree is no factor of the world.
void read_experts(Reader& r, std::int64_t degree) {
  if (degree > 1) r.set_number("mesh.expert", degree, "parallelism.expert_parallel_degree");
  r.refuse("parallelism.expert_tensor_parallel_degree", "experts are not cut themselves", "1");
}

/// always, never, or the default: resharding unless a pipeline runs.
void read_parallelism(Reader& r) {
  const auto degree = [&](const char* key, std::int64_t usual) {  // products of four stay numbers
    return std::clamp<std::int64_t>(r.integer(key, usual), -1, 65'536);
  };
  static const Words kReshard = {{"default", "true"}, {"always", "true"}, {"never", "false"}};
  r.translate("parallelism.fsdp_reshard_after_forward", "fsdp.reshard_after_forward", kReshard);
  const std::int64_t replicas = degree("parallelism.data_parallel_replicate_degree", 1);
  const std::int64_t shards = degree("parallelism.data_parallel_shard_degree", -1);
  const std::int64_t tensor = std::max<std::int64_t>(degree("parallelism.tensor_parallel_degree", 1), 1);
  static constexpr const char* kAsync[] = {"parallelism.enable_async_tensor_parallel",
                                           "compile.enable_async_tensor_parallel"};
  if (tensor == 1)
    for (const char* name : kAsync) r.ignore(name);
  if (tensor > 1) {
    r.set_number("mesh.tensor", tensor, "parallelism.tensor_parallel_degree");
    for (const char* name : kAsync)
      if (r.flag(name)) r.set_flag("mesh.async_tensor", true, name);
    if (r.flag("parallelism.disable_loss_parallel"))
      r.set_flag("mesh.loss_parallel", false, "parallelism.disable_loss_parallel");
    if (!r.flag("parallelism.enable_sequence_parallel", true))
      r.set_flag("mesh.sequence_parallel", false, "parallelism.enable_sequence_parallel");
  } else {
    r.ignore("parallelism.disable_loss_parallel");
    r.ignore("parallelism.enable_sequence_parallel");
  }
  const std::int64_t context = read_context(r, degree("parallelism.context_parallel_degree", 1));
  const std::int64_t experts = degree("parallelism.expert_parallel_degree", 1);
  read_experts(r, experts);
  const std::int64_t beside = tensor * context;
  const bool alone = tensor > 1 && context <= 1 && experts <= 1 && replicas <= 1 && shards == 1;
  if (replicas > 1 && shards == 1) {
    r.set_word("fsdp.runtime", "none", "parallelism.data_parallel_shard_degree");
    r.set_number("cluster.world_size", replicas * beside, "parallelism.data_parallel_replicate_degree");
  } else if (replicas > 1) {
    r.set_word("fsdp.strategy", "HYBRID_SHARD", "parallelism.data_parallel_replicate_degree");
    if (shards > 0) {
      r.set_number("cluster.shard_group", shards, "parallelism.data_parallel_shard_degree");
      r.set_number("cluster.world_size", shards * replicas * beside, "parallelism.data_parallel_replicate_degree");
    } else {
      r.note(
          "parallelism.data_parallel_shard_degree = -1: set cluster.world_size and cluster.shard_group = world size "
          "/ " +
          std::to_string(replicas));
    }
  } else if (shards > 0) {
    if (alone) r.set_word("fsdp.runtime", "none", "parallelism.data_parallel_shard_degree");  // nothing is sharded
    r.set_number("cluster.world_size", shards * beside, "parallelism.data_parallel_shard_degree");
  } else {
    r.note("parallelism.data_parallel_shard_degree = -1 means all ranks: set cluster.world_size");
  }
  read_micro_batches(r, std::max<std::int64_t>(replicas, 1) * shards);
  r.refuse("parallelism.pipeline_parallel_degree", "pipelines are not planned", "1");
  r.refuse("parallelism.enable_compiled_autograd", "it is not planned");
  const bool pipeline = r.integer("parallelism.pipeline_parallel_degree", 1) > 1;
  if (const std::string schedule = r.text("parallelism.pipeline_parallel_schedule"); pipeline && !schedule.empty())
    r.note("parallelism.pipeline_parallel_schedule = " + schedule + ": pipelines are not planned");
}

/// Since the middle of 2026 batches are counted in tokens.
void read_tokens(Reader& r) {
  const std::int64_t length = r.integer("training.max_context_length", 0);
  const std::int64_t tokens = r.integer("training.num_tokens_per_microbatch_per_dp_rank", 0);
  if (length <= 0 || tokens <= 0) return;
  r.set_number("model.seq", length, "training.max_context_length");
  r.set_number("model.batch", std::max<std::int64_t>(tokens / length, 1),
               "training.num_tokens_per_microbatch_per_dp_rank");
  if (tokens % length != 0)
    r.note("training.num_tokens_per_microbatch_per_dp_rank = " + std::to_string(tokens) +
           " is no whole number of sequences: the rest is left out");
}

void read_training(Reader& r) {
  static const Words kTypes = {{"bfloat16", "bfloat16"}, {"float32", "none"}, {"float16", "float16"}};
  static const Words kReduce = {{"bfloat16", "bfloat16"}, {"float32", "float32"}, {"float16", "float16"}};
  const bool newer = r.take("training.local_batch_size") != nullptr;
  r.copy(newer ? "training.local_batch_size" : "training.batch_size", "model.batch");
  r.copy("training.seq_len", "model.seq");
  read_tokens(r);
  r.copy("training.steps", "train.steps");
  r.copy("training.max_norm", "train.clip_grad_norm");
  r.copy("training.seed", "train.seed");
  r.translate("training.mixed_precision_param", "fsdp.mixed_precision.param", kTypes);
  r.translate("training.mixed_precision_reduce", "fsdp.mixed_precision.reduce", kReduce);
  if (r.flag("training.enable_cpu_offload")) r.set_flag("fsdp.cpu_offload", true, "training.enable_cpu_offload");
  static const Words kStored = {{"bfloat16", "bfloat16"}, {"float32", "float32"}};
  r.translate("training.dtype", "model.dtype", kStored);
  for (const char* name : {"training.compile", "compile.enable"})
    if (r.flag(name)) r.set_if_built("model.compile", flag_value(true), name);
  for (const char* name : {"training.dataset", "training.dataset_path", "training.gc_freq", "training.deterministic",
                           "compile.components"})
    r.ignore(name);
}

void read_optimizer(Reader& r) {
  static const Words kNames = {{"AdamW", "adamw"}, {"SGD", "sgd"}};
  static const Words kForms = {{"fused", "fused"}, {"foreach", "foreach"}, {"for-loop", "for_loop"}};
  r.translate("optimizer.name", "train.optimizer.name", kNames);
  r.translate("optimizer.implementation", "train.optimizer.impl", kForms);
  r.copy("optimizer.lr", "train.optimizer.lr");
  r.copy("optimizer.eps", "train.optimizer.eps");
  r.copy("optimizer.weight_decay", "train.optimizer.weight_decay");
  r.copy("optimizer.betas", "train.optimizer.betas");
  r.refuse("optimizer.further_param_groups", "the first group's settings stand for all");
  for (const char* name : {"optimizer.optimizer_factory_kwargs_by_name", "lr_scheduler.total_steps"}) r.ignore(name);
  const JobValue* beta1 = r.take("optimizer.beta1");
  const JobValue* beta2 = r.take("optimizer.beta2");
  if (beta1 != nullptr && beta2 != nullptr) {
    JobValue betas;
    betas.kind = JobValue::Kind::Array;
    betas.items = {*beta1, *beta2};
    r.set("train.optimizer.betas", betas, "optimizer.beta1");
  }
  if (r.flag("optimizer.early_step_in_backward"))
    r.set_if_built("train.optimizer.impl", word_value("in_backward"), "optimizer.early_step_in_backward");
  r.copy("lr_scheduler.warmup_steps", "train.schedule.warmup");
  if (r.text("lr_scheduler.decay_type") == "cosine") {
    r.set_word("train.schedule.name", "cosine", "lr_scheduler.decay_type");
    r.copy("lr_scheduler.min_lr_factor", "train.schedule.min_ratio");
  } else if (const JobValue* ratio = r.take("lr_scheduler.decay_ratio");
             ratio != nullptr && (tree_text(*ratio) == "0" || tree_text(*ratio) == "0.0")) {
    r.ignore("lr_scheduler.decay_type");  // no step decays
    r.ignore("lr_scheduler.min_lr_factor");
  } else {
    if (ratio != nullptr) r.note("lr_scheduler.decay_ratio = " + tree_text(*ratio) + ": the schedule is left constant");
    r.refuse("lr_scheduler.decay_type", "the schedule is left constant");
    r.ignore("lr_scheduler.min_lr_factor");
  }
}

void read_checkpointing(Reader& r) {
  const std::string kind = r.text("activation_checkpoint._class");
  if (kind == "fullac.config") r.set_word("checkpointing.policy", "block", "activation_checkpoint._class");
  if (kind == "selectiveac.config")
    r.set_if_built("checkpointing.policy", word_value("ops"), "activation_checkpoint._class");
  if (kind == "memorybudgetac.config")
    r.note("activation_checkpoint = MemoryBudgetAC: the compiler's choice is not planned");
  for (const char* path :
       {"preserve_rng_state", "determinism_check", "debug", "early_stop", "force_recompute_mm_shapes_by_fqns",
        "per_op_sac_force_recompute_mm_shapes_by_fqns", "memory_budget", "visualize_memory_budget_pareto"})
    r.ignore(std::string("activation_checkpoint.") + path);
  const std::string mode = r.text("activation_checkpoint.mode"),
                    option = r.text("activation_checkpoint.selective_ac_option");
  if (mode == "full") {
    r.set_word("checkpointing.policy", "block", "activation_checkpoint.mode");
  } else if (mode == "selective" && !option.empty() && option.find_first_not_of("0123456789") == option.npos) {
    r.set_word("checkpointing.policy", "every_k", "activation_checkpoint.selective_ac_option");
    r.set_number(
        "checkpointing.k",
        static_cast<std::int64_t>(std::min<std::size_t>(option.size(), 6) == option.size() ? std::stoll(option) : 0),
        "activation_checkpoint.selective_ac_option");
  } else if (mode == "selective") {
    r.set_if_built("checkpointing.policy", word_value("ops"),
                   option.empty() ? "activation_checkpoint.mode" : "activation_checkpoint.selective_ac_option");
  } else if (!mode.empty() && mode != "none") {
    r.note("activation_checkpoint.mode = " + mode + " is not understood");
  }
  if (r.flag("checkpoint.enable", r.flag("checkpoint.enable_checkpoint"))) {
    r.copy("checkpoint.folder", "train.checkpoint.dir");
    r.copy("checkpoint.interval", "train.checkpoint.every");
    r.copy("checkpoint.keep_latest_k", "train.checkpoint.keep");
  } else {
    for (const char* name : {"checkpoint.folder", "checkpoint.interval", "checkpoint.keep_latest_k"}) r.ignore(name);
  }
  for (const char* name : {"checkpoint.last_save_model_only", "checkpoint.model_weights_only",
                           "checkpoint.export_dtype", "checkpoint.async_mode", "checkpoint.last_save_in_hf"})
    r.ignore(name);
}

}  // namespace

namespace {

/// What `foreshard import --script` prints brings classes and defaults along.
void read_script(Reader& r) {
  for (const char* table : {"optimizer", "lr_scheduler", "training", "parallelism", "checkpoint", "compile", "debug",
                            "loss", "loss.loss_fn"})
    r.ignore(std::string(table) + "._class");
  if (r.text("loss._class") == "chunkedlosswrapper.config") {
    r.set_if_built("model.loss", word_value("chunked_cross_entropy"), "loss._class");
    r.copy("loss.num_chunks", "model.loss_chunks");
  }
  r.ignore("foreshard_torchtitan");
  r.copy("debug.seed", "train.seed");
  // Of the calls, of loading and saving, and of pipelines that do not run: nothing that a step shows.
  for (const char* table : {"loss", "debug", "checkpoint", "dump_folder", "hf_assets_path"}) r.ignore(table);
  for (const char* name :
       {"training.gc_debug", "training.disable_cuda_graphs", "training.max_context_length", "compile.backend",
        "compile.enable_async_tensor_parallel", "parallelism.spmd_backend", "parallelism.enable_fsdp_symm_mem",
        "parallelism.pipeline_parallel_first_stage_less_layers", "parallelism.pipeline_parallel_last_stage_less_layers",
        "parallelism.pipeline_parallel_schedule", "parallelism.pipeline_parallel_schedule_csv",
        "parallelism.num_pp_microbatches", "parallelism.context_parallel_load_balancer"})
    r.ignore(name);
}

/// Names of torchtitan's linear layers as its Llama had them when queries, keys and values were layers of their own,
/// which titan_llama is.
JobValue layer_names(const JobValue& targets) {
  static const std::pair<std::string_view, std::vector<std::string_view>> kParts[] = {
      {"wqkv", {"wq", "wk", "wv"}}, {"wkv", {"wk", "wv"}}, {"lm_head", {"output"}}};
  JobValue names;
  names.kind = JobValue::Kind::Array;
  for (const JobValue& target : text_list(targets).items) {
    const auto* parts =
        std::find_if(std::begin(kParts), std::end(kParts), [&](const auto& one) { return one.first == target.text; });
    if (parts == std::end(kParts)) {
      names.items.push_back(target);
    } else {
      for (const std::string_view part : parts->second) names.items.push_back(word_value(part));
    }
  }
  return names;
}

/// What the printed script found in the configuration of the model itself.
void read_model(Reader& r) {
  if (const JobValue* targets = r.take("model.lora.targets")) {
    r.set_if_built("adapters.kind", word_value("lora"), "model.lora");
    r.copy("model.lora.rank", "adapters.rank");
    r.copy("model.lora.alpha", "adapters.alpha");
    r.set("adapters.targets", layer_names(*targets), "model.lora.targets");
    r.note(
        "adapters.targets names layers of titan_llama; those of a Transformers Llama are q_proj, k_proj, v_proj, "
        "o_proj, gate_proj (w1), up_proj (w3), down_proj (w2)");
  }
  const std::string layers = r.text("model.linear_layers");
  if (layers.starts_with("float8 ")) {
    r.set_if_built("model.float8", word_value(layers.substr(7)), "model.linear_layers");
  } else if (!layers.empty()) {
    r.note("model.linear_layers = " + layers + ": they are planned in 16 bits");
  }
}

/// Linear layers in 8 bits: among the converters, its settings in a table that has moved once.
void read_float8(Reader& r) {
  const JobValue* converters = r.take("model.converters");
  const auto is_float8 = [](const JobValue& name) { return name.text.find("float8") != std::string::npos; };
  const bool asked =
      converters != nullptr &&
      (is_float8(*converters) || std::any_of(converters->items.begin(), converters->items.end(), is_float8));
  if (!asked) {
    for (const char* table : {"float8", "quantize", "mx"}) r.refuse(table, "no converter asks for it");
    return;
  }
  std::string recipe;
  bool gathers = false, precomputes = false;
  for (const std::string table : {"float8", "quantize.linear.float8"}) {
    if (recipe.empty()) recipe = r.text(table + ".recipe_name");
    gathers = r.flag(table + ".enable_fsdp_float8_all_gather") || gathers;
    precomputes = r.flag(table + ".precompute_float8_dynamic_scale_for_fsdp") || precomputes;
    for (const char* name : {".filter_fqns", ".emulate"}) r.ignore(table + name);
  }
  r.set_if_built("model.float8", word_value(recipe.empty() ? "tensorwise" : recipe), "model.converters");
  if (recipe.empty() || recipe == "tensorwise")
    r.set("fsdp.float8_all_gather",
          word_value(!gathers      ? "none"
                     : precomputes ? "precomputed"
                                   : "dynamic"),
          "float8.enable_fsdp_float8_all_gather");
  for (const char* table : {"quantize.grouped_mm", "mx"}) r.refuse(table, "experts are multiplied in 16 bits");
}

}  // namespace

void read_torchtitan(Reader& r) {
  r.set_word("fsdp.runtime", "fsdp2", "torchtitan");
  const bool script = r.take("foreshard_torchtitan") != nullptr;
  const std::string name = r.text("model.name"), flavor = r.text("model.flavor");
  const JobValue* config = r.take("model.config");
  if (config != nullptr && config->kind == JobValue::Kind::Text) {
    r.note("model " + name + " " + flavor + ": save this as config.json, for model.source: " + config->text);
  } else if (!name.empty()) {
    r.note("model " + name + " " + flavor +
           ": give its config.json, or export it (foreshard export-script), as model.source");
  }
  read_training(r);
  read_parallelism(r);
  read_optimizer(r);
  read_checkpointing(r);
  if (script) {
    read_script(r);
    read_model(r);
  }
  for (const char* path :
       {"model.norm_type", "model.tokenizer_path", "model.hf_assets_path", "model.print_after_conversion",
        "job.description", "job.dump_folder", "job.print_args", "job.use_for_integration_test"})
    r.ignore(path);
  read_float8(r);
  for (const char* table : {"metrics", "profiling", "comm", "validation", "experimental", "fault_tolerance"})
    r.ignore(table);
}

}  // namespace foreshard::import
