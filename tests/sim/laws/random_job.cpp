#include "tests/sim/laws/random_job.h"

#include <array>
#include <cstdio>
#include <fstream>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/adapters/adapted_model.h"
#include "core/job/job_file.h"
#include "core/mesh/rank_model.h"
#include "core/model/families/config_model.h"
#include "core/plan/build_plan.h"
#include "sim/schedule/schedule_search.h"
#include "sim/search/prepare_job.h"
#include "tests/support/temporary_path.h"

namespace foreshard::testing {
namespace {

/// Draws that are the same with every standard library: its distributions are not.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : engine_(seed) {}

  std::uint64_t below(std::uint64_t end) { return engine_() % end; }
  bool chance(int percent) { return below(100) < static_cast<std::uint64_t>(percent); }
  template <class T>
  T one_of(std::initializer_list<T> values) {
    return *(values.begin() + below(values.size()));
  }
  std::string word(std::initializer_list<const char*> values) { return one_of(values); }

 private:
  std::mt19937_64 engine_;
};

ModelSizes draw_sizes(Draw& draw) {
  ModelSizes sizes;
  sizes.family = draw.word({"llama", "llama", "llama", "gpt2", "gpt2", "mixtral", "t5", "vit", "bert", "gpt_neox"});
  sizes.layers = 1 + static_cast<int>(draw.below(5));
  sizes.heads = draw.one_of({2, 4, 6, 12, 32});
  sizes.head_dim = draw.one_of({16, 64, 80, 128});
  sizes.kv_heads = draw.chance(50) ? sizes.heads : 2;
  sizes.inner = draw.one_of({2, 3, 4});
  sizes.vocab = draw.one_of({503, 1003, 32000, 50257});
  sizes.tied = draw.chance(30);
  return sizes;
}

void draw_sharding(Draw& draw, std::vector<std::string>& sets) {
  const std::string runtime = draw.word({"fsdp1", "fsdp1", "fsdp1", "fsdp2", "fsdp2", "fsdp2", "none"});
  sets.push_back("fsdp.runtime=" + runtime);
  const auto world = draw.one_of({1, 2, 3, 4, 6, 8, 16, 64});
  const int node = world % 8 == 0 ? 8 : world % 4 == 0 && draw.chance(30) ? 2 : world;
  sets.push_back("cluster.world_size=" + std::to_string(world));
  sets.push_back("cluster.ranks_per_node=" + std::to_string(node));
  if (draw.chance(30)) sets.push_back("cluster.rank=" + std::to_string(draw.below(static_cast<std::uint64_t>(world))));
  if (draw.chance(35)) {
    sets.push_back("fsdp.strategy=" + draw.word({"SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "_HYBRID_SHARD_ZERO2"}));
    if (world % 4 == 0 && draw.chance(50)) sets.push_back("cluster.shard_group=" + std::to_string(world / 2));
  }
  sets.push_back("fsdp.wrap.policy=" +
                 draw.word({"module_class", "module_class", "module_class", "size", "always", "none"}));
  sets.push_back("fsdp.wrap.min_num_params=" + std::to_string(draw.one_of({100000, 1000000, 100000000})));
  if (draw.chance(40)) {
    const std::array<std::string, 6> kinds{"fsdp.mixed_precision=none",        "fsdp.mixed_precision.param=float16",
                                           "fsdp.mixed_precision.param=none",  "fsdp.mixed_precision.reduce=bfloat16",
                                           "fsdp.mixed_precision.reduce=none", "fsdp.mixed_precision.buffer=bfloat16"};
    sets.push_back(kinds[draw.below(kinds.size())]);
  }
  if (draw.chance(15)) sets.push_back("fsdp.cpu_offload=true");
  if (runtime == "fsdp1") {
    if (draw.chance(40)) sets.push_back("fsdp.backward_prefetch=" + draw.word({"BACKWARD_POST", "NONE"}));
    if (draw.chance(30)) sets.push_back("fsdp.forward_prefetch=true");
    if (draw.chance(30)) sets.push_back("fsdp.limit_all_gathers=false");
    if (draw.chance(30)) sets.push_back("fsdp.use_orig_params=false");
    if (draw.chance(10)) sets.push_back("fsdp.comm_hook=" + draw.word({"fp16_compress", "bf16_compress"}));
  } else if (runtime == "fsdp2") {
    if (draw.chance(40)) sets.push_back("fsdp.reshard_after_forward=" + draw.word({"true", "false", "2"}));
    if (draw.chance(20)) sets.push_back("fsdp.prefetch.forward_depth=2");
    if (draw.chance(20)) sets.push_back("fsdp.prefetch.backward_depth=2");
  }
}

void draw_training(Draw& draw, std::vector<std::string>& sets) {
  if (draw.chance(45)) {
    sets.push_back("checkpointing.policy=" + draw.word({"block", "block", "every_k"}));
    if (draw.chance(40)) sets.push_back("checkpointing.k=2");
    if (draw.chance(15)) sets.push_back("checkpointing.reentrant=true");
    if (draw.chance(15)) sets.push_back("checkpointing.placement=outside");
  }
  if (draw.chance(40)) {
    sets.push_back("train.micro_batches=" + std::to_string(draw.one_of({2, 3, 4})));
    if (draw.chance(50)) sets.push_back("train.no_sync=true");
  }
  sets.push_back("train.optimizer.name=" + draw.word({"adamw", "adamw", "sgd"}));
  sets.push_back("train.optimizer.impl=" + draw.word({"foreach", "foreach", "fused", "for_loop"}));
  if (draw.chance(30)) sets.push_back("train.optimizer.momentum=0.9");
  if (draw.chance(30)) sets.push_back("train.optimizer.weight_decay=0");
  if (draw.chance(50)) sets.push_back("train.clip_grad_norm=0");
  if (draw.chance(20)) sets.push_back("train.zero_grad=zero");
  if (draw.chance(15)) sets.push_back("train.grad_scaler.enabled=true");
}

void draw_machine(Draw& draw, std::vector<std::string>& sets) {
  sets.push_back("cluster.profile=" + draw.word({"h100-sxm-80", "h200-sxm-141", "a100-sxm-80", "a100-pcie-80", "l40s",
                                                 "rtx-4090", "b200", "v100-sxm", "mi300x"}));
  if (draw.chance(50)) sets.push_back("cluster.init=" + draw.word({"device", "host"}));
  if (draw.chance(25)) sets.push_back("cluster.memory=" + std::to_string(2 + draw.below(6)) + "GiB");
  if (draw.chance(20)) sets.push_back("allocator.expandable_segments=true");
  if (draw.chance(8)) sets.push_back("allocator.max_split_size_mb=" + std::to_string(draw.one_of({32, 128})));
  if (draw.chance(8)) sets.push_back("allocator.roundup_power2_divisions=4");
  sets.push_back("model.batch=" + std::to_string(draw.one_of({1, 1, 2, 3, 8})));
  sets.push_back("model.seq=" + std::to_string(draw.one_of({64, 96, 512, 1000, 1024})));
  if (draw.chance(20)) sets.push_back("model.dtype=bfloat16");
  if (draw.chance(30)) sets.push_back("model.attention=" + draw.word({"sdpa_math", "eager", "sdpa_efficient"}));
  if (draw.chance(15)) sets.push_back("model.loss=" + draw.word({"cross_entropy", "cross_entropy_fp32"}));
}

/// Llama cut over neighbouring ranks; FSDP shards what is left over the others.
void draw_mesh(Draw& draw, RandomJob& job) {
  job.sizes.family = "llama";
  job.sizes.kv_heads = job.sizes.heads;
  job.sizes.tied = false;
  const auto tensor = draw.one_of({2, 2, 4});
  const auto data = draw.one_of({1, 2, 4});
  const auto ranks = std::to_string(tensor * data);
  const bool sequence = draw.chance(70);
  job.sets.push_back("fsdp.runtime=fsdp2");
  job.sets.push_back("fsdp.strategy=FULL_SHARD");
  job.sets.push_back("fsdp.cpu_offload=false");
  job.sets.push_back("cluster.world_size=" + ranks);
  job.sets.push_back("cluster.ranks_per_node=" + ranks);
  job.sets.push_back("cluster.shard_group=0");
  job.sets.push_back("cluster.rank=" + std::to_string(draw.below(static_cast<std::uint64_t>(tensor * data))));
  job.sets.push_back("mesh.tensor=" + std::to_string(tensor));
  job.sets.push_back(std::string("mesh.sequence_parallel=") + (sequence ? "true" : "false"));
  if (sequence && draw.chance(50)) job.sets.push_back("mesh.loss_parallel=true");
  if (!sequence) job.sets.push_back("train.clip_grad_norm=0");  // PyTorch fails: norms are on another mesh
}

/// Programs that users exported, small ones.
void draw_archive(Draw& draw, RandomJob& job) {
  job.file = "archives/" +
             draw.word({"own_llama", "nanogpt", "own_vit", "convnext", "unet", "own_dlrm", "gru", "own_lstm_lm",
                        "masked_encoder", "two_towers", "manual_gpt_zloss"}) +
             ".pt2";
  const auto has_own = [](const std::string& set) {
    return set.starts_with("model.batch=") || set.starts_with("model.seq=") || set.starts_with("model.dtype=");
  };
  std::erase_if(job.sets, has_own);
  job.sets.push_back("fsdp.wrap.policy=" + draw.word({"size", "always", "none"}));
  job.sets.push_back("checkpointing.policy=none");
}

/// Models that foreshard.capture saw in a training step (python/tests/models), with the dtypes they were captured in.
void draw_captured(Draw& draw, RandomJob& job) {
  job.file = "captured/" +
             draw.word({"nanogpt", "meta_llama_checkpoint", "two_towers", "unet", "custom_autograd", "manual_gpt_zloss",
                        "masked_encoder", "convnext", "lora_llama", "dense_moe", "dlrm", "resnet_fp32"}) +
             ".json";
  const auto is_captured = [](const std::string& set) {
    return set.starts_with("model.") || set.starts_with("fsdp.mixed_precision");
  };
  std::erase_if(job.sets, is_captured);
  job.sets.push_back("fsdp.wrap.policy=" + draw.word({"size", "always", "none"}));
  job.sets.push_back("checkpointing.policy=none");  // the script's own regions were captured
}

void draw_adapters(Draw& draw, std::vector<std::string>& sets) {
  sets.push_back("adapters.kind=lora");
  sets.push_back("adapters.rank=" + std::to_string(draw.one_of({4, 8, 64})));
  if (draw.chance(60)) sets.push_back("adapters.targets=[\"all-linear\"]");
  if (draw.chance(30)) sets.push_back("adapters.dropout=0.05");
  if (draw.chance(30)) sets.push_back("adapters.dtype=float32");
  if (draw.chance(30)) sets.push_back("adapters.base=nf4");
  if (draw.chance(10)) sets.push_back("adapters.modules_to_save=[\"lm_head\"]");
}

void draw_loss(Draw& draw, std::vector<std::string>& sets) {
  sets.push_back("model.loss=" + draw.word({"per_token", "cross_entropy_flat", "chunked_cross_entropy",
                                            "chunked_logits_cross_entropy", "none"}));
  if (draw.chance(50)) sets.push_back("model.loss_chunks=" + std::to_string(draw.one_of({2, 3})));
}

void draw_autocast(Draw& draw, std::vector<std::string>& sets) {
  sets.push_back("model.autocast=" + draw.word({"bfloat16", "bfloat16", "float16"}));
  sets.push_back("fsdp.mixed_precision=none");
  if (draw.chance(30)) sets.push_back("model.autocast_cache=false");
  if (draw.chance(30)) sets.push_back("model.float32_outputs=true");
}

void draw_saved_ops(Draw& draw, std::vector<std::string>& sets) {
  sets.push_back("checkpointing.policy=ops");
  if (draw.chance(60))
    sets.push_back("checkpointing.save=" +
                   draw.word({"[\"mm\"]", "[\"mm:2\", \"sdpa\"]", "[\"addmm\", \"bmm\"]", "[]"}));
}

void draw_optimizer(Draw& draw, std::vector<std::string>& sets) {
  if (draw.chance(60)) {
    sets.push_back("train.optimizer.name=" + draw.word({"adafactor", "muon", "adamw8bit"}));
    return;
  }
  sets.push_back("train.optimizer.name=" + draw.word({"adamw", "sgd"}));
  sets.push_back("train.optimizer.impl=" + draw.word({"in_backward", "in_backward_foreach"}));
  sets.push_back("train.clip_grad_norm=0");
}

/// Ranks that share a sequence, or experts.
void draw_shared_ranks(Draw& draw, RandomJob& job) {
  const bool experts = draw.chance(50);
  const auto shared = draw.one_of({2, 2, 4});
  const auto ranks = shared * draw.one_of({1, 2, 4});
  job.sizes.family = experts ? draw.word({"mixtral", "titan_moe"}) : draw.word({"llama", "titan_llama"});
  job.sizes.kv_heads = job.sizes.heads;
  job.sizes.tied = false;
  job.sets.insert(job.sets.end(),
                  {"fsdp.runtime=fsdp2", "fsdp.strategy=FULL_SHARD", "fsdp.cpu_offload=false", "cluster.shard_group=0",
                   "cluster.world_size=" + std::to_string(ranks), "cluster.ranks_per_node=" + std::to_string(ranks),
                   "cluster.rank=" + std::to_string(draw.below(static_cast<std::uint64_t>(ranks)))});
  job.sets.push_back((experts ? "mesh.expert=" : "mesh.context=") + std::to_string(shared));
  if (experts) job.sets.push_back("train.clip_grad_norm=0");  // PyTorch fails: norms are on another mesh
  if (experts && draw.chance(40)) job.sets.push_back("mesh.expert_imbalance=1.5");
  if (!experts && draw.chance(50)) job.sets.push_back("mesh.context_rotate=alltoall");
}

/// Everything that a job may say beside the settings above, each in some of the jobs.
void draw_further(Draw& draw, RandomJob& job) {
  if (draw.chance(15)) draw_adapters(draw, job.sets);
  if (draw.chance(15)) draw_loss(draw, job.sets);
  if (draw.chance(20)) draw_optimizer(draw, job.sets);
  if (draw.chance(10)) draw_saved_ops(draw, job.sets);
  if (draw.chance(12)) {
    draw_autocast(draw, job.sets);
  } else if (draw.chance(12)) {
    job.sets.push_back("model.compile=true");
  }
  if (draw.chance(10)) job.sets.push_back("model.attention_mask=true");
  if (draw.chance(10)) job.sets.push_back("train.beside=" + draw.word({"100MiB", "1.5GiB"}));
  if (draw.chance(6)) job.sets.push_back("fsdp.frozen=[\"*norm*\"]");
  if (draw.chance(8)) {
    draw_shared_ranks(draw, job);
  } else if (draw.chance(4)) {
    job.sizes.tied = false;
    job.sets.insert(job.sets.end(), {"fsdp.runtime=planned", "fsdp.strategy=FULL_SHARD"});
  }
}

/// torchtitan's own models, in the words of their configurations.
std::string titan_text(const ModelSizes& s) {
  const int inner = s.inner * s.width();
  nlohmann::json config{{"model_type", "titan_llama"}, {"vocab_size", s.vocab}, {"dim", s.width()}, {"ffn", inner}};
  config.update({{"n_layers", s.layers}, {"n_heads", s.heads}, {"n_kv_heads", s.kv_heads}, {"max_seq", 8192}});
  if (s.family == "titan_moe") config["moe"] = {{"experts", 8}, {"top_k", 2}, {"ffn", inner / 2}};
  return config.dump();
}

}  // namespace

std::string config_text(const ModelSizes& s) {
  if (s.family.starts_with("titan")) return titan_text(s);
  nlohmann::json config{{"model_type", s.family}, {"vocab_size", s.vocab}, {"tie_word_embeddings", s.tied}};
  const int width = s.width(), inner = s.inner * width;
  if (s.family == "gpt2") {
    config.update({{"n_embd", width}, {"n_head", s.heads}, {"n_layer", s.layers}, {"n_positions", 8192}});
    config.update({{"n_inner", inner}, {"activation_function", "gelu_new"}, {"layer_norm_epsilon", 1e-5}});
    config["tie_word_embeddings"] = true;
    return config.dump();
  }
  if (s.family == "t5") {
    config.update({{"d_model", width}, {"d_kv", s.head_dim}, {"d_ff", inner}, {"num_heads", s.heads}});
    config.update({{"num_layers", s.layers}, {"relative_attention_num_buckets", 32}, {"layer_norm_epsilon", 1e-6}});
    config.update({{"dropout_rate", 0.1}, {"is_encoder_decoder", true}});
    return config.dump();
  }
  config.update({{"hidden_size", width}, {"intermediate_size", inner}, {"num_attention_heads", s.heads}});
  config.update({{"num_hidden_layers", s.layers}, {"max_position_embeddings", 8192}});
  if (s.family == "vit") {
    config.update({{"image_size", 64}, {"patch_size", 16}, {"num_channels", 3}, {"hidden_act", "gelu"}});
    config.update({{"layer_norm_eps", 1e-12}, {"id2label", {{"0", "a"}, {"1", "b"}, {"2", "c"}}}});
    config.erase("vocab_size");
  } else if (s.family == "bert") {
    config.update({{"type_vocab_size", 2}, {"hidden_act", "gelu"}, {"layer_norm_eps", 1e-12}});
    config.update({{"architectures", {"BertForMaskedLM"}}});
    config.erase("tie_word_embeddings");
  } else if (s.family == "gpt_neox") {
    config.update({{"hidden_act", "gelu"}, {"layer_norm_eps", 1e-5}, {"rotary_pct", 0.25}, {"rotary_emb_base", 10000}});
    config["tie_word_embeddings"] = false;
  } else {
    config.update({{"num_key_value_heads", s.kv_heads}, {"hidden_act", "silu"}, {"rms_norm_eps", 1e-5}});
    config["rope_theta"] = 10000.0;
    if (s.family == "mixtral") config.update({{"num_local_experts", 4}, {"num_experts_per_tok", 2}});
  }
  return config.dump();
}

static Result<Model> model_of(const RandomJob& random, const Job& job, const HardwareProfile& profile) {
  if (!random.file.empty()) return load_job_model(job, profile);
  const nlohmann::json config = nlohmann::json::parse(config_text(random.sizes));
  auto whole = model_from_config_json(config, "config.json", rank_model_options(job), job_program(job, profile));
  if (whole && has_adapters(job.adapters))
    whole = adapted_model(std::move(*whole), job, job_program(job, profile).device);
  if (!whole || !is_cut(job.mesh)) return whole;
  return rank_model(std::move(*whole), job);
}

RandomJob RandomJob::with(std::vector<std::string> more) const {
  RandomJob changed = *this;
  for (std::string& set : more) changed.sets.push_back(std::move(set));
  return changed;
}

RandomJob RandomJob::resized(const ModelSizes& other) const {
  RandomJob changed = *this;
  changed.sizes = other;
  return changed;
}

std::string RandomJob::text() const {
  std::string text = "seed " + std::to_string(seed) + ": " + (file.empty() ? config_text(sizes) : file);
  for (const std::string& set : sets) text += " --set " + set;
  return text;
}

Result<Job> job_of(const RandomJob& random) {
  const std::string source = random.file.empty() ? "config.json" : FORESHARD_TEST_DATA "/" + random.file;
  auto loaded = parse_job("model.source = \"" + source + "\"\n", "", random.sets);
  if (!loaded) return fail(loaded.error());
  return std::move(loaded->job);
}

RandomJob plain_job(std::uint64_t seed) {
  Draw draw(seed);
  RandomJob job;
  job.seed = seed;
  job.sizes = draw_sizes(draw);
  draw_sharding(draw, job.sets);
  draw_training(draw, job.sets);
  draw_machine(draw, job.sets);
  if (seed % 8 == 0) draw_mesh(draw, job);
  if (seed % 8 == 7) draw_archive(draw, job);
  if (seed % 16 == 9) draw_captured(draw, job);
  if (seed % 64 == 1) {
    job.sizes.family = "llama";  // GPT-2's table, tied across units, is refused
    job.sizes.tied = false;
    job.sets.push_back("fsdp.runtime=planned");
    job.sets.push_back("fsdp.strategy=FULL_SHARD");
  }
  return job;
}

RandomJob random_job(std::uint64_t seed) {
  constexpr std::uint64_t kOtherNumbers = 0x9e3779b97f4a7c15U;
  RandomJob job = plain_job(seed);
  Draw draw(seed ^ kOtherNumbers);
  if (draw.chance(60)) draw_further(draw, job);
  return job;
}

namespace {

/// FSDP shards over half of the ranks that a mesh leaves it, and replicates over the rest.
void draw_hybrid_mesh(Draw& draw, RandomJob& job) {
  draw_mesh(draw, job);
  const auto tensor = draw.one_of({1, 2}), data = draw.one_of({4, 8});
  const std::string ranks = std::to_string(tensor * data);
  job.sets.insert(job.sets.end(), {"mesh.tensor=" + std::to_string(tensor), "cluster.world_size=" + ranks,
                                   "cluster.ranks_per_node=" + ranks, "cluster.rank=0", "fsdp.strategy=HYBRID_SHARD",
                                   "cluster.shard_group=" + std::to_string(data / 2)});
  if (tensor == 1) job.sets.insert(job.sets.end(), {"mesh.sequence_parallel=false", "mesh.loss_parallel=false"});
}

}  // namespace

RandomJob scheduled_job(std::uint64_t seed) {
  constexpr std::uint64_t kFurtherNumbers = 0xd1b54a32d192ed03U;
  RandomJob job = plain_job(seed);
  Draw draw(seed ^ kFurtherNumbers);
  const auto over = draw.below(5);
  if (over < 3) job.file.clear();  // programs of their own have plans of their own
  if (over == 0) draw_mesh(draw, job);
  if (over == 1) draw_shared_ranks(draw, job);
  if (over == 2) draw_hybrid_mesh(draw, job);
  if (draw.chance(30)) draw_adapters(draw, job.sets);
  if (draw.chance(30)) draw_optimizer(draw, job.sets);
  if (draw.chance(10)) draw_saved_ops(draw, job.sets);
  if (draw.chance(10)) draw_autocast(draw, job.sets);
  if (draw.chance(10)) job.sets.push_back("model.compile=true");
  if (draw.chance(15)) job.sets.push_back("checkpointing.offload_activations=true");
  if (draw.chance(15)) job.sets.push_back("model.packed=true");
  if (draw.chance(25)) job.sets.push_back("cluster.memory=" + std::to_string(2 + draw.below(6)) + "GiB");
  return job;
}

Result<RandomJob> settled(const RandomJob& random, const HardwareProfile& profile) {
  auto job = job_of(random);
  if (!job) return fail(job.error());
  if (job->fsdp.runtime != Runtime::Planned) return random;
  job->model.source = temporary_path("planned-" + std::to_string(random.seed) + ".json");
  std::ofstream(job->model.source) << config_text(random.sizes);
  const auto model = load_job_model(*job, profile);
  if (!model) return fail(model.error());
  const auto found = settle_job(*job, *model, profile);
  std::remove(job->model.source.c_str());
  if (!found) return fail(found.error());
  RandomJob answer = random;
  answer.sets.clear();
  for (std::size_t k = 0; k < job_keys().size(); ++k) {
    const std::string& name = job_keys()[k].name;
    if (name == "model.source" || (name == "model.seq" && !found->job.model.seq_given)) continue;
    answer.sets.push_back(name + "=" + write_job_key(k, found->job));
  }
  return answer;
}

Result<RandomCase> make_case(const RandomJob& random, const HardwareProfile& profile) {
  auto job = job_of(random);
  if (!job) return fail(job.error());
  auto model = model_of(random, *job, profile);
  if (!model) return fail(model.error());
  auto plan = build_plan(*model, *job);
  if (!plan) return fail(plan.error());
  auto lowered = lower_plan(*model, *plan, *job, profile);
  if (!lowered) return fail(lowered.error());
  return RandomCase{std::move(*job), std::move(*model), std::move(*plan), std::move(*lowered)};
}

}  // namespace foreshard::testing
