// From a published row to a job: every rule holds for the whole table, none for one row.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/calibrate/measured_run.h"
#include "cli/calibrate/training_code.h"
#include "sim/machine/profile.h"

namespace foreshard::cli {
namespace {

constexpr std::int64_t kNumerator = 3;  // of 1/3: what recomputing everything adds to a step's operations

bool starts(const std::string& text, std::string_view word) { return text.starts_with(word); }

bool is_gpt(const std::string& model) {
  return starts(model, "mpt-") || starts(model, "gpt-") || starts(model, "gpt3");
}

std::optional<DType> dtype_of(const std::string& name) {
  if (name == "bf16") return DType::BFloat16;
  if (name == "fp16") return DType::Float16;
  if (name == "fp32") return DType::Float32;
  return std::nullopt;
}

/// The number behind `key=` in free text.
std::optional<double> noted_number(const std::string& notes, std::string_view key) {
  const std::size_t at = notes.find(key);
  if (at == std::string::npos) return std::nullopt;
  double value = 0;
  const char* begin = notes.data() + at + key.size();
  const auto [end, error] = std::from_chars(begin, notes.data() + notes.size(), value);
  return error == std::errc() && end != begin ? std::optional(value) : std::nullopt;
}

/// The word behind `key=` in free text, up to a space, a comma or a semicolon; "" if absent.
std::string noted_word(const std::string& notes, std::string_view key) {
  const std::size_t at = notes.find(key);
  if (at == std::string::npos) return {};
  const std::size_t begin = at + key.size(), end = notes.find_first_of(" ,;", begin);
  return notes.substr(begin, end == std::string::npos ? end : end - begin);
}

/// Whether free text says that something was on: "no WORD", "without WORD" and "WORD off" say that it was not.
bool tells(const std::string& notes, std::string_view word) {
  const std::size_t at = notes.find(word);
  if (at == std::string::npos) return false;
  const std::string before = notes.substr(0, at), behind = notes.substr(at + word.size());
  return !before.ends_with("no ") && !before.ends_with("without ") && !starts(behind, " off");
}

/// GB/s per GPU of the network between nodes: "...; 400 Gb/s per node", "2 Tb/s RoCE per node", "400 Gb/s per GPU".
double network_of(const MeasuredRun& run) {
  const std::size_t network = run.interconnect.find(';');
  if (network == std::string::npos) return 0;
  const std::string text = run.interconnect.substr(network + 1);
  for (const auto& [unit, gigabits] : {std::pair<std::string_view, double>{" Gb/s", 1.0}, {" Tb/s", 1000.0}}) {
    const std::size_t at = text.find(unit);
    if (at == std::string::npos) continue;
    std::size_t begin = at;
    while (begin > 0 && (std::isdigit(static_cast<unsigned char>(text[begin - 1])) != 0 || text[begin - 1] == '.'))
      --begin;
    double value = 0;
    std::from_chars(text.data() + begin, text.data() + at, value);
    const bool per_node = text.find("per node", at) != std::string::npos;
    return value * gigabits / 8 / static_cast<double>(per_node ? std::max<std::int64_t>(run.gpus_per_node, 1) : 1);
  }
  return 0;
}

/// A plain decoder with a head of its own, as torchtitan's Llama.
bool is_llama(const MeasuredRun& run) {
  return (starts(run.model, "llama") || starts(run.model, "gpt2-small-titan")) && !run.tied;
}

TrainingCode code_of(const MeasuredRun& run) {
  return training_code(run.source, run.runtime != "single" && is_llama(run));
}

/// Names of modules in the classes that ran.
struct ModuleNames {
  std::string blocks, embedding, norm, head;
};
ModuleNames module_names(const MeasuredRun& run) {
  if (is_gpt(run.model)) return {"transformer.h.", "transformer.wte", "transformer.ln_f", "lm_head"};
  if (code_of(run).titan_model) return {"layers.", "tok_embeddings", "norm", "output"};
  return {"model.layers.", "model.embed_tokens", "model.norm", "lm_head"};
}

std::string out_of_scope(const MeasuredRun& run) {
  if (run.tp > 1 && run.gpus % run.tp != 0) return "tensor parallelism (tp) does not divide the GPUs";
  if (run.pp > 1) return "pipeline parallelism (pp = " + std::to_string(run.pp) + ") is outside the scope";
  if (run.cp > 1) return "context parallelism (cp = " + std::to_string(run.cp) + ") is outside the scope";
  if (run.ep > 1) return "expert parallelism (ep = " + std::to_string(run.ep) + ") is outside the scope";
  if (run.runtime == "ddp") return "runtime ddp is outside the scope";
  if (run.runtime == "graph_trainer") return "graph_trainer (compiler-captured FSDP) is outside the scope";
  if (run.runtime != "fsdp1" && run.runtime != "fsdp2" && run.runtime != "single")
    return "runtime " + (run.runtime.empty() ? "is not recorded" : run.runtime + " is outside the scope");
  if (run.layers == 0 || run.hidden == 0 || run.heads == 0 || run.ffn == 0 || run.vocab == 0)
    return "the shape of the model is not recorded";
  if (run.gpus == 0) return "the number of GPUs is not recorded";
  if (run.batch == 0) return "the local batch is not recorded";
  return {};
}

class JobWriter {
 public:
  explicit JobWriter(const MeasuredRun& run) : run_(run), code_(code_of(run)), names_(module_names(run)) {}

  tl::expected<MeasuredJob, Skipped> write() {
    const std::string reason = out_of_scope(run_);
    if (!reason.empty()) return tl::unexpected(Skipped{reason});
    model();
    adapters();
    float8();
    fsdp();
    if (!sharding()) return tl::unexpected(Skipped{"sharding " + run_.sharding + " is not known"});
    if (!checkpointing()) return tl::unexpected(Skipped{"checkpointing " + run_.checkpointing + " is not known"});
    training();
    cluster();
    mesh();
    made_.code = code_.name;
    made_.compiled = run_.compile == "1";
    made_.norm_open = code_.norm_open && code_.titan_model && !made_.compiled;
    if (run_.compile.empty()) assume("eager: compile is not recorded", false);
    allocator();
    return made_;
  }

 private:
  void assume(std::string text, bool decides_memory) {
    made_.assumed.push_back(std::move(text));
    if (decides_memory) made_.memory_complete = false;
  }

  void model() {
    ModelOptions& options = made_.job.model;
    options.source = run_.model;
    options.batch = run_.batch;
    options.seq = run_.seq > 0 ? run_.seq : run_.encoder_layers > 0 ? 512 : 2048;
    if (run_.seq == 0) {
      assume("sequences of " + std::to_string(options.seq) + " tokens", true);
      made_.time_complete = false;
    }
    options.seq_given = true;
    const bool single = run_.runtime == "single";
    options.dtype = dtype_of(run_.master_dtype.empty() && single ? run_.param_dtype : run_.master_dtype);
    if (!options.dtype) {
      options.dtype = DType::Float32;
      assume("float32 shards", true);
    }
    loss();
  }

  /// "lora r=16 alpha=32 targets=*_proj": of a row that does not say them, what PEFT's LoraConfig and its table of
  /// targets have by themselves.
  void adapters() {
    const std::string all = run_.memory_notes + "; " + run_.notes;
    const bool stated = run_.memory_notes.find("lora ") != std::string::npos;
    if (!stated && !tells(run_.notes, "LoRA")) return;
    AdapterOptions& options = made_.job.adapters;
    options.kind = "lora";
    for (std::string* name : {&names_.blocks, &names_.embedding, &names_.norm, &names_.head})
      *name = "base_model.model." + *name;  // PEFT's
    options.rank = static_cast<std::int64_t>(noted_number(all, " r=").value_or(8));
    options.alpha = noted_number(all, "alpha=").value_or(8);
    options.dropout = noted_number(all, "dropout=").value_or(0);
    const std::string targets = noted_word(all, "targets=");
    if (!targets.empty()) options.targets = {targets};
    options.dtype = std::nullopt;
    if (targets.empty() || !noted_number(all, " r=")) assume("adapters of rank 8 beside q_proj and v_proj", true);
    if (tells(all, "nf4") || tells(all, "QLoRA")) options.base = "nf4";
  }

  /// Linear layers in 8 bits, whatever library took them there.
  void float8() {
    const std::string all = run_.memory_notes + "; " + run_.notes + "; " + run_.param_dtype;
    if (!tells(all, "float8") && !tells(all, "fp8")) return;
    made_.job.model.float8 = tells(all, "rowwise") ? "rowwise" : "tensorwise";
    made_.assumed.emplace_back("linear layers in float8, gathered in 16 bits");
  }

  /// How the source holds logits and loss: stated, or (README of the tables, section 3) known of the family. Training
  /// scripts of their own take the loss of the logits as they come; only Transformers' models cast them.
  void loss() {
    std::string& loss = made_.job.model.loss;
    const std::string noted = run_.memory_note("loss");
    const bool torchtitan = starts(run_.source, "torchtitan");
    const bool own = code_.name == "Transformers" || run_.encoder_layers > 0;
    loss = torchtitan ? code_.casts_in_model ? "cross_entropy_fp32" : "cross_entropy_flat"
           : own      ? "auto"
                      : "cross_entropy";
    if (!torchtitan && (starts(noted, "full_logits_fp32") || starts(noted, "fp32_logits"))) loss = "cross_entropy_fp32";
    made_.hold_logits = !code_.drops_logits;
    made_.hold_float_logits = torchtitan && code_.casts_in_model && !code_.drops_logits;
    if (starts(noted, "chunked")) {
      if (code_.chunked_loss && code_.titan_model) {
        loss = "chunked_cross_entropy";
        // The script's own module, of model and loss, is the root then.
        for (std::string* name : {&names_.blocks, &names_.embedding, &names_.norm, &names_.head})
          *name = "model." + *name;
      } else {
        assume("the loss on whole logits, not in chunks", true);
      }
    }
    if (torchtitan && noted.empty()) assume("the loss on whole float32 logits", true);
    if (run_.notes.find("autocast") != std::string::npos) assume("mixed precision in place of autocast", true);
  }

  void fsdp() {
    FsdpOptions& fsdp = made_.job.fsdp;
    if (code_.early_fsdp2) fsdp.quirks = "torch-2.4";
    fsdp.runtime = run_.runtime == "fsdp1" ? Runtime::Fsdp1 : run_.runtime == "fsdp2" ? Runtime::Fsdp2 : Runtime::None;
    const auto param = dtype_of(run_.param_dtype), reduce = dtype_of(run_.reduce_dtype);
    if (!param && fsdp.runtime != Runtime::None) assume("bfloat16 parameters and float32 reductions", true);
    if (param) fsdp.mixed_precision.param = param;
    if (reduce) fsdp.mixed_precision.reduce = reduce;
    if (fsdp.runtime == Runtime::Fsdp1) {
      if (run_.backward_prefetch == "post") fsdp.backward_prefetch = BackwardPrefetch::Post;
      if (run_.backward_prefetch == "none") fsdp.backward_prefetch = BackwardPrefetch::None;
      fsdp.forward_prefetch = run_.forward_prefetch == "1";
      fsdp.limit_all_gathers = run_.limiter != "0";
    }
    // A tied head shares its weight with the embedding: both stay in the root unit, as every block is one unit.
    fsdp.allow_traps = {};
    if (head_unit()) {
      fsdp.wrap.policy = WrapPolicyKind::Units;
      fsdp.wrap.units = {{names_.embedding}, {names_.blocks + "*"}, {names_.head}};
      // A loss in pieces calls the head for each of them, and the norm once.
      if (!in_pieces()) fsdp.wrap.units.back().insert(fsdp.wrap.units.back().begin(), names_.norm);
    }
  }

  /// A tied head belongs to no unit but the root.
  bool head_unit() const { return code_.head_unit && run_.runtime == "fsdp2" && !run_.tied; }

  bool in_pieces() const { return made_.job.model.loss.starts_with("chunked_"); }

  void last_block(bool reshard) {
    UnitOverride last;
    last.units = {head_unit() ? in_pieces() ? names_.head : names_.norm
                              : names_.blocks + std::to_string(run_.layers - 1)};
    last.reshard_after_forward =
        ReshardAfterForward{reshard ? ReshardAfterForward::Kind::True : ReshardAfterForward::Kind::False, 0};
    made_.job.fsdp.overrides.push_back(last);
  }

  bool sharding() {
    FsdpOptions& fsdp = made_.job.fsdp;
    const std::size_t space = run_.sharding.find(' ');
    const std::string kind = run_.sharding.substr(0, space);
    const std::string reshard = space == std::string::npos ? "" : run_.sharding.substr(space + 1);
    if (kind == "shard_grad_op") {
      if (fsdp.runtime == Runtime::Fsdp1) {
        fsdp.strategy = Strategy::ShardGradOp;
      } else {
        fsdp.reshard_after_forward.kind = ReshardAfterForward::Kind::False;
      }
    } else if (kind == "no_shard") {
      if (fsdp.runtime == Runtime::Fsdp1) fsdp.strategy = Strategy::NoShard;
      if (fsdp.runtime == Runtime::Fsdp2) return false;
    } else if (starts(kind, "hybrid_shard:")) {
      fsdp.strategy = Strategy::HybridShard;
      const auto group = noted_number(kind, "hybrid_shard:");
      if (!group || *group < 1 || *group > 1e6) return false;
      made_.job.cluster.shard_group = static_cast<std::int64_t>(*group);
    } else if (kind != "full_shard") {
      return false;
    }
    if (fsdp.runtime != Runtime::Fsdp2) return true;
    if (reshard == "reshard=never") fsdp.reshard_after_forward.kind = ReshardAfterForward::Kind::False;
    if (reshard == "reshard=all_but_last_block") last_block(false);
    if (reshard == "reshard=always") {
      UnitOverride root;
      root.units = {""};
      root.reshard_after_forward = ReshardAfterForward{};
      fsdp.overrides.push_back(root);
    }
    return true;
  }

  bool checkpointing() {
    CheckpointingOptions& options = made_.job.checkpointing;
    std::string kind = run_.checkpointing;
    if (kind.empty()) {
      const bool selective = run_.notes.find("default is selective_op") != std::string::npos;
      kind = selective ? "selective_op" : "none";
      assume(selective ? "checkpointing selective_op, the source's default" : "no checkpointing", true);
      made_.time_complete = made_.time_complete && selective;
    }
    if (kind == "none") return true;
    if (kind == "full") {
      options.policy = CheckpointPolicy::Block;
      return true;
    }
    if (kind == "selective_op") {
      options.policy = CheckpointPolicy::Ops;
      return true;
    }
    std::optional<double> every = noted_number(kind, "every_");
    if (kind == "selective_block") {
      // Of the block operations a share is recomputed: HFU / MFU = 1 + share / 3.
      const auto hfu = noted_number(run_.notes, "hfu=");
      if (!hfu || !mfu()) return false;
      const double share = kNumerator * (*hfu / *mfu() - 1);
      every = share > 0.05 ? std::round(1 / share) : 0;
      if (*every == 0) return true;
      assume("every " + std::to_string(static_cast<int>(*every)) + ". block checkpointed, from HFU and MFU", true);
    }
    if (!every || *every < 1 || *every > 1e6) return false;
    options.policy = CheckpointPolicy::EveryK;
    options.k = static_cast<std::int64_t>(*every);
    return true;
  }

  std::optional<double> mfu() const { return run_.mfu; }

  void training() {
    TrainOptions& train = made_.job.train;
    train.steps = 3;
    train.micro_batches = std::max<std::int64_t>(run_.micro_batches, 1);
    if (run_.micro_batches == 0) assume("one microbatch a step", false);
    train.no_sync = train.micro_batches > 1 && starts(run_.memory_note("grad_sync"), "last_microbatch_only");
    OptimizerOptions& optimizer = train.optimizer;
    if (run_.optimizer == "adamw_fused") optimizer.impl = OptimizerImpl::Fused;
    if (run_.optimizer == "decoupled_adamw") optimizer.impl = OptimizerImpl::ForLoop;
    if (run_.optimizer.empty()) assume("AdamW", true);
    if (run_.optimizer == "adamw") assume("AdamW's default implementation (foreach)", false);
    made_.time_is_of_step = run_.notes.find("not a whole training step") == std::string::npos;
    if (!made_.time_is_of_step) {
      train.script.assign(static_cast<std::size_t>(train.steps), {"fwd", "bwd", "zero"});
      train.clip_grad_norm = 0;
    }
  }

  void cluster() {
    ClusterOptions& cluster = made_.job.cluster;
    const bool of_four = code_.boards_of_four || (run_.gpus_per_node == 4 && run_.gpus > 4);
    if (code_.old_kernels)
      cluster.profile = profile_variant(run_.gpu, kOldKernels);
    else
      cluster.profile = of_four ? profile_variant(run_.gpu, kBoardOfFour) : "";
    if (cluster.profile.empty()) cluster.profile = run_.gpu;
    cluster.world_size = run_.gpus;
    cluster.ranks_per_node = run_.gpus_per_node > 0 ? run_.gpus_per_node : 8;
    made_.network_gb_per_s = network_of(run_);
  }

  /// As torchtitan's defaults: sequence and loss parallel.
  void mesh() {
    if (run_.tp <= 1) return;
    made_.job.mesh.tensor = run_.tp;
    if (code_.notes_uses) assume("no block kept until the device has passed the tensor ranks' collectives", true);
    if (starts(run_.source, "torchtitan")) return;
    if (!code_.tensor_plan.empty()) {
      made_.job.mesh.loss_parallel = false;
      made_.job.mesh.plan = code_.tensor_plan;
      return;
    }
    assume("sequence and loss parallel beside tensor parallelism", true);
  }

  void allocator() {
    const std::string noted = run_.memory_note("alloc_conf");
    made_.job.allocator.expandable_segments =
        noted.empty() ? code_.expandable_segments : noted.find("expandable_segments:True") != std::string::npos;
  }

  const MeasuredRun& run_;
  const TrainingCode code_;
  ModuleNames names_;
  MeasuredJob made_;
};

}  // namespace

nlohmann::json model_document(const MeasuredRun& run, bool other_norm) {
  const std::int64_t seq = run.seq > 0 ? run.seq : 2048;
  if (run.encoder_layers > 0) {
    return {{"model_type", "t5"},
            {"d_model", run.hidden},
            {"d_kv", 128},
            {"d_ff", run.ffn},
            {"num_heads", run.heads},
            {"num_layers", run.encoder_layers},
            {"num_decoder_layers", run.layers},
            {"vocab_size", run.vocab},
            {"dropout_rate", 0.0},
            {"tie_word_embeddings", true}};
  }
  if (is_gpt(run.model)) {
    return {{"model_type", "gpt2"}, {"n_embd", run.hidden},    {"n_layer", run.layers}, {"n_head", run.heads},
            {"n_inner", run.ffn},   {"vocab_size", run.vocab}, {"n_positions", seq},    {"activation_function", "gelu"},
            {"embd_pdrop", 0.0},    {"resid_pdrop", 0.0},      {"attn_pdrop", 0.0},     {"tie_word_embeddings", true}};
  }
  const TrainingCode code = code_of(run);
  if (code.titan_model) {
    return {{"model_type", "titan_llama"},
            {"dim", run.hidden},
            {"n_layers", run.layers},
            {"n_heads", run.heads},
            {"n_kv_heads", run.kv_heads},
            {"ffn", run.ffn},
            {"max_seq", seq},
            {"vocab_size", run.vocab},
            {"fused_norm", code.fused_norm != other_norm}};
  }
  const std::string type = starts(run.model, "qwen3")     ? "qwen3"
                           : starts(run.model, "qwen2")   ? "qwen2"
                           : starts(run.model, "mistral") ? "mistral"
                                                          : "llama";
  nlohmann::json document = {{"model_type", type},
                             {"hidden_size", run.hidden},
                             {"intermediate_size", run.ffn},
                             {"num_hidden_layers", run.layers},
                             {"num_attention_heads", run.heads},
                             {"num_key_value_heads", run.kv_heads},
                             {"vocab_size", run.vocab},
                             {"max_position_embeddings", seq},
                             {"rms_norm_eps", 1e-5},
                             {"tie_word_embeddings", run.tied}};
  const auto head = noted_number(run.notes, "head_dim=");
  document["head_dim"] = head ? static_cast<std::int64_t>(*head) : run.hidden / std::max<std::int64_t>(run.heads, 1);
  return document;
}

tl::expected<MeasuredJob, Skipped> job_of(const MeasuredRun& run) { return JobWriter(run).write(); }

}  // namespace foreshard::cli
