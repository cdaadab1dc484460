#include "tests/oracle/training/training_run.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <thread>
#include <utility>

#include "core/adapters/adapted_model.h"
#include "core/adapters/adapter_names.h"
#include "core/mesh/rank_model.h"
#include "core/model/families/config_model.h"
#include "core/model/sources/load_model.h"
#include "core/plan/build_plan.h"
#include "core/plan/saved_ops.h"
#include "core/traps.h"
#include "exec/checkpoint/safetensors.h"
#include "exec/host/host_backend.h"
#include "exec/run/buffers.h"
#include "exec/run/plan_runner.h"
#include "exec/run/plan_runner_support.h"
#include "exec/run/weight_source.h"
#include "exec/step/in_process_groups.h"
#include "exec/step/plan_groups.h"
#include "exec/torch/torch_types.h"

namespace foreshard::oracle {
namespace {

using namespace foreshard::exec;

constexpr std::int64_t kRows = 8;     // of the global micro-batch
constexpr double kNeverClips = 1e30;  // the norm is recorded also where nothing is clipped
constexpr std::chrono::seconds kPatience{120};

template <class T>
T or_throw(Result<T> result) {
  if (!result) throw std::runtime_error(to_text(result.error()));
  return std::move(*result);
}

/// Rows of one rank, [steps, micro-batches, rows, ...] in the file.
at::Tensor share_of(const at::Tensor& data, std::int64_t step, std::int64_t micro, int rank, int world) {
  return data[step][micro].narrow(0, rank * kRows / world, kRows / world);
}

/// What a model of two halves reads behind the label: the label moved on by one, from the start token.
at::Tensor shifted_right(const at::Tensor& labels, std::int64_t start, std::int64_t padding) {
  at::Tensor shifted = at::zeros_like(labels);
  shifted.narrow(-1, 1, labels.size(-1) - 1).copy_(labels.narrow(-1, 0, labels.size(-1) - 1));
  shifted.select(-1, 0).fill_(start);
  return shifted.masked_fill(shifted.eq(-100), padding);
}

constexpr std::int64_t kNoLabel = -100;

/// How a row's script changes the labels of the file before it hands them over.
struct LabelChanges {
  bool masked = false;   // every third position that would be predicted has none
  bool aligned = false;  // position p predicts label p: the file's next token, none at the end
};

at::Tensor changed_labels(at::Tensor labels, const LabelChanges& changes) {
  if (!changes.masked && !changes.aligned) return labels;
  const std::int64_t length = labels.size(-1);
  labels = at::constant_pad_nd(labels.narrow(-1, 1, length - 1), {0, 1}, kNoLabel);
  if (changes.masked) labels = labels.masked_fill(at::arange(length).remainder(3).eq(1), kNoLabel);
  if (changes.aligned) return labels;
  return at::constant_pad_nd(labels.narrow(-1, 0, length - 1), {1, 0}, kNoLabel);  // the model moves them itself
}

class TrainingData {
 public:
  TrainingData(const Model& model, const TrainingFolders& folders, const LabelChanges& changes)
      : model_(model), tensors_(or_throw(read_safetensors(folders.data + "/data.safetensors"))), changes_(changes) {
    const Json config = Json::parse(read_text(folders.model + "/config.json"));
    const auto token = [&](const char* key) {
      return config.contains(key) && config[key].is_number() ? config[key].get<std::int64_t>() : 0;
    };
    start_ = token("decoder_start_token_id");
    padding_ = token("pad_token_id");
  }

  std::vector<at::Tensor> inputs(std::int64_t step, std::int64_t micro, int rank, int world) const {
    std::vector<at::Tensor> inputs;
    for (const ValueId id : model_.inputs) {
      const ValueInfo& value = model_.values[id.index()];
      at::Tensor tensor;
      if (const auto found = tensors_.find(data_name(value.name)); found != tensors_.end()) {
        tensor = share_of(found->second, step, micro, rank, world);
        if (value.name == "labels") tensor = changed_labels(std::move(tensor), changes_);
      } else if (value.name == "decoder_input_ids" && tensors_.contains("labels")) {
        tensor = shifted_right(share_of(tensors_.at("labels"), step, micro, rank, world), start_, padding_);
      } else {
        throw std::runtime_error("the data holds no " + value.name);
      }
      inputs.push_back(tensor.to(scalar_type_of(value.dtype)).contiguous());
    }
    return inputs;
  }

 private:
  /// The exported programs take (inputs, labels), whatever the inputs are.
  std::string data_name(const std::string& input) const {
    if (input != "inputs") return input;
    return tensors_.contains("pixel_values") ? "pixel_values" : "input_ids";
  }

  const Model& model_;
  NamedTensors tensors_;
  LabelChanges changes_;
  std::int64_t start_ = 0, padding_ = 0;
};

double learning_rate(const Json& settings, std::int64_t step) {
  const bool object = settings.at("optimizer").is_object();
  const auto lr = (object ? settings["optimizer"] : settings).at("lr").get<double>();
  if (settings.at("schedule") == "constant") return lr;
  const double warmup = settings.value("warmup", 4.0), steps = settings.at("steps"), at = static_cast<double>(step);
  if (at < warmup) return lr * (at + 1) / warmup;
  return 0.5 * lr * (1 + std::cos(std::acos(-1.0) * (at - warmup) / (steps - warmup)));
}

/// What one rank brings home.
struct RankResult {
  std::vector<StepResult> steps;
  TrainState state;
  std::string failure;
};

/// The program of one rank, or of all where no mesh cuts it.
struct RankProgram {
  RankProgram(const Model& whole, Job job, int rank)
      : model(cut(whole, job, rank)),
        interpreter(or_throw(OperatorInterpreter::create(model))),
        plan(or_throw(build_plan(model, job))) {
    interpreter.keep(kept_operators(model, plan, or_throw(saved_ops(job.checkpointing))));
  }

  static Model cut(const Model& whole, Job& job, int rank) {
    job.cluster.rank = rank;
    return or_throw(rank_model(whole, job));
  }

  Model model;
  OperatorInterpreter interpreter;
  Plan plan;
};

LabelChanges label_changes(const Json& settings, const Job& job) {
  return {settings.value("labels_masked", false), job.model.loss.starts_with("chunked_")};
}

Model whole_model(const Job& job) {
  return or_throw(adapted_model(or_throw(load_model(job.model, program_options(job, ProgramDevice::Cpu))), job,
                                ProgramDevice::Cpu));
}

class ThreadRanks {
 public:
  ThreadRanks(const Json& row, const Job& job, const TrainingFolders& folders)
      : settings_(row.at("settings")),
        job_(job),
        world_(static_cast<int>(job.cluster.world_size)),
        side_by_side_(static_cast<int>(job.mesh.tensor)),
        model_(whole_model(job)),
        weights_(or_throw(open_weights(folders.model + "/model.safetensors"))),
        data_(model_, folders, label_changes(settings_, job)),
        results_(static_cast<std::size_t>(world_)) {
    for (int rank = 0; rank < world_; ++rank) programs_.push_back(std::make_unique<RankProgram>(model_, job_, rank));
    if (!has_adapters(job.adapters)) return;
    adapters_ = or_throw(open_weights(folders.adapters));
    plain_ = or_throw(load_model(job.model, program_options(job, ProgramDevice::Cpu)));
  }

  void run() {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < world_; ++rank) {
      threads.emplace_back([this, rank] {
        try {
          train(rank);
        } catch (const std::exception& error) {
          result(rank).failure = error.what();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const RankResult& result : results_) {
      if (!result.failure.empty()) throw std::runtime_error(result.failure);
    }
  }

  TrainingResult gathered() const {
    TrainingResult all;
    for (std::size_t step = 0; step < results_[0].steps.size(); ++step) {
      all.loss.push_back(0);
      all.micro.emplace_back(results_[0].steps[step].losses.size());
      for (const RankResult& rank : results_) {
        all.loss.back() += rank.steps[step].loss / world_;
        for (std::size_t m = 0; m < all.micro.back().size(); ++m)
          all.micro.back()[m] += rank.steps[step].losses[m] / world_;
      }
      all.grad_norm.push_back(results_[0].steps[step].grad_norm.value_or(0));
    }
    for (std::size_t t = 0; t < results_[0].state.tensors.size(); ++t) {
      const StateTensor& tensor = results_[0].state.tensors[t];
      if (tensor.slot == "param") all.final_params[tensor.fqn] = whole(t);
    }
    return all;
  }

 private:
  RankResult& result(int rank) { return results_[static_cast<std::size_t>(rank)]; }

  at::Tensor first_value(ParamId id) const {
    if (adapters_ == nullptr) return or_throw(whole_param(model_, id, *weights_));
    const std::string& name = model_.params[id.index()].fqn;
    if (is_low_rank(adapter_part(name))) return or_throw(adapters_->tensor(name));
    return or_throw(whole_param(plain_, plain_.find_param(plain_name(name)), *weights_));
  }

  void train(int rank) {
    const auto backend = make_host_backend({.rank = rank, .intra_op_threads = 1});
    const RankProgram& own = *programs_[static_cast<std::size_t>(rank)];
    const auto whole = [this](ParamId id) { return first_value(id); };
    auto runner =
        or_throw(PlanRunner::create({.model = own.model,
                                     .plan = own.plan,
                                     .interpreter = own.interpreter,
                                     .backend = *backend,
                                     .communicators = groups_.of(own.plan),
                                     .optimizer = job_.train.optimizer,
                                     .buffers = or_throw(initial_buffers(model_, job_.model.source, weights_.get()))},
                                    own_parts(own.model, whole)));
    const std::int64_t steps = settings_.at("steps");
    for (std::int64_t step = 0; step < steps; ++step) {
      std::vector<MicroBatch> batches;
      for (std::int64_t m = 0; m < job_.train.micro_batches; ++m)
        batches.push_back(data_.inputs(step, m, rank / side_by_side_, world_ / side_by_side_));
      const auto done = runner->step(batches, learning_rate(settings_, step));
      if (!done) {
        throw std::runtime_error(fmt::format("rank {} step {} instruction {}: {}", rank, step,
                                             done.error().instruction.value, done.error().text));
      }
      result(rank).steps.push_back(*done);
    }
    auto state = runner->state();
    if (!state) throw std::runtime_error(state.error().text);
    result(rank).state = std::move(*state);
    for (StateTensor& tensor : result(rank).state.tensors) tensor.local = tensor.local.clone();  // outlives the runner
  }

  /// Sums and first elements of a parameter, from every rank's pieces.
  TrainingResult::Param whole(std::size_t index) const {
    const StateTensor& tensor = results_[0].state.tensors[index];
    at::Tensor full = at::full({numel_of(tensor.shape)}, std::nan(""), at::kDouble);
    for (const RankResult& rank : results_) {
      const StateTensor& part = rank.state.tensors[index];
      for (const StatePiece& piece : part.pieces) {
        full.narrow(0, piece.global_offset, piece.numel)
            .copy_(part.local.reshape({-1}).narrow(0, piece.local_offset, piece.numel));
      }
    }
    TrainingResult::Param param{full.sum().item<double>(), full.abs().sum().item<double>(), {}};
    for (std::int64_t i = 0; i < std::min<std::int64_t>(8, full.numel()); ++i)
      param.first.push_back(full[i].item<double>());
    return param;
  }

  const Json& settings_;
  const Job& job_;
  int world_, side_by_side_;  // ranks that share their batches
  Model model_;
  Model plain_;  // beside adapters
  std::shared_ptr<const WeightSource> weights_, adapters_;
  TrainingData data_;
  std::vector<std::unique_ptr<RankProgram>> programs_;
  InProcessGroups groups_{kPatience};
  std::vector<RankResult> results_;
};

/// A word with settings beside it, or an object of torch.optim's arguments.
void set_optimizer(const Json& all, OptimizerOptions& optimizer) {
  const bool object = all.at("optimizer").is_object();
  const Json& settings = object ? all["optimizer"] : all;
  std::string name = settings.at(object ? "name" : "optimizer");
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  const std::map<std::string, OptimizerKind> kinds = {{"adamw", OptimizerKind::AdamW},
                                                      {"sgd", OptimizerKind::Sgd},
                                                      {"adafactor", OptimizerKind::Adafactor},
                                                      {"muon", OptimizerKind::Muon}};
  if (!kinds.contains(name)) throw std::runtime_error("unknown optimizer " + name);
  optimizer.name = kinds.at(name);
  optimizer.impl = settings.value("in_backward", false) ? OptimizerImpl::InBackward : OptimizerImpl::ForLoop;
  if (name == "adafactor") optimizer.impl = OptimizerImpl::Foreach;  // torch.optim's; `for_loop` is Transformers'
  optimizer.lr = settings.at("lr");
  const bool muon = optimizer.name == OptimizerKind::Muon;
  // What torch.optim takes where the row says nothing: Muon decays by a tenth, Adafactor not at all.
  optimizer.weight_decay = settings.value("weight_decay", muon ? 0.1 : 0.0);
  optimizer.momentum = settings.value("momentum", muon ? 0.95 : 0.0);
  const Json& rest = muon && settings.contains("rest") ? settings["rest"] : settings;  // of what Muon does not take
  if (rest.contains("betas")) {
    optimizer.beta1 = rest["betas"][0];
    optimizer.beta2 = rest["betas"][1];
  }
  optimizer.eps = rest.value("eps", 1e-8);
}

bool is_given(const Json& settings, const char* key) { return settings.contains(key) && !settings[key].is_null(); }

void set_adapters(const Json& settings, AdapterOptions& adapters) {
  if (!is_given(settings, "lora")) return;
  const Json& given = settings["lora"];
  adapters.kind = "lora";
  adapters.rank = given.at("r");
  adapters.alpha = given.at("alpha");
  adapters.targets = given.at("targets").get<std::vector<std::string>>();
  adapters.dtype = DType::Float32;
}

void set_loss(const Json& settings, ModelOptions& model) {
  if (!settings.contains("loss") || !settings["loss"].is_object()) return;
  const bool linear = settings["loss"].at("kind") == "chunked_linear";
  model.loss = linear ? "chunked_cross_entropy" : "chunked_logits_cross_entropy";
  model.loss_chunks = settings["loss"].at("chunks");
}

void set_checkpointing(const Json& settings, CheckpointingOptions& options) {
  if (!is_given(settings, "activation_checkpointing")) return;
  const Json& given = settings["activation_checkpointing"];
  if (given.at("mode") != "op") throw std::runtime_error("unknown checkpointing " + given.dump());
  options.policy = CheckpointPolicy::Ops;
  const auto every = given.value("mm_every", 0);
  options.save.clear();
  for (const std::string word : given.at("save"))
    options.save.push_back(word == "aten.mm" && every > 0 ? "mm:" + std::to_string(every) : word);
}

/// Units beside the blocks, which fully_shard takes first.
void set_units(const Json& settings, Job& job) {
  if (!settings.contains("units") || settings["units"].empty()) return;
  job.fsdp.wrap.policy = WrapPolicyKind::Units;
  for (const Json& unit : settings["units"])
    job.fsdp.wrap.units.push_back(unit.at("modules").get<std::vector<std::string>>());
  const Model model = whole_model(job);
  for (const ModuleInfo& module : model.modules)
    if (module.class_name == model.block_class) job.fsdp.wrap.units.push_back({module.fqn});
}

/// `single` in bf16 copies by hand what fully_shard does on one rank; in fp32 there is nothing to shard.
Runtime runtime_of(const std::string& how, bool bf16) {
  if (how == "fsdp1") return Runtime::Fsdp1;
  if (how == "fsdp2") return Runtime::Fsdp2;
  if (how != "single") throw std::runtime_error("unknown way of training " + how);
  return bf16 ? Runtime::Fsdp2 : Runtime::None;
}

/// The config.json; of a family that is not built, the exported program of this precision.
std::string source_of(const std::string& folder, const std::string& precision) {
  const Json config = Json::parse(read_text(folder + "/config.json"));
  const auto known = known_model_types();
  const bool built = std::find(known.begin(), known.end(), config.value("model_type", "")) != known.end();
  const std::string archive = folder + "/forward_" + precision + ".pt2";
  return built || !std::filesystem::exists(archive) ? folder + "/config.json" : archive;
}

/// Lengths of the sequences in the data, for a model of tokens.
void set_lengths(const std::string& folder, ModelOptions& options) {
  const auto tensors = or_throw(read_safetensors(folder + "/data.safetensors"));
  const auto length = [&](const char* name) -> std::int64_t {
    const auto found = tensors.find(name);
    return found != tensors.end() && found->second.dim() == 4 && !found->second.is_floating_point()
               ? found->second.size(3)
               : 0;
  };
  if (const std::int64_t tokens = length("input_ids"); tokens > 0) {
    options.seq = tokens;
    options.seq_given = true;
    options.target_seq = length("labels") == tokens ? 0 : length("labels");
  }
}

std::int64_t size_of(const Json& mesh, const std::string& name) {
  for (const Json& dimension : mesh)
    if (dimension[0] == name) return dimension[1];
  return 1;
}

/// A mesh of named dimensions, the tensor's innermost.
void set_mesh(const Json& settings, Job& job) {
  if (!settings.contains("mesh") || settings["mesh"].is_null()) return;
  if (is_given(settings, "cp")) throw std::runtime_error("not run: a mesh with a dimension cp");
  const Json& mesh = settings["mesh"];
  job.mesh.tensor = size_of(mesh, "tp");
  if (is_given(settings, "ep")) {
    job.mesh.expert = size_of(mesh, "ep");
    job.mesh.expert_divide_factor = settings["ep"].value("divide_factor", -1);
  }
  const Json& dims = settings["mesh_dims"];
  if (dims.is_array() && dims.size() == 2) {
    job.fsdp.strategy = Strategy::HybridShard;
    job.cluster.shard_group = size_of(mesh, dims[1]);
  }
  if (!settings["tp"].is_object()) return;
  job.mesh.sequence_parallel = settings["tp"].at("sequence_parallel");
  job.mesh.loss_parallel = settings["tp"].at("loss_parallel");
  job.fsdp.allow_traps = {27, kMixedMeshes};  // the recorded loop has a norm of its own
}

}  // namespace

Job training_job(const Json& row, const TrainingFolders& folders) {
  const Json& settings = row.at("settings");
  const bool bf16 = settings.at("precision") == "bf16";
  Job job;
  job.model.source = source_of(folders.model, settings.at("precision"));
  job.cluster.world_size = job.cluster.ranks_per_node = row.at("world");
  set_mesh(settings, job);
  job.model.batch = kRows * job.mesh.tensor / job.cluster.world_size;
  set_lengths(folders.data, job.model);
  job.fsdp.runtime = runtime_of(row.at("how"), bf16);
  job.fsdp.mixed_precision = MixedPrecision::none();
  if (bf16) {
    job.fsdp.mixed_precision.param = DType::BFloat16;
    job.fsdp.mixed_precision.reduce = DType::Float32;
  }
  set_optimizer(settings, job.train.optimizer);
  set_adapters(settings, job.adapters);
  set_loss(settings, job.model);
  set_checkpointing(settings, job.checkpointing);
  set_units(settings, job);
  for (std::int64_t trap = 28; trap < 64; ++trap) job.fsdp.allow_traps.push_back(trap);  // it was run all the same
  job.train.micro_batches = settings.value("accumulate", 1);
  job.train.no_sync = !settings.value("sync_each", true);
  job.train.clip_grad_norm = settings.at("clip").is_null() ? kNeverClips : settings["clip"].get<double>();
  if (steps_in_backward(job.train.optimizer.impl)) job.train.clip_grad_norm = 0;  // nothing is left to clip
  return job;
}

TrainingResult train(const Json& row, const Job& job, const TrainingFolders& folders) {
  ThreadRanks ranks(row, job, folders);
  ranks.run();
  return ranks.gathered();
}

}  // namespace foreshard::oracle
