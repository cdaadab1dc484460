// accelerate's configuration (`accelerate config`, config.yaml) and the keys of its FSDP plugin.
#include "core/job/import/import_reader.h"

namespace foreshard::import {

void read_autocast(Reader& r, std::string_view dtype, bool version_2, bool compiled, std::string_view from) {
  if (version_2) return;
  if (compiled) {
    r.note(std::string(from) + ": accelerate's autocast is left out, with torch.compile it is not planned");
    return;
  }
  r.set_word("model.autocast", dtype, from);
  r.set_flag("model.float32_outputs", true, from);
}

void read_plugin(Reader& r, const std::string& prefix, bool version_2) {
  const auto path = [&](const char* name) { return prefix + name; };
  static const Words kStrategies = {
      {"FULL_SHARD", "FULL_SHARD"},     {"1", "FULL_SHARD"},      {"SHARD_GRAD_OP", "SHARD_GRAD_OP"},
      {"2", "SHARD_GRAD_OP"},           {"NO_SHARD", "NO_SHARD"}, {"3", "NO_SHARD"},
      {"HYBRID_SHARD", "HYBRID_SHARD"}, {"4", "HYBRID_SHARD"},    {"HYBRID_SHARD_ZERO2", "_HYBRID_SHARD_ZERO2"},
      {"5", "_HYBRID_SHARD_ZERO2"}};
  static const Words kPrefetch = {{"BACKWARD_PRE", "BACKWARD_PRE"},
                                  {"1", "BACKWARD_PRE"},
                                  {"BACKWARD_POST", "BACKWARD_POST"},
                                  {"2", "BACKWARD_POST"},
                                  {"NO_PREFETCH", "NONE"},
                                  {"3", "NONE"},
                                  {"none", "NONE"}};
  static const Words kWrapping = {
      {"TRANSFORMER_BASED_WRAP", "module_class"}, {"SIZE_BASED_WRAP", "size"}, {"NO_WRAP", "none"}};
  static const Words kReshard = {{"true", "true"},
                                 {"false", "false"},
                                 {"full_shard", "true"},
                                 {"hybrid_shard", "true"},
                                 {"shard_grad_op", "false"}};
  if (version_2) {
    r.translate(path("reshard_after_forward"), "fsdp.reshard_after_forward", kReshard);
    r.refuse(path("sharding_strategy"), "version 2 has no strategies; reshard_after_forward says it");
    for (const char* name : {"backward_prefetch", "forward_prefetch", "use_orig_params", "limit_all_gathers"})
      r.refuse(path(name), "version 2 does not have it", name == std::string_view("use_orig_params") ? "true" : "");
  } else {
    r.translate(path("sharding_strategy"), "fsdp.strategy", kStrategies);
    if (r.text(path("sharding_strategy")).empty())  // newer files of version 1 say the strategy there
      r.translate(path("reshard_after_forward"), "fsdp.strategy", kStrategies);
    r.ignore(path("reshard_after_forward"));
    r.translate(path("backward_prefetch"), "fsdp.backward_prefetch", kPrefetch);
    r.copy(path("forward_prefetch"), "fsdp.forward_prefetch");
    r.copy(path("use_orig_params"), "fsdp.use_orig_params");
    r.copy(path("limit_all_gathers"), "fsdp.limit_all_gathers");
  }
  for (const char* name : {"offload_params", "cpu_offload"}) r.copy(path(name), "fsdp.cpu_offload");
  r.translate(path("auto_wrap_policy"), "fsdp.wrap.policy", kWrapping);
  for (const char* name : {"transformer_layer_cls_to_wrap", "transformer_cls_names_to_wrap"})
    if (const JobValue* classes = r.take(path(name))) r.set("fsdp.wrap.classes", text_list(*classes), path(name));
  if (const JobValue* least = r.take(path("min_num_params")); least != nullptr && tree_text(*least) != "0")
    r.set("fsdp.wrap.min_num_params", *least, path("min_num_params"));
  if (const JobValue* ignored = r.take(path("ignored_modules")))
    r.set("fsdp.ignored", text_list(*ignored), path("ignored_modules"));
  if (r.flag(path("activation_checkpointing")))
    r.set_word("checkpointing.policy", "block", path("activation_checkpointing"));
  // How weights get in and out: nothing that a training step shows.
  for (const char* name : {"state_dict_type", "sync_module_states", "cpu_ram_efficient_loading", "version"})
    r.ignore(path(name));
}

namespace {

/// parallelism_config: replicas of shards, and Transformers' tensor parallelism, which cuts neither norms nor the loss.
void read_mesh(Reader& r) {
  const std::string prefix = "parallelism_config.parallelism_config_";
  const std::int64_t replicas = r.integer(prefix + "dp_replicate_size", 1),
                     shards = r.integer(prefix + "dp_shard_size", 1), tensor = r.integer(prefix + "tp_size", 1);
  if (replicas > 1) {
    r.set_word("fsdp.strategy", "HYBRID_SHARD", prefix + "dp_replicate_size");
    r.set_number("cluster.shard_group", shards, prefix + "dp_shard_size");
  }
  if (tensor > 1) {
    r.set_number("mesh.tensor", tensor, prefix + "tp_size");
    r.set_flag("mesh.sequence_parallel", false, prefix + "tp_size");
    r.set_flag("mesh.loss_parallel", false, prefix + "tp_size");
  }
  for (const char* name : {"cp_size", "sp_size"}) r.refuse(prefix + name, "it is not planned", "1");
  for (const char* name : {"cp_comm_strategy", "cp_backend", "sp_backend"}) r.ignore(prefix + name);
}

}  // namespace

void read_accelerate(Reader& r, const JobValue& tree) {
  static_cast<void>(tree);
  for (const char* name :
       {"compute_environment", "debug", "main_training_function", "main_process_ip", "main_process_port",
        "machine_rank", "rdzv_backend", "same_network", "use_cpu", "tpu_env", "tpu_use_cluster", "tpu_use_sudo",
        "gpu_ids", "enable_cpu_affinity", "command_file", "commands", "main_process_port", "fsdp_config.fsdp_version"})
    r.ignore(name);
  const std::string type = r.text("distributed_type");
  const bool fsdp = type.empty() || type == "fsdp";
  const bool version_2 = r.integer("fsdp_config.fsdp_version", 1) == 2;
  r.set_word("fsdp.runtime", !fsdp ? "none" : version_2 ? "fsdp2" : "fsdp1", "distributed_type");
  if (!fsdp && type != "multi_gpu" && type != "no")
    r.note("distributed_type = " + type + " is not FSDP: the job is plain data parallel");

  const std::string precision = r.text("mixed_precision");
  static const Words kTypes = {{"bf16", "bfloat16"}, {"fp16", "float16"}, {"fp8", "bfloat16"}};
  if (precision.empty() || precision == "no" || precision == "false" || precision == "fp32") {
    r.set_word("fsdp.mixed_precision.param", "none", "mixed_precision");
    r.set_word("fsdp.mixed_precision.reduce", "none", "mixed_precision");
  } else {  // the plugin sets all of them alike
    for (const char* key : {"fsdp.mixed_precision.param", "fsdp.mixed_precision.reduce"})
      r.translate("mixed_precision", key, kTypes);
    r.translate("mixed_precision", version_2 ? "fsdp.mixed_precision.output" : "fsdp.mixed_precision.buffer", kTypes);
    if (precision == "fp8") r.note("mixed_precision = fp8: planned as bfloat16, which FSDP communicates");
  }

  const std::int64_t processes = r.integer("num_processes", 0), machines = r.integer("num_machines", 1);
  if (processes > 0) {
    r.set_number("cluster.world_size", processes, "num_processes");
    if (machines > 0 && processes % machines == 0)
      r.set_number("cluster.ranks_per_node", processes / machines, "num_machines");
  }
  r.copy("gradient_accumulation_steps", "train.micro_batches");
  r.copy("gradient_clipping", "train.clip_grad_norm");
  r.refuse("downcast_bf16", "a setting of TPUs");
  const std::string backend = r.text("dynamo_config.dynamo_backend");
  const bool compiled = !backend.empty() && backend != "no";
  if (compiled) r.set_if_built("model.compile", flag_value(true), "dynamo_config.dynamo_backend");
  if (precision == "bf16" || precision == "fp16" || precision == "fp8")
    read_autocast(r, precision == "fp16" ? "float16" : "bfloat16", fsdp && version_2, compiled, "mixed_precision");
  read_plugin(r, "fsdp_config.fsdp_", version_2);
  read_mesh(r);
}

}  // namespace foreshard::import
