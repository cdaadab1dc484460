#include "shadow/found_job.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <optional>

#include "core/job/job_keys.h"
#include "shadow/found_script.h"

namespace foreshard::shadow {
namespace {

std::optional<DType> dtype_of(const std::string& word) { return word == "none" ? std::nullopt : parse_dtype(word); }

MixedPrecision precision_of(const FoundUnit& unit, Runtime runtime) {
  MixedPrecision precision = MixedPrecision::none();
  precision.param = dtype_of(unit.param);
  precision.reduce = dtype_of(unit.reduce);
  precision.buffer = dtype_of(unit.buffer);
  precision.output = dtype_of(unit.output);
  precision.keep_low_precision_grads = unit.keep_low_precision_grads;
  if (unit.cast_forward_inputs != (runtime == Runtime::Fsdp2)) precision.cast_forward_inputs = unit.cast_forward_inputs;
  return precision;
}

ReshardAfterForward reshard_of(const FoundUnit& unit) {
  using Kind = ReshardAfterForward::Kind;
  if (unit.reshard_after_forward <= 1) return {unit.reshard_after_forward == 1 ? Kind::True : Kind::False, 0};
  return {Kind::GroupSize, unit.reshard_after_forward};
}

bool is_root(const FoundUnit& unit) {
  return std::find(unit.modules.begin(), unit.modules.end(), "") != unit.modules.end();
}

std::int64_t one_each(const FoundUnit&) { return 1; }

/// fsdp.quirks of "2.12.1+cu130"; what is no version has the default. 2.15 may be told to keep workspaces as before.
std::string quirks_of(const std::string& version, bool keeps_workspaces) {
  std::pair<int, int> release;
  if (std::sscanf(version.c_str(), "%d.%d", &release.first, &release.second) != 2) return "torch-2.11";
  if (release >= std::pair(2, 15) && !keeps_workspaces) return "torch-2.15";
  return release >= std::pair(2, 12) ? "torch-2.12" : "torch-2.11";
}

/// What most units have, by what each counts: the job's own value; the others are overrides.
template <class Of>
auto usual(const std::vector<const FoundUnit*>& units, Of of, std::int64_t (*counts)(const FoundUnit&) = one_each) {
  std::vector<std::pair<decltype(of(*units.front())), std::int64_t>> seen;
  for (const FoundUnit* unit : units) {
    const auto value = of(*unit);
    auto at = std::find_if(seen.begin(), seen.end(), [&](const auto& each) { return each.first == value; });
    if (at == seen.end()) at = seen.insert(seen.end(), {value, 0});
    at->second += counts(*unit);
  }
  return std::max_element(seen.begin(), seen.end(), [](const auto& a, const auto& b) { return a.second < b.second; })
      ->first;
}

class Finder {
 public:
  Finder(const WatchedRun& run, const ShadowMachine& machine, const std::string& model, std::size_t turn)
      : run_(run),
        machine_(machine),
        setting_(turn == 0 ? *run.setting : run.turns[turn - 1]),
        steps_(static_cast<std::size_t>(std::max<std::ptrdiff_t>(
            1, std::count_if(run.steps.begin(), run.steps.end(), [&](const auto& s) { return s.turn == turn; })))) {
    job().model.source = model;
    job().model.dtype = std::nullopt;  // parameters are as the script made them
    job().fsdp.quirks = quirks_of(run_.torch, run_.keeps_workspaces);
  }

  FoundJob find() {
    cluster();
    train();
    if (setting_.runtime == "none" || setting_.units.empty()) {
      job().fsdp.runtime = Runtime::None;
      job().fsdp.mixed_precision = MixedPrecision::none();
      job().fsdp.wrap.policy = WrapPolicyKind::None;
      tensor_ranks_alone();
    } else {
      units();
    }
    checkpointing();
    job().train.script = found_script(setting_, job(), steps_);
    return std::move(found_);
  }

 private:
  Job& job() { return found_.job; }
  /// Else its model is built from a config.
  bool captured() const {
    return setting_.model_file.starts_with("model") && !setting_.model_file.starts_with("model-config");
  }

  void beyond(std::string kind, std::string where, std::string script, std::string plan, std::string text) {
    found_.beyond.push_back({std::move(kind), std::move(where), std::move(script), std::move(plan), std::move(text)});
  }

  void cluster() {
    job().cluster.profile = machine_.profile;
    job().cluster.world_size = run_.world_size;
    job().cluster.ranks_per_node = std::min(run_.world_size, machine_.ranks_per_node);
    job().cluster.rank = run_.rank;
    if (setting_.alone) one_of(setting_.sequence_ranks);
    if (!setting_.init.empty()) job().cluster.init = setting_.init;
    job().model.batch = setting_.batch;
    if (setting_.seq > 0) {
      job().model.seq = setting_.seq * setting_.sequence_ranks;
      job().model.seq_given = true;
    }
    if (setting_.sequence_ranks > 1) context_dimension();
  }

  /// Nothing shards or replicates the model: a job of the ranks that meet in its program, whose gradients nobody sums.
  void one_of(std::int64_t ranks) {
    ClusterOptions& cluster = job().cluster;
    cluster.world_size = ranks;
    cluster.ranks_per_node = std::min<std::int64_t>(ranks, machine_.ranks_per_node);
    cluster.rank = run_.rank % ranks;
    job().fsdp.wrap.root = ranks == 1;
  }

  /// Layers over ranks side by side, and nothing that shards or replicates them: a job of those ranks. DDP replicates
  /// plain parts.
  void tensor_ranks_alone() {
    if (setting_.tensor_ranks <= 1) return;
    if (!setting_.alone) {
      job().mesh.tensor = setting_.tensor_ranks;
      return;
    }
    job().mesh.tensor = setting_.tensor_ranks;
    one_of(setting_.tensor_ranks * setting_.sequence_ranks);
    job().fsdp.wrap.root = setting_.sequence_ranks == 1;
    cut_dimensions();
  }

  void context_dimension() {
    MeshOptions& mesh = job().mesh;
    mesh.context = setting_.sequence_ranks;
    mesh.context_rotate = setting_.sequence_rotate;
    mesh.context_buffers = setting_.sequence_buffers;
    if (!setting_.sequence_balanced)
      beyond("setting", "mesh.context", "in one piece each", "its head and its tail",
             "a rank's part of a sequence is one piece in the script; the plan balances causal attention");
  }

  void read_optimizer(const FoundOptimizer& found, OptimizerOptions& optimizer) {
    static const std::map<std::string, OptimizerKind> kKnown = {
        {"AdamW", OptimizerKind::AdamW},  {"Adam", OptimizerKind::AdamW},
        {"SGD", OptimizerKind::Sgd},      {"Adafactor", OptimizerKind::Adafactor},
        {"Muon", OptimizerKind::Muon},    {"AdamW8bit", OptimizerKind::AdamW8bit},
        {"NAdam", OptimizerKind::NAdam},  {"Adagrad", OptimizerKind::Adagrad},
        {"RAdam", OptimizerKind::RAdam},  {"RMSprop", OptimizerKind::RMSprop},
        {"Adamax", OptimizerKind::Adamax}};
    if (!found.watched.empty()) {
      watched_optimizer(found, optimizer);
    } else if (const auto known = kKnown.find(found.name); known != kKnown.end()) {
      optimizer.name = known->second;
    } else {
      unknown_optimizer(found, optimizer);
    }
    if (optimizer.name == OptimizerKind::Adafactor && !found.library.empty())
      optimizer.library = found.library == "transformers" ? OptimizerLibrary::Transformers : OptimizerLibrary::Torch;
    optimizer.lr = found.lr;
    optimizer.eps = found.eps;
    optimizer.weight_decay = found.weight_decay;
    if (optimizer.momentum == 0) optimizer.momentum = found.momentum;
    if (optimizer.name == OptimizerKind::RMSprop) optimizer.alpha = found.alpha, optimizer.centered = found.centered;
    if (optimizer.name == OptimizerKind::NAdam || optimizer.name == OptimizerKind::RAdam)  // AdamW says it of itself
      optimizer.decoupled_weight_decay = found.decoupled_weight_decay;
    optimizer.amsgrad = found.amsgrad && optimizer.name == OptimizerKind::AdamW;
    if (found.betas.size() >= 2) optimizer.beta1 = found.betas[0], optimizer.beta2 = found.betas[1];
    static const std::map<std::string, OptimizerImpl> kImpls = {
        {"fused", OptimizerImpl::Fused},
        {"for_loop", OptimizerImpl::ForLoop},
        {"in_backward", OptimizerImpl::InBackward},
        {"in_backward_foreach", OptimizerImpl::InBackwardForeach}};
    const auto impl = kImpls.find(found.impl);
    optimizer.impl = impl == kImpls.end() ? OptimizerImpl::Foreach : impl->second;
  }

  /// A job's Muon has AdamW beside it for what is no matrix of a block, and no parts.
  bool muon_and_others() {
    const auto is_muon = [](const FoundOptimizer& one) { return one.name == "Muon" && one.watched.empty(); };
    const auto is_other = [&](const FoundOptimizer& one) {
      return !is_muon(one) && one.name != "AdamW" && one.name != "Adam";
    };
    const auto& others = setting_.others;
    const auto other = std::find_if(others.begin(), others.end(), is_muon);
    if (!is_muon(setting_.optimizer) && other == others.end()) return false;
    if (other != others.end()) read_optimizer(*other, job().train.optimizer);
    const bool beside = std::any_of(others.begin(), others.end(), is_other) || is_other(setting_.optimizer);
    if (beside || !setting_.waiting.empty())
      beyond("setting", "train.optimizer.parts", "of Muon and others", "Muon, and AdamW for the rest",
             "Muon has optimizers beside it that are not AdamW, or parameters that wait: planned as AdamW's");
    return true;
  }

  /// Others that step in the same step, and what nothing steps in it.
  void optimizer_parts() {
    if (muon_and_others()) return;
    for (const FoundOptimizer& other : setting_.others) {
      OptimizerPart& part = job().train.optimizer_parts.emplace_back();
      part.params = other.params;
      read_optimizer(other, part.options);
    }
    if (setting_.waiting.empty()) return;
    OptimizerPart& waits = job().train.optimizer_parts.emplace_back();
    waits.params = setting_.waiting;
    waits.steps = false;
  }

  void train() {
    read_optimizer(setting_.optimizer, job().train.optimizer);
    optimizer_parts();
    job().train.steps = static_cast<std::int64_t>(steps_);
    job().train.micro_batches = std::max<std::int64_t>(1, setting_.micro_batches);
    job().train.no_sync = setting_.no_sync && job().train.micro_batches > 1;
    job().train.beside = setting_.beside;
    job().train.beside_later = setting_.beside_later;
    job().allocator = setting_.allocator;
    job().train.keeps_outputs = setting_.keeps_outputs;
    job().train.clip_grad_norm = setting_.clip;
    job().train.grad_scaler.enabled = setting_.scaler;
    job().fsdp.frozen = setting_.frozen;
    job().fsdp.ignored = setting_.ignored;
    job().fsdp.tied = setting_.tied;
    if (setting_.zero_grad == "zero") job().train.zero_grad = "zero";
    if (captured()) return;  // captured with its casts
    if (const auto dtype = parse_dtype(setting_.autocast)) job().model.autocast = *dtype;
  }

  void watched_optimizer(const FoundOptimizer& found, OptimizerOptions& optimizer) {
    optimizer.name = OptimizerKind::Watched;
    optimizer.class_name = found.watched;
    beyond(
        "setting", "train.optimizer", found.name, "watched",
        fmt::format("the optimizer is {}, which no job names: planned as it was seen to step here, in its order; with "
                    "other sizes or numbers of ranks its memory is in proportion, and its time is a guess",
                    found.name));
  }

  /// One that keeps as much for each parameter stands for it: that is what memory hangs on.
  void unknown_optimizer(const FoundOptimizer& found, OptimizerOptions& optimizer) {
    std::string stands = "adamw";
    if (found.states == 0 || found.states == 1) {
      optimizer.name = OptimizerKind::Sgd;
      optimizer.momentum = found.states == 0 ? 0.0 : 0.9;
      stands = found.states == 0 ? "sgd" : "sgd with momentum";
    }
    beyond("setting", "train.optimizer", found.name, stands,
           fmt::format("the optimizer is {}, which no job names: planned as {}{}", found.name, stands,
                       found.states < 0 || found.states > 2 ? "" : ", which keeps as much for each parameter"));
  }

  void units() {
    FsdpOptions& fsdp = job().fsdp;
    fsdp.runtime = setting_.runtime == "fsdp1" ? Runtime::Fsdp1 : Runtime::Fsdp2;
    std::vector<const FoundUnit*> all, inner;
    for (const FoundUnit& unit : setting_.units) {
      all.push_back(&unit);
      if (!is_root(unit)) inner.push_back(&unit);
    }
    if (inner.size() == all.size() && setting_.roots == 1) {
      beyond("unit", "(root)", "none", "the root",
             "the root module is no unit: fully_shard was not called on it, so its own parameters are whole on every "
             "rank");
    }
    fsdp.wrap.root = setting_.roots == 1;
    fsdp.wrap.policy = inner.empty() ? WrapPolicyKind::None : WrapPolicyKind::Units;
    for (const FoundUnit* unit : inner) fsdp.wrap.units.push_back(unit->modules);
    const auto& most = inner.empty() ? all : inner;
    const Runtime runtime = fsdp.runtime;
    const auto precision = [runtime](const FoundUnit& unit) { return precision_of(unit, runtime); };
    // As the model is captured: FSDP1 makes a unit of every batch norm, which it leaves out of mixed precision.
    fsdp.mixed_precision = usual(most, precision, [](const FoundUnit& unit) { return unit.numel; });
    const std::string strategy = usual(most, [](const FoundUnit& unit) { return unit.strategy; });
    fsdp.strategy = parse_strategy(strategy).value_or(Strategy::FullShard);
    // A root that has no parameters left has no policy.
    fsdp.cpu_offload = std::any_of(all.begin(), all.end(), [](const FoundUnit* unit) { return unit->cpu_offload; });
    const auto on_host = [](const FoundUnit* unit) { return unit->cpu_offload || unit->parameters == 0; };
    if (fsdp.cpu_offload && !std::all_of(all.begin(), all.end(), on_host))
      beyond("setting", "fsdp.cpu_offload", "of some units", "of all",
             "some units keep their parameters on the host (a teacher), others on the device: planned as if all lay on "
             "the host");
    if (strategy.find("HYBRID") != std::string::npos) job().cluster.shard_group = most.front()->shard_group;
    if (runtime == Runtime::Fsdp1) {
      fsdp1(*all.front());
    } else {
      fsdp.reshard_after_forward = usual(most, reshard_of);
      if (!setting_.float8_all_gather.empty()) fsdp.float8_all_gather = setting_.float8_all_gather;
      for (const FoundUnit& unit : setting_.units) prefetch(unit);
    }
    for (const FoundUnit& unit : setting_.units) override_of(unit, strategy);
    MeshOptions& mesh = job().mesh;
    for (const FoundUnit* unit : all) {  // units that nothing cuts lie beside those that are
      mesh.tensor = std::max(mesh.tensor, unit->tensor_parallel);
      mesh.expert = std::max(mesh.expert, unit->expert_parallel);
    }
    if (mesh.tensor > 1 || mesh.expert > 1) cut_dimensions();
    if (mesh.expert > 1 && !setting_.backwards.empty()) mesh.expert_divide_factor = expert_divide_factor();
  }

  /// What the script has told the units of experts; 0 where that is the data ranks.
  std::int64_t expert_divide_factor() {
    const double told = divide_of_experts(setting_);
    const auto whole = static_cast<std::int64_t>(told);
    if (told <= 0) return -1;
    if (static_cast<double>(whole) != told) return 0;  // a call says it
    return whole == run_.world_size / job().mesh.tensor ? 0 : whole;
  }

  void cut_dimensions() {
    MeshOptions& mesh = job().mesh;
    mesh.plan = setting_.tensor_plan;
    if (mesh.expert > 1 && job().train.clip_grad_norm > 0)
      job().fsdp.allow_traps.push_back(45);  // it clips its own way
    if (mesh.plan.empty() || mesh.tensor <= 1) return;
    mesh.sequence_parallel = setting_.tensor_sequence;
    mesh.loss_parallel = setting_.tensor_loss;
  }

  void fsdp1(const FoundUnit& root) {
    FsdpOptions& fsdp = job().fsdp;
    fsdp.forward_prefetch = root.forward_prefetch;
    fsdp.limit_all_gathers = root.limit_all_gathers;
    fsdp.use_orig_params = root.use_orig_params;
    fsdp.backward_prefetch = root.backward_prefetch == "BACKWARD_POST" ? BackwardPrefetch::Post
                             : root.backward_prefetch == "NONE"        ? BackwardPrefetch::None
                                                                       : BackwardPrefetch::Pre;
  }

  void prefetch(const FoundUnit& unit) {
    PrefetchOptions& lists = job().fsdp.prefetch;
    if (!unit.forward.empty()) lists.forward[unit.modules.front()] = unit.forward;
    if (!unit.backward.empty()) lists.backward[unit.modules.front()] = unit.backward;
  }

  /// Of one that is wrapped twice: nothing else is around it, and its strategy frees. Inside of another it does anyway.
  bool frees_as_root(const FoundUnit& unit) const {
    const std::string& name = unit.modules.front();
    if (unit.strategy != "FULL_SHARD" && unit.strategy != "HYBRID_SHARD") return false;
    if (found_.job.fsdp.wrap.root) return name.empty();
    return std::none_of(setting_.units.begin(), setting_.units.end(), [&](const FoundUnit& around) {
      const std::string& outer = around.modules.front();
      return outer.empty() ? !name.empty() : name.starts_with(outer + ".");
    });
  }

  /// The root reshards after forward only if it was told to: PyTorch's default for it is not to.
  void override_of(const FoundUnit& unit, const std::string& strategy) {
    const FsdpOptions& fsdp = job().fsdp;
    UnitOverride different;
    different.units = {unit.modules.front()};
    if (const auto precision = precision_of(unit, fsdp.runtime); !(precision == fsdp.mixed_precision))
      different.mixed_precision = precision;
    if (fsdp.runtime == Runtime::Fsdp1) {
      if (unit.strategy != strategy) different.strategy = parse_strategy(unit.strategy);
      if (unit.wrapped_twice && frees_as_root(unit)) different.reshard_after_forward = ReshardAfterForward{};
    } else if (is_root(unit) ? unit.reshard_after_forward != 0 : !(reshard_of(unit) == fsdp.reshard_after_forward)) {
      different.reshard_after_forward = reshard_of(unit);
    }
    different.shard_dim = unit.shard_dim;
    if (different.mixed_precision || different.strategy || different.reshard_after_forward ||
        !different.shard_dim.empty())
      job().fsdp.overrides.push_back(std::move(different));
  }

  /// A captured model has its recomputed regions in itself.
  void checkpointing() {
    if (captured() || setting_.checkpointed.empty()) return;
    job().checkpointing.policy = CheckpointPolicy::Block;
    job().checkpointing.reentrant = setting_.checkpointed.front().reentrant;
    for (const FoundCheckpoint& each : setting_.checkpointed) {
      if (each.selective)
        beyond("setting", "checkpointing", fmt::format("{} by operator", each.what), "block",
               fmt::format("{} is recomputed operator by operator: planned as whole blocks", each.what));
    }
  }

  const WatchedRun& run_;
  const ShadowMachine& machine_;
  const FoundSetting& setting_;
  const std::size_t steps_;  // of this turn
  FoundJob found_;
};

}  // namespace

FoundJob found_job(const WatchedRun& run, const ShadowMachine& machine, const std::string& model, std::size_t turn) {
  return Finder(run, machine, model, turn).find();
}

std::string short_job_text(const Job& job) {
  const Job defaults;
  std::string text;
  for (const JobKey& key : job_keys()) {
    const std::size_t index = *find_job_key(key.name);
    const std::string value = write_job_key(index, job);
    if (value != write_job_key(index, defaults)) text += fmt::format("{} = {}\n", key.name, value);
  }
  return text;
}

std::vector<Difference> setting_differences(const Job& script, const Job& meant) {
  std::vector<Difference> found;
  for (const JobKey& key : job_keys()) {
    // What is compared is how a step is sharded and run; sizes, places and values of training are the script's own.
    if (!key.name.starts_with("fsdp.") && !key.name.starts_with("checkpointing.") && !key.name.starts_with("mesh.") &&
        key.name != "train.optimizer.name" && key.name != "train.optimizer.impl" && key.name != "train.micro_batches" &&
        key.name != "train.no_sync")
      continue;
    const std::size_t index = *find_job_key(key.name);
    const std::string is = write_job_key(index, script), should = write_job_key(index, meant);
    if (is == should || key.name.starts_with("fsdp.wrap.")) continue;  // units are compared one by one
    found.push_back(
        {"setting", key.name, is, should, fmt::format("{} is {} in the script, {} in the job", key.name, is, should)});
  }
  return found;
}

}  // namespace foreshard::shadow
