#include "tests/oracle/memory/gpu_memory_row.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <stdexcept>

#include "core/adapters/adapted_model.h"
#include "core/job/optimizer_facts.h"
#include "core/mesh/rank_model.h"
#include "core/model/families/config_model.h"
#include "core/model/sources/load_model.h"
#include "core/plan/units/name_patterns.h"
#include "core/traps.h"
#include "core/units.h"
#include "tests/oracle/memory/mlp_model.h"

namespace foreshard::oracle {
namespace {

template <class T>
T get(const Json& object, const char* key, T otherwise) {
  const auto it = object.find(key);
  return it == object.end() || it->is_null() ? otherwise : it->template get<T>();
}

std::optional<DType> dtype_of(const Json& object, const char* key) {
  const auto text = get<std::string>(object, key, "");
  if (text.empty()) return std::nullopt;
  const auto dtype = parse_dtype(text);
  if (!dtype) throw std::runtime_error("unknown dtype " + text);
  return dtype;
}

MixedPrecision precision_of(const Json& fsdp) {
  MixedPrecision mixed = MixedPrecision::none();
  if (!fsdp.contains("mixed_precision") || fsdp["mixed_precision"].is_null()) return mixed;
  const Json& given = fsdp["mixed_precision"];
  mixed.param = dtype_of(given, "param_dtype");
  mixed.reduce = dtype_of(given, "reduce_dtype");
  mixed.buffer = dtype_of(given, "buffer_dtype");
  mixed.output = dtype_of(given, "output_dtype");
  mixed.keep_low_precision_grads = get(given, "keep_low_precision_grads", false);
  if (given.contains("cast_forward_inputs")) mixed.cast_forward_inputs = given["cast_forward_inputs"].get<bool>();
  return mixed;
}

ReshardAfterForward reshard_of(const Json& value) {
  ReshardAfterForward reshard;
  if (value.is_boolean()) {
    reshard.kind = value.get<bool>() ? ReshardAfterForward::Kind::True : ReshardAfterForward::Kind::False;
  } else {
    reshard.kind = ReshardAfterForward::Kind::GroupSize;
    reshard.group_size = value.get<std::int64_t>();
  }
  return reshard;
}

void read_fsdp1(const Json& fsdp, FsdpOptions& options) {
  const auto strategy = parse_strategy(get<std::string>(fsdp, "strategy", "FULL_SHARD"));
  if (!strategy) throw std::runtime_error("unknown strategy");
  options.strategy = *strategy;
  const auto prefetch = get<std::string>(fsdp, "backward_prefetch", "");
  options.backward_prefetch = prefetch == "BACKWARD_PRE"    ? BackwardPrefetch::Pre
                              : prefetch == "BACKWARD_POST" ? BackwardPrefetch::Post
                                                            : BackwardPrefetch::None;
  options.forward_prefetch = get(fsdp, "forward_prefetch", false);
  options.limit_all_gathers = get(fsdp, "limit_all_gathers", true);
  options.use_orig_params = get(fsdp, "use_orig_params", false);
}

void read_fsdp2(const Json& fsdp, FsdpOptions& options) {
  if (fsdp.contains("reshard_after_forward")) options.reshard_after_forward = reshard_of(fsdp["reshard_after_forward"]);
  options.prefetch.forward_depth = get<std::int64_t>(fsdp, "forward_prefetch_depth", 0);
  options.prefetch.backward_depth = get<std::int64_t>(fsdp, "backward_prefetch_depth", 0);
  if (fsdp.contains("root_reshard_after_forward")) {
    UnitOverride root;
    root.units = {""};
    root.reshard_after_forward = reshard_of(fsdp["root_reshard_after_forward"]);
    options.overrides.push_back(root);
  }
}

/// Blocks to checkpoint; the model says which ones there are.
void read_checkpointing(const Json& config, MemoryRow& row) {
  row.job.checkpointing.offload_activations = get(config, "activation_offloading", false);
  if (!config.contains("activation_checkpointing") || config["activation_checkpointing"].is_null()) return;
  const Json& given = config["activation_checkpointing"];
  CheckpointingOptions& options = row.job.checkpointing;
  const auto mode = get<std::string>(given, "mode", "full");
  const bool by_operator = mode == "op" || get(given, "alternate_matmuls", false);
  options.policy = by_operator ? CheckpointPolicy::Ops : CheckpointPolicy::Block;
  options.reentrant = get<std::string>(given, "impl", "NO_REENTRANT") == "REENTRANT";
  // The library checkpoints in a block's __call__: around the hooks of fully_shard, within FSDP1's own module. And
  // fully_shard takes blocks by their class, which their wrappers have not.
  const bool fsdp2 = get(config.at("fsdp"), "version", 1) == 2;
  options.outside = get<std::string>(given, "placement", "inside") == "outside" || fsdp2;
  if (mode == "op") {
    const auto every = get<std::int64_t>(given, "mm_every", 2);
    const std::string product = every > 0 ? "mm:" + std::to_string(every) : "mm";
    if (given.value("save", Json("titan")) == "titan") {
      options.save = {product, "sdpa", "collectives", "max"};
    } else {
      options.save = given["save"].get<std::vector<std::string>>();
      std::replace(options.save.begin(), options.save.end(), std::string("aten.mm"), product);
    }
  }
  const auto classes = get<std::vector<std::string>>(given, "classes", {});
  if (!classes.empty() && classes != row.job.fsdp.wrap.classes)
    row.unplanned = "checkpointed classes that differ from the wrapped ones";
}

/// Blocks k, 2k, ... in order of registration.
void choose_layers(const Json& config, MemoryRow& row) {
  if (!config.contains("activation_checkpointing") || config["activation_checkpointing"].is_null()) return;
  const Json& given = config["activation_checkpointing"];
  if (get<std::string>(given, "mode", "full") != "layer") return;
  const auto classes = get<std::vector<std::string>>(given, "classes", {});
  row.job.checkpointing.policy = CheckpointPolicy::Selective;
  std::int64_t seen = 0;
  for (const ModuleInfo& module : row.model.modules) {
    const bool block = std::find(classes.begin(), classes.end(), module.class_name) != classes.end();
    if (block && ++seen % given.at("every").get<std::int64_t>() == 0) row.job.checkpointing.units.push_back(module.fqn);
  }
  if (row.job.checkpointing.units.empty()) row.job.checkpointing = {};  // fewer than k
}

std::string read_optimizer(const Json& config, TrainOptions& train) {
  const Json& given = config.at("optimizer");
  OptimizerOptions& optimizer = train.optimizer;
  const auto name = get<std::string>(given, "name", "AdamW");
  const bool transformers = name == "transformers.Adafactor";
  static const std::map<std::string, OptimizerKind, std::less<>> kKnown = {
      {"SGD", OptimizerKind::Sgd},         {"Adafactor", OptimizerKind::Adafactor},
      {"Muon", OptimizerKind::Muon},       {"transformers.Adafactor", OptimizerKind::Adafactor},
      {"AdamW", OptimizerKind::AdamW},     {"Adam", OptimizerKind::AdamW},
      {"Adagrad", OptimizerKind::Adagrad}, {"RMSprop", OptimizerKind::RMSprop},
      {"NAdam", OptimizerKind::NAdam},     {"RAdam", OptimizerKind::RAdam},
      {"Adamax", OptimizerKind::Adamax}};
  if (!kKnown.contains(name)) return "optimizer " + name;
  optimizer.name = kKnown.at(name);
  const bool lists = name != "Adafactor";  // unless told: what PyTorch takes on a device
  optimizer.impl = get(given, "fused", false)     ? OptimizerImpl::Fused
                   : get(given, "foreach", lists) ? OptimizerImpl::Foreach
                                                  : OptimizerImpl::ForLoop;
  optimizer.momentum = get(given, "momentum", 0.0);
  optimizer.centered = get(given, "centered", false);
  optimizer.decoupled_weight_decay = get(given, "decoupled_weight_decay", false);
  if (is_other_elementwise(optimizer.name)) {  // torch.optim's own, where rows say nothing: RAdam's step hangs on them
    optimizer.beta1 = given.contains("betas") ? given["betas"][0].get<double>() : 0.9;
    optimizer.beta2 = given.contains("betas") ? given["betas"][1].get<double>() : 0.999;
  }
  const bool decays = name == "AdamW" || name == "Muon";  // unless told
  optimizer.weight_decay = get(given, "weight_decay", decays ? 0.01 : 0.0);
  train.clip_grad_norm = get(config, "clip", 0.0);
  train.grad_scaler.enabled = get(config, "grad_scaler", false);
  if (transformers) optimizer.impl = OptimizerImpl::ForLoop;
  if (optimizer.name == OptimizerKind::Adafactor)
    optimizer.library = transformers ? OptimizerLibrary::Transformers : OptimizerLibrary::Torch;
  if (name == "Muon") {
    if (get<std::int64_t>(given, "ns_steps", 5) != 5 || !get(given, "nesterov", true)) return "Muon's own arguments";
    const Json rest = given.contains("rest") ? given["rest"] : Json::object();
    optimizer.impl = get(rest, "fused", false)    ? OptimizerImpl::Fused
                     : get(rest, "foreach", true) ? OptimizerImpl::Foreach
                                                  : OptimizerImpl::ForLoop;
  }
  if (get(given, "in_backward", false))
    optimizer.impl = get(given, "foreach", false) ? OptimizerImpl::InBackwardForeach : OptimizerImpl::InBackward;
  return "";
}

/// What the recorded loop sets on the root before a micro-batch of fully_shard.
void add_setters(const Json& config, bool last, std::vector<std::string>& texts) {
  const auto call = [&](const char* method) {
    texts.push_back(std::string("call::") + method + (last ? ":true" : ":false"));
  };
  const Json& no_sync = config.contains("no_sync") ? config["no_sync"] : Json(false);
  if (no_sync == "all_reduce_only")
    call("set_requires_all_reduce");
  else if (no_sync == true)
    call("set_requires_gradient_sync");
  const Json& fsdp = config.at("fsdp");
  if (get(fsdp, "set_is_last_backward", false)) call("set_is_last_backward");
  if (get(fsdp, "keep_unsharded_between_micro_batches", false)) call("set_reshard_after_backward");
}

/// The recorded loop: gradients are dropped after the step.
void read_loop(const Json& config, int version, TrainOptions& train) {
  train.micro_batches = get<std::int64_t>(config, "grad_accum", 1);
  train.no_sync = config.contains("no_sync") && config["no_sync"] != false;
  train.zero_grad = get<std::string>(config, "zero_grad", "set_to_none");
  std::vector<std::string> texts;
  for (std::int64_t k = 0; k < train.micro_batches; ++k) {
    const bool last = k + 1 == train.micro_batches;
    const bool hold = train.no_sync && !last && version != 2;
    if (version == 2) add_setters(config, last, texts);
    if (hold) texts.push_back("no_sync{");
    texts.insert(texts.end(), {"fwd", "bwd"});
    if (hold) texts.push_back("}");
  }
  const bool scaled = train.grad_scaler.enabled;
  if (scaled) texts.push_back("unscale");
  if (train.clip_grad_norm > 0) texts.push_back("clip");
  texts.push_back("step");
  if (scaled) texts.push_back("update");
  texts.push_back("zero");
  train.script.assign(static_cast<std::size_t>(get<std::int64_t>(config, "steps", 3)), texts);
}

void read_allocator(const std::string& conf, AllocatorOptions& options) {
  std::istringstream words(conf);
  for (std::string word; std::getline(words, word, ',');) {
    const auto colon = word.find(':');
    const std::string key = word.substr(0, colon), value = colon == std::string::npos ? "" : word.substr(colon + 1);
    if (key == "expandable_segments")
      options.expandable_segments = value == "True" || value == "true";
    else if (key == "max_split_size_mb")
      options.max_split_size_mb = std::stoll(value);
    else if (key == "roundup_power2_divisions")
      options.roundup_power2_divisions = std::stoll(value);
    else if (key == "garbage_collection_threshold")
      options.garbage_collection_threshold = std::stod(value);
  }
}

/// The virtual device's clock, under its own names.
void read_clock(const Json& clock, HardwareProfile& profile) {
  const auto number = [&clock](const char* key, double otherwise) {
    const auto it = clock.find(key);
    if (it == clock.end()) return otherwise;
    return it->is_string() ? std::stod(it->get<std::string>()) : it->get<double>();
  };
  const auto nanoseconds = [&number](const char* key, double otherwise) {
    return static_cast<SimDuration>(number(key, otherwise) * 1000);
  };
  profile.memory_bytes = static_cast<Bytes>(number("FAKEGPU_MEM_GIB", 79.1) * static_cast<double>(kGiB));
  profile.sm_count = static_cast<int>(number("FAKEGPU_SMS", 132));
  profile.launch_ns = nanoseconds("FAKEGPU_LAUNCH_US", 5);
  profile.call_ns = nanoseconds("FAKEGPU_CALL_US", 1);
  profile.driver_alloc_ns = nanoseconds("FAKEGPU_MALLOC_US", 200);
  profile.min_kernel_ns = nanoseconds("FAKEGPU_KERNEL_US", 5);
  profile.hbm_gb_per_s = number("FAKEGPU_HBM_GBPS", 3000);
  profile.host_link_gb_per_s = number("FAKEGPU_PCIE_GBPS", 50);
  profile.host_copy_gb_per_s = number("FAKEGPU_HOST_COPY_GBPS", 10);
  profile.scale_up_gb_per_s = number("FAKEGPU_NCCL_GBPS", 300);
  profile.scale_out_gb_per_s = number("FAKEGPU_NCCL_INTER_GBPS", 100);
  const double half = number("FAKEGPU_TFLOPS_HALF", 600), single = number("FAKEGPU_TFLOPS_SINGLE", 45);
  profile.peak_tflops =
      profile.gemm_tflops = {{DType::Float32, single}, {DType::Float16, half}, {DType::BFloat16, half}};
  profile.extra["query_ns"] = number("FAKEGPU_QUERY_US", 0.5) * 1000;
  profile.extra["ns_per_thread"] = number("FAKEGPU_NS_PER_THREAD", 0.015);
  profile.extra["nccl_latency_ns"] = number("FAKEGPU_NCCL_LAT_US", 20) * 1000;
  profile.extra["cards_per_node"] = number("FAKEGPU_GPUS_PER_NODE", 8);
  profile.extra["context_bytes"] = number("FAKEGPU_CONTEXT_MIB", 0) * static_cast<double>(kMiB);
  profile.extra["nccl_comm_bytes"] = number("FAKEGPU_NCCL_COMM_MIB", 0) * static_cast<double>(kMiB);
  const auto mode = get<std::string>(clock, "FAKEGPU_TIME", "model");
  profile.extra["mode"] = mode == "instant" ? 2 : mode == "lazy" ? 1 : 0;
}

void read_model_options(const Json& config, ModelOptions& options) {
  options.batch = config.at("batch").get<std::int64_t>();
  options.seq = config.at("seq").get<std::int64_t>();
  options.seq_given = true;
  options.dtype = dtype_of(config, "param_dtype").value_or(DType::Float32);
  options.attention = get<std::string>(config, "attn", "sdpa");
  if (options.attention == "flex_attention") options.attention += "_unfused";  // the recorder has no compiler
  options.autocast = dtype_of(config, "autocast");
  options.float32_outputs = get(config, "float32_outputs", false);
}

/// What of it the product has no loss for.
std::string read_loss(const Json& config, ModelOptions& options) {
  options.attention_mask = config.contains("attention_mask") && !config["attention_mask"].is_null();
  options.packed = get(config, "packed", false);
  if (config.contains("loss") && config["loss"].is_object()) {
    const auto kind = config["loss"].at("kind").get<std::string>();
    options.loss_chunks = config["loss"].at("chunks").get<std::int64_t>();
    options.loss = kind == "chunked_logits" ? "chunked_logits_cross_entropy" : "chunked_cross_entropy";
    return kind == "chunked_logits" || kind == "chunked_linear" ? "" : "loss " + kind;
  }
  const auto loss = get<std::string>(config, "loss", "hf");
  if (loss == "hf")
    options.loss = get(config, "num_items", false) ? "per_token" : "auto";
  else if (loss == "ce")
    options.loss = "cross_entropy";
  else if (loss == "ce_fp32")
    options.loss = "cross_entropy_fp32";
  else if (loss == "ce_flat")
    options.loss = "cross_entropy_flat";
  else
    return "loss " + loss;
  return {};
}

/// A plan by patterns, or what the recorder's leaves out of the architecture's own.
void read_plan(const Json& tp, MemoryRow& row) {
  if (tp.at("plan").is_object()) {
    row.job.mesh.plan = tp["plan"].get<std::map<std::string, std::string>>();
    return;
  }
  const bool per_linear = get<std::string>(tp, "input_style", "prepare") == "per_linear";
  const bool whole_head = get(tp, "replicate_head", false);
  std::map<std::string, std::string> plan;
  bool less = false;
  for (const ParallelStyle& style : row.model.parallel) {
    if (style.style == "experts") continue;
    if (!match_names(style.modules, module_names(row.model), "mesh.plan", "module")) continue;
    const bool of_heads = style.modules.ends_with(".q_norm") || style.modules.ends_with(".k_norm");
    const bool left_out = of_heads || (style.style == "gather" && per_linear) || (style.style == "head" && whole_head);
    less = less || left_out;
    if (!left_out) plan[style.modules] = style.style;
  }
  if (less) row.job.mesh.plan = std::move(plan);
}

/// A mesh of named dimensions, the tensor's innermost.
void read_mesh(const Json& config, MemoryRow& row) {
  if (!config.contains("mesh") || config["mesh"].is_null()) return;
  const Json& fsdp = config.at("fsdp");
  std::map<std::string, std::int64_t> sizes;
  for (const Json& dimension : config["mesh"])
    sizes[dimension[0].get<std::string>()] = dimension[1].get<std::int64_t>();
  if (fsdp.contains("flatten") && !fsdp["flatten"].is_null()) {
    for (const auto& [name, parts] : fsdp["flatten"].items()) {
      sizes[name] = 1;
      for (const Json& part : parts) sizes[name] *= sizes.at(part.get<std::string>());
    }
  }
  const auto dims = get<std::vector<std::string>>(fsdp, "mesh_dims", {});
  if (dims.size() == 2) {
    if (!is_hybrid(row.job.fsdp.strategy)) row.job.fsdp.strategy = Strategy::HybridShard;
    row.job.cluster.shard_group = sizes.at(dims[1]);
    row.groups["replicate"] = dims[0];
  }
  if (!dims.empty()) row.groups["shard"] = dims.back();
  row.groups["context"] = "cp";
  if (config.contains("ep") && !config["ep"].is_null()) {
    const Json& over = fsdp.at("experts");  // or a pair: replicated over the first
    const std::string sharded = (over.is_array() ? over.back() : over).get<std::string>();
    row.groups["expert"] = config["ep"].at("mesh").get<std::string>();
    row.groups["expert_shard"] = sharded;
    row.job.mesh.expert = sizes.at(row.groups["expert"]);
    const auto factor = get<std::int64_t>(fsdp, "expert_divide_factor", -1);
    row.job.mesh.expert_divide_factor = factor;
    UnitOverride dim;
    dim.shard_dim["*"] = get<std::int64_t>(fsdp, "expert_shard_dim", 0);
    for (const ParallelStyle& style : row.model.parallel)
      if (style.style == "experts") dim.units.push_back(style.modules);
    row.job.fsdp.overrides.push_back(dim);
  }
  const bool shares = row.job.mesh.expert > 1 || (config.contains("cp") && !config["cp"].is_null());
  if (!shares && fsdp.contains("flatten") && !fsdp["flatten"].is_null()) row.job.mesh.flattened = true;
  if (!config.contains("tp") || config["tp"].is_null()) return;
  const Json& tp = config["tp"];
  row.groups["tensor"] = "tp";
  row.job.mesh.tensor = sizes.at("tp");
  row.job.mesh.sequence_parallel = get(tp, "sequence_parallel", true);
  row.job.mesh.loss_parallel = get(tp, "loss_parallel", false);
  read_plan(tp, row);
}

/// What of it the product has no adapters for.
std::string read_adapters(const Json& config, AdapterOptions& options) {
  if (!config.contains("lora") || config["lora"].is_null()) return {};
  const Json& given = config["lora"];
  options.kind = "lora";
  options.rank = given.at("r").get<std::int64_t>();
  options.alpha = get<double>(given, "alpha", 2.0 * static_cast<double>(options.rank));
  options.dtype = dtype_of(given, "adapter_dtype").value_or(DType::Float32);
  const Json& targets = given.at("targets");
  options.targets = targets.is_string() ? std::vector<std::string>{targets.get<std::string>()}
                                        : targets.get<std::vector<std::string>>();
  options.dropout = get(given, "dropout", 0.0);
  options.modules_to_save = get<std::vector<std::string>>(given, "modules_to_save", {});
  if (!options.modules_to_save.empty() && *options.dtype != dtype_of(config, "param_dtype").value_or(DType::Float32))
    return "copies of modules in another dtype";
  return {};
}

/// peft's fsdp_auto_wrap_policy: the blocks, and every leaf that is trained.
void wrap_adapters(const Model& base, Job& job) {
  const std::vector<std::string> classes = job.fsdp.wrap.classes;
  job.fsdp.wrap = {};
  job.fsdp.wrap.policy = WrapPolicyKind::Units;
  const auto targets = adapter_targets(base, job.adapters), copied = copied_modules(base, job.adapters);
  for (std::size_t m = 0; m < base.modules.size(); ++m) {
    const bool wrapped = job.model.loss.starts_with("chunked_");  // the loss around PEFT's model
    const std::string name = (wrapped ? "model.base_model." : "base_model.model.") + base.modules[m].fqn;
    if (std::find(classes.begin(), classes.end(), base.modules[m].class_name) != classes.end())
      job.fsdp.wrap.units.push_back({name});
    if (copied && (*copied)[m]) job.fsdp.wrap.units.push_back({name + ".modules_to_save.default"});
    if (!targets || !(*targets)[m]) continue;
    job.fsdp.wrap.units.push_back({name + ".lora_A.default"});
    job.fsdp.wrap.units.push_back({name + ".lora_B.default"});
  }
}

/// Units besides the blocks, in the order in which fully_shard is called.
void read_units(const Json& fsdp, MemoryRow& row) {
  FsdpOptions& options = row.job.fsdp;
  const std::vector<std::string> classes = options.wrap.classes;
  options.wrap = {};
  options.wrap.policy = WrapPolicyKind::Units;
  const auto add = [&](bool before) {
    for (const Json& unit : fsdp.at("units")) {
      if (get(unit, "before", false) != before) continue;
      options.wrap.units.push_back(unit.at("modules").get<std::vector<std::string>>());
      if (!unit.contains("reshard_after_forward")) continue;
      UnitOverride change;
      change.units = {options.wrap.units.back().front()};
      change.reshard_after_forward = reshard_of(unit["reshard_after_forward"]);
      options.overrides.push_back(change);
    }
  };
  add(true);
  for (const ModuleInfo& module : row.model.modules) {
    if (std::find(classes.begin(), classes.end(), module.class_name) != classes.end())
      options.wrap.units.push_back({module.fqn});
  }
  add(false);
}

/// The script's depths are along the blocks alone; a job's count all units, of which there are more here.
void prefetch_blocks(const std::vector<std::string>& blocks, PrefetchOptions& prefetch) {
  const auto count = static_cast<std::int64_t>(blocks.size());
  for (std::int64_t i = 0; i < count; ++i) {
    const std::string& block = blocks[static_cast<std::size_t>(i)];
    for (std::int64_t k = i + 1; prefetch.forward_depth > 0 && k < std::min(count, i + 1 + prefetch.forward_depth); ++k)
      prefetch.forward[block].push_back(blocks[static_cast<std::size_t>(k)]);
    for (std::int64_t k = i; k-- > std::max<std::int64_t>(0, i - prefetch.backward_depth);)
      prefetch.backward[block].push_back(blocks[static_cast<std::size_t>(k)]);
  }
  prefetch.forward_depth = prefetch.backward_depth = 0;
}

}  // namespace

MemoryRow read_memory_job(const Json& row) {
  MemoryRow result;
  const Json& config = row.at("config");
  const Json& fsdp = config.at("fsdp");
  Job& job = result.job;
  const auto need = [&result](const std::string& what) {
    if (result.unplanned.empty()) result.unplanned = what;
  };
  const auto given = [&config](const char* key) {
    return config.contains(key) && !config[key].is_null() && config[key] != false;
  };
  if (given("float8")) {
    const Json& float8 = config["float8"];
    job.fsdp.float8_all_gather = !get(float8, "gather", false)      ? "none"
                                 : get(float8, "precompute", false) ? "precomputed"
                                                                    : "dynamic";
    job.model.float8 = float8.at("recipe").get<std::string>();
  }
  const int version = get(fsdp, "version", 1);
  job.fsdp.runtime = version == 1   ? foreshard::Runtime::Fsdp1
                     : version == 2 ? foreshard::Runtime::Fsdp2
                                    : foreshard::Runtime::None;
  job.fsdp.wrap.classes = get<std::vector<std::string>>(fsdp, "wrap", {});
  if (job.fsdp.wrap.classes.empty()) job.fsdp.wrap.policy = WrapPolicyKind::None;
  job.fsdp.mixed_precision = precision_of(fsdp);
  job.fsdp.cpu_offload = get(fsdp, "cpu_offload", false);
  job.fsdp.frozen = get<std::vector<std::string>>(config, "frozen", {});
  job.fsdp.ignored = get<std::vector<std::string>>(config, "ignored", {});
  for (std::int64_t trap = 1; trap <= 64; ++trap) {  // it was run all the same
    if (trap != kMixedMeshes || get(fsdp, "clip_by_mesh", false)) job.fsdp.allow_traps.push_back(trap);
  }
  if (version == 1) read_fsdp1(fsdp, job.fsdp);
  if (version == 2) read_fsdp2(fsdp, job.fsdp);
  read_checkpointing(config, result);
  need(read_optimizer(config, job.train));
  read_loop(config, version, job.train);
  job.cluster.profile = "virtual";
  job.cluster.world_size = get<std::int64_t>(config, "world_size", 8);
  job.cluster.ranks_per_node = get<std::int64_t>(config, "gpus_per_node", 8);
  job.cluster.rank = get<std::int64_t>(config, "rank", 0);
  job.cluster.init = get<std::string>(config, "init", "meta") == "meta" ? "meta" : "device";
  if (given("mesh") && version == 1) job.cluster.init = "parts";  // the script materialises the model itself
  if (fsdp.contains("mesh") && fsdp["mesh"].is_array() && fsdp["mesh"].size() == 2) {
    if (version == 2) job.fsdp.strategy = Strategy::HybridShard;
    job.cluster.shard_group = fsdp["mesh"][1].get<std::int64_t>();
  }
  read_allocator(get<std::string>(config, "alloc_conf", ""), job.allocator);

  const auto profile = load_profile("virtual");
  if (!profile) throw std::runtime_error(to_text(profile.error()));
  result.profile = *profile;
  read_clock(row.value("clock", Json::object()), result.profile);
  return result;
}

void adapt_memory_row(const Json& row, MemoryRow& memory) {
  const Json& config = row.at("config");
  if (const std::string what = read_adapters(config, memory.job.adapters); !what.empty())
    throw std::runtime_error("not planned: " + what);
  if (get(config.at("fsdp"), "peft_policy", false)) wrap_adapters(memory.model, memory.job);
  read_mesh(config, memory);
  auto adapted = adapted_model(std::move(memory.model), memory.job);
  if (!adapted) throw std::runtime_error(to_text(adapted.error()));
  memory.model = std::move(*adapted);
  choose_layers(config, memory);
  std::vector<std::string> units;
  const std::vector<std::string>& classes = memory.job.fsdp.wrap.classes;
  for (const ModuleInfo& module : memory.model.modules)
    if (std::find(classes.begin(), classes.end(), module.class_name) != classes.end()) units.push_back(module.fqn);
  prefetch_blocks(units, memory.job.fsdp.prefetch);
}

void cut_memory_row(const Json& row, MemoryRow& memory) {
  if (!has_adapters(memory.job.adapters)) read_mesh(row.at("config"), memory);
  auto cut = rank_model(std::move(memory.model), memory.job);
  if (!cut) throw std::runtime_error(to_text(cut.error()));
  memory.model = std::move(*cut);
}

MemoryRow read_memory_row(const Json& row) {
  MemoryRow result = read_memory_job(row);
  const Json& config = row.at("config");
  const Json& fsdp = config.at("fsdp");
  Job& job = result.job;
  read_model_options(config, job.model);
  const auto need = [&result](const std::string& what) {
    if (result.unplanned.empty()) result.unplanned = what;
  };
  const auto given = [&config](const char* key) {
    return config.contains(key) && !config[key].is_null() && config[key] != false;
  };
  need(read_adapters(config, job.adapters));
  need(read_loss(config, job.model));

  const Json& shape = config.at("model").at("config");
  const auto type = shape.at("model_type").get<std::string>();
  const auto known = known_model_types();
  const bool own = type == "mlp";
  if (!own && std::find(known.begin(), known.end(), type) == known.end()) need("model family " + type);
  if (!result.unplanned.empty()) return result;
  ProgramOptions program = program_options(job);
  program.asks_for_packed_rows = false;  // record.py answers that question itself
  program.masked_labels = get(config, "labels_masked", false);
  program.full_mask = get<std::string>(config, "attention_mask", "") == "ones";
  if (own) {
    result.model = build_mlp(shape, job.model, program);
  } else {
    const auto document = nlohmann::json::parse(shape.dump());
    if (given("cp")) {
      for (const Json& dimension : config["mesh"])
        if (dimension[0] == "cp") job.mesh.context = dimension[1].get<std::int64_t>();
      if (config["cp"].value("rotate", std::string("allgather")) == "alltoall") job.mesh.context_rotate = "alltoall";
    }
    auto model = model_from_config_json(document, row.at("id").get<std::string>(), rank_model_options(job), program);
    if (!model) throw std::runtime_error(to_text(model.error()));
    result.model = std::move(*model);
  }
  if (get(fsdp, "peft_policy", false)) wrap_adapters(result.model, job);
  read_mesh(config, result);
  if (!result.unplanned.empty()) return result;
  auto adapted = adapted_model(std::move(result.model), job);
  if (!adapted) result.refused = to_text(adapted.error());
  if (!adapted) return result;
  result.model = std::move(*adapted);
  for (const ParamInfo& param : result.model.params) {
    if (param.shares.valid()) continue;
    result.all_params += numel_of(param.shape);
    result.trainable_params += param.requires_grad ? numel_of(param.shape) : 0;
  }
  auto cut = rank_model(std::move(result.model), job, [&](const ModelOptions& part) {
    return model_from_config_json(nlohmann::json::parse(shape.dump()), row.at("id").get<std::string>(), part, program);
  });
  if (!cut) result.refused = to_text(cut.error());
  if (!cut) return result;
  result.model = std::move(*cut);
  choose_layers(config, result);
  const std::vector<std::string> classes = job.fsdp.wrap.classes;
  std::vector<std::string> blocks;
  for (const ModuleInfo& module : result.model.modules)
    if (std::find(classes.begin(), classes.end(), module.class_name) != classes.end()) blocks.push_back(module.fqn);
  if (fsdp.contains("units")) read_units(fsdp, result);
  if (fsdp.contains("units") || fsdp.contains("experts")) prefetch_blocks(blocks, job.fsdp.prefetch);
  if (get(fsdp, "last_block_reshard", true) == false) {
    UnitOverride last;
    if (!blocks.empty()) last.units = {blocks.back()};
    last.reshard_after_forward = ReshardAfterForward{ReshardAfterForward::Kind::False, 0};
    job.fsdp.overrides.push_back(last);
  }
  return result;
}

}  // namespace foreshard::oracle
