// accelerate's configuration file, with its FSDP plugin; and the plugin's words, which Transformers shares.
#include "core/job/export/export_writer.h"

namespace foreshard::exporting {
namespace {

void put_parallel_sizes(const Job& job, JobValue& tree) {
  const bool hybrid = job.fsdp.strategy == Strategy::HybridShard || job.fsdp.strategy == Strategy::HybridShardZero2;
  if (job.fsdp.runtime == Runtime::Fsdp1 || (!hybrid && job.mesh.tensor == 1)) return;
  const std::int64_t shards = shard_ranks(job);
  const auto put = [&](const char* name, std::int64_t ranks) {
    put_in_tree(tree, std::string("parallelism_config.parallelism_config_") + name, tree_integer(ranks));
  };
  put("dp_replicate_size", job.cluster.world_size / job.mesh.tensor / shards);
  put("dp_shard_size", shards);
  put("tp_size", job.mesh.tensor);
  put("cp_size", 1);
}

}  // namespace

void put_plugin(const Job& job, const std::string& prefix, JobValue& tree) {
  const auto put = [&](const char* name, JobValue value) { put_in_tree(tree, prefix + name, std::move(value)); };
  if (job.fsdp.runtime != Runtime::Fsdp1) {
    put("reshard_after_forward", tree_flag(job.fsdp.reshard_after_forward.kind != ReshardAfterForward::Kind::False));
  } else {
    static const std::vector<std::pair<BackwardPrefetch, std::string_view>> kPrefetch = {
        {BackwardPrefetch::Pre, "BACKWARD_PRE"},
        {BackwardPrefetch::Post, "BACKWARD_POST"},
        {BackwardPrefetch::None, "NO_PREFETCH"}};
    put("backward_prefetch", tree_text_value(word_of(kPrefetch, job.fsdp.backward_prefetch)));
    put("forward_prefetch", tree_flag(job.fsdp.forward_prefetch));
    put("use_orig_params", tree_flag(job.fsdp.use_orig_params));
  }
  switch (job.fsdp.wrap.policy) {
    case WrapPolicyKind::None: put("auto_wrap_policy", tree_text_value("NO_WRAP")); break;
    case WrapPolicyKind::Size:
      put("auto_wrap_policy", tree_text_value("SIZE_BASED_WRAP"));
      put("min_num_params", tree_integer(job.fsdp.wrap.min_num_params));
      break;
    default: put("auto_wrap_policy", tree_text_value("TRANSFORMER_BASED_WRAP"));
  }
  put("activation_checkpointing",
      tree_flag(job.checkpointing.policy == CheckpointPolicy::Block && !job.checkpointing.reentrant));
  put("state_dict_type", tree_text_value("SHARDED_STATE_DICT"));
}

JobValue accelerate_tree(const Job& job) {
  JobValue tree;
  const auto put = [&](const char* path, JobValue value) { put_in_tree(tree, path, std::move(value)); };
  const bool fsdp = job.fsdp.runtime != Runtime::None;
  put("compute_environment", tree_text_value("LOCAL_MACHINE"));
  put("distributed_type", tree_text_value(fsdp ? "FSDP" : "MULTI_GPU"));
  put("num_machines", tree_integer(nodes_of(job)));
  put("num_processes", tree_integer(job.cluster.world_size));
  put("mixed_precision", tree_text_value(one_precision(job)));
  put("main_training_function", tree_text_value("main"));
  if (!fsdp) return tree;
  const bool version_1 = job.fsdp.runtime == Runtime::Fsdp1;
  put("fsdp_config.fsdp_version", tree_integer(version_1 ? 1 : 2));
  if (version_1) {
    static const std::vector<std::pair<Strategy, std::string_view>> kStrategies = {
        {Strategy::FullShard, "FULL_SHARD"},
        {Strategy::ShardGradOp, "SHARD_GRAD_OP"},
        {Strategy::NoShard, "NO_SHARD"},
        {Strategy::HybridShard, "HYBRID_SHARD"},
        {Strategy::HybridShardZero2, "HYBRID_SHARD_ZERO2"}};
    put("fsdp_config.fsdp_sharding_strategy", tree_text_value(word_of(kStrategies, job.fsdp.strategy)));
  }
  put("fsdp_config.fsdp_offload_params", tree_flag(job.fsdp.cpu_offload));
  put_plugin(job, "fsdp_config.fsdp_", tree);
  std::string classes;
  for (const std::string& name : job.fsdp.wrap.classes) classes += (classes.empty() ? "" : ",") + name;
  if (!classes.empty() && job.fsdp.wrap.policy == WrapPolicyKind::ModuleClass)
    put("fsdp_config.fsdp_transformer_layer_cls_to_wrap", tree_text_value(classes));
  put_parallel_sizes(job, tree);
  return tree;
}

}  // namespace foreshard::exporting
