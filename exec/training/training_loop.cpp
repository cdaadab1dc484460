#include "exec/training/training_loop.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <utility>

#include "core/adapters/adapted_model.h"
#include "core/adapters/adapter_names.h"
#include "core/mesh/rank_model.h"
#include "core/model/mesh_dimension.h"
#include "core/model/sources/load_model.h"
#include "core/plan/build_plan.h"
#include "core/plan/saved_ops.h"
#include "core/plan/units/full_precision.h"
#include "core/plan/units/units.h"
#include "core/runtime_layouts.h"
#include "core/text/utf8.h"
#include "exec/checkpoint/checkpoint.h"
#include "exec/data/batch_source.h"
#include "exec/data/script_inputs.h"
#include "exec/host/host_backend.h"
#include "exec/operators/operator_interpreter.h"
#include "exec/record/recorder.h"
#include "exec/run/plan_runner.h"
#include "exec/run/plan_runner_support.h"
#include "exec/run/sequence_share.h"
#include "exec/run/weight_source.h"
#include "exec/step/plan_groups.h"
#include "exec/training/evaluation.h"
#include "exec/training/failure_text.h"
#include "exec/training/schedule.h"
#include "exec/training/script_check.h"
#include "exec/training/starting_weights.h"
#include "exec/units/comm_hook.h"

namespace foreshard::exec {
namespace {

using Clock = std::chrono::steady_clock;

Error training_error(ErrorCode code, std::string place, std::string message, std::string hint = "",
                     std::string expected = "a job, a model and a folder that can be trained with") {
  Error error;
  error.code = code;
  error.place = std::move(place);
  error.message = std::move(message);
  error.expected = std::move(expected);
  error.hint = std::move(hint);
  return error;
}

/// A caching allocator's own numbers where there is one: they are what `simulate` predicts of it.
void tell_memory(StepReport& report, const MemoryReport& memory) {
  const auto& allocator = memory.allocator;
  report.peak_allocated_bytes = allocator ? allocator->peak_allocated : memory.total.peak_allocated;
  report.end_allocated_bytes = allocator ? allocator->allocated : memory.total.allocated;
  report.peak_reserved_bytes = allocator ? allocator->peak_reserved : memory.total.peak_resident;
  if (!allocator) return;
  report.peak_active_bytes = allocator->peak_active;
  report.alloc_retries = allocator->retries;
  report.ooms = allocator->ooms;
}

/// On the device of the training; from pinned memory, so that the host does not wait.
at::Tensor on_device(const at::Tensor& tensor, DeviceKind device) {
  if (device == DeviceKind::Host || !tensor.defined()) return tensor;
  return tensor.pin_memory().to(at::TensorOptions(c10::kCUDA), /*non_blocking=*/true);
}

/// Checkpoints read and write host memory; there, this is the state itself.
TrainState in_host_memory(const TrainState& state) {
  TrainState copy = state;
  for (StateTensor& tensor : copy.tensors) {
    if (tensor.local.defined()) tensor.local = tensor.local.cpu();
  }
  return copy;
}

/// The user's own hook that the job names, if it names one.
Result<CommHook> own_hook(const Job& job, const CommHookRegistry* registry) {
  const std::string& hook = job.fsdp.comm_hook;
  if (job.fsdp.runtime != Runtime::Fsdp1 || !hook.starts_with("own:")) return CommHook();
  const std::string name = hook.substr(4);
  std::vector<std::string> known;
  if (registry != nullptr) {
    if (const auto found = registry->hooks().find(name); found != registry->hooks().end()) return found->second;
    for (const auto& [other, ignored] : registry->hooks()) known.push_back(other);
  }
  Error error = training_error(ErrorCode::NotFound, "fsdp.comm_hook", "nobody has registered this hook",
                               "`run --load LIBRARY` brings hooks of your own (docs/run.md)");
  error.expected = known.empty() ? "a registered hook; there is none" : fmt::format("{}", fmt::join(known, ", "));
  error.got = name;
  return fail(std::move(error));
}

/// What all ranks tell each other: of a step's loss, or (count_labels) of its labels.
struct StepWord {
  double loss = 0;
  double stop = 0;
};

constexpr const char* kExchange = "exchange of losses";

/// A captured program has run under mixed precision: it casts what comes in by operators of its own.
bool casts_are_recorded(const Model& model) { return model.lifetimes == Lifetimes::Recorded; }

/// What the references of the runner point to; stays where it is.
struct Parts {
  Model model;                 // of this rank
  std::optional<Model> whole;  // where a mesh cuts it
  SequenceShare sequence;
  const Model& uncut() const { return whole ? *whole : model; }
  Plan plan;
  UnitTable units;
  std::optional<OperatorInterpreter> interpreter;
  StartingWeights weights;
};

/// PyTorch draws one mask for all ranks of a mesh and each takes its part of it; here each operator draws for itself.
Error draws_on_mesh() {
  Error error = training_error(ErrorCode::Unsupported, "mesh.tensor", "the model draws random numbers (dropout)",
                               "set the config.json's dropouts to 0, or mesh.tensor = 1");
  error.expected = "a model without dropout: ranks that share a sequence would each draw masks of their own";
  return error;
}

/// The model of this rank in the place of the whole one.
Result<void> cut_over_mesh(const Job& job, ProgramOptions program, Parts& parts) {
  Model whole = parts.model;
  if (job.mesh.context > 1) {  // built for its part of the sequence
    program.sequence_parts = job.mesh.context;
    auto part = load_model(rank_model_options(job), program);
    if (part) part = adapted_model(std::move(*part), job);
    if (!part) return fail(part.error());
    whole = std::move(*part);
  }
  auto cut = rank_model(std::move(whole), job, [&](const ModelOptions& part) {
    program.sequence_parts = job.mesh.context * job.mesh.tensor;
    return load_model(part, program);
  });
  if (!cut) return fail(cut.error());
  if (const std::int32_t told = told_how_many_rows(*cut); told >= 0) {
    const Op& op = cut->ops[static_cast<std::size_t>(told)];
    const std::string module = op.module.valid() ? cut->modules[op.module.index()].fqn : "";
    Error error = training_error(ErrorCode::Unsupported, "mesh.expert",
                                 fmt::format("{} in {} is told how many rows its experts get", op.name, module),
                                 "set mesh.expert = 1 to run; `plan`, `simulate` and `sweep` take it as it is");
    error.expected = "a program whose sizes follow its rows: how many tokens choose an expert is the run's";
    return fail(std::move(error));
  }
  if (std::any_of(cut->mesh.begin(), cut->mesh.end(), cuts_experts)) {
    return fail(training_error(ErrorCode::Unsupported, "mesh.plan",
                               "experts that are cut over two dimensions are planned and simulated only",
                               "the style experts, or expert_tensor with mesh.expert = 1"));
  }
  for (const ParallelStyle& row : cut->parallel) {
    const bool rows = row.style == "rows";
    if (!rows && (row.style != "packed" || divides_packed(*cut, row.modules))) continue;
    const std::string what = rows ? "each tensor rank brings rows of its own" : row.modules + " is cut part by part";
    return fail(training_error(ErrorCode::Unsupported, "mesh.plan", what + ", which is planned and simulated only",
                               "one layer for each part, no \"rows\", or mesh.tensor = 1"));
  }
  auto share = SequenceShare::of(*cut, parts.model.inputs.size(), job.model.seq);
  if (!share) return fail(share.error());
  parts.sequence = std::move(*share);
  parts.whole = std::exchange(parts.model, std::move(*cut));
  return {};
}

Result<void> check_model(const Model& model, const Job& job, DeviceKind device) {
  if (model.ops.empty()) {
    return fail(training_error(ErrorCode::Unsupported, "model.source", "the model has no operator program to run",
                               "a config.json, a .pt2 archive or a model.json with ops has one"));
  }
  if (!model.has_loss && job.model.loss != "none") {
    return fail(training_error(ErrorCode::Unsupported, "model.loss", "the model's first output is no loss",
                               "model.loss = \"none\" trains on the sum of the first output"));
  }
  const auto planned_only = [](const std::string& place, const char* what, const char* hint) {
    return fail(
        training_error(ErrorCode::Unsupported, place, fmt::format("{} planned and simulated only", what), hint));
  };
  if (!model.mesh.empty())
    return planned_only("model.source", "a program of one rank among several is", "capture it without the others");
  if (!job.fsdp.tied.empty())
    return planned_only("fsdp.tied", "parameters of two units that share their shards are",
                        "tie them before they are sharded, in one unit");
  for (const ParamInfo& info : model.params)
    if (info.gathered) return planned_only(info.fqn, "what is cast before it is gathered is", "take \"gathered\" out");
  return check_saves(model, device);
}

Result<std::unique_ptr<Parts>> make_parts(const Job& job, DeviceKind device) {
  const bool cuda = device == DeviceKind::Cuda;
  if (Result<void> runs = check_script(job, device); !runs) return fail(runs.error());
  const ProgramOptions program = program_options(job, cuda ? ProgramDevice::Cuda : ProgramDevice::Cpu);
  auto model = load_model(job.model, program);
  if (!model) return fail(model.error());
  if (auto trains = check_model(*model, job, device); !trains) return fail(trains.error());
  auto parts = std::make_unique<Parts>();
  auto adapted = adapted_model(std::move(*model), job, cuda ? ProgramDevice::Cuda : ProgramDevice::Cpu);
  if (!adapted) return fail(adapted.error());
  parts->model = with_full_precision_norms(std::move(*adapted), job);
  if (is_cut(job.mesh)) {
    if (auto cut = cut_over_mesh(job, program, *parts); !cut) return fail(cut.error());
  }
  auto units = build_units(parts->model, job);
  if (!units) return fail(units.error());
  parts->units = std::move(*units);
  auto plan = build_plan(parts->model, job);
  if (!plan) return fail(plan.error());
  parts->plan = std::move(*plan);
  auto precision = program_precision(parts->model, job, parts->units);
  if (!precision) return fail(precision.error());
  if (casts_are_recorded(parts->model)) precision->calls.clear();
  auto interpreter = OperatorInterpreter::create(parts->model, cuda ? c10::kCUDA : c10::kCPU, *precision);
  if (!interpreter) return fail(interpreter.error());
  parts->interpreter.emplace(std::move(*interpreter));
  const auto saved = saved_ops(job.checkpointing);
  if (!saved) return fail(saved.error());
  parts->interpreter->keep(kept_operators(parts->model, parts->plan, *saved));
  if (parts->whole && parts->interpreter->draws()) return fail(draws_on_mesh());
  auto weights = starting_weights(parts->uncut(), job);
  if (!weights) return fail(weights.error());
  if (parts->whole) weights->params = own_parts(parts->model, std::move(weights->params));
  weights->buffers = parts->sequence.cut_tables(parts->model, std::move(weights->buffers));
  parts->weights = std::move(*weights);
  return parts;
}

class RankTraining final : public Training {
 public:
  explicit RankTraining(const TrainingSetup& setup) : setup_(setup) {}

  Result<void> open(const TrainingEvents& events) {
    if (setup_.intra_op_threads > 0) at::set_num_threads(setup_.intra_op_threads);
    setup_.job.cluster.rank = setup_.place.rank;
    if (auto checked = check_checkpoint_folder(); !checked) return checked;
    auto parts = make_parts(setup_.job, setup_.device.kind);
    if (!parts) return fail(parts.error());
    parts_ = std::move(*parts);
    if (has_adapters(setup_.job.adapters))
      setup_.documents[std::string(kPeftConfigFile)] = peft_config(parts_->model, setup_.job);
    auto data = open_batch_source(parts_->uncut(), setup_.job);
    if (!data) return fail(data.error());
    data_ = std::move(*data);
    script_.emplace(parts_->uncut(), setup_.job);
    auto evaluation = Evaluation::open({parts_->model, parts_->uncut()}, setup_.job, share());
    if (!evaluation) return fail(evaluation.error());
    evaluation_ = std::move(*evaluation);
    if (auto made = make_backend(); !made) return made;
    if (auto connected = connect(); !connected) return connected;
    if (auto made = make_runner(); !made) return made;
    if (setup_.resume) {
      if (auto resumed = resume(events); !resumed) return resumed;
    } else {
      if (events.note) events.note("starts from " + parts_->weights.origin);
      if (events.note && parts_->sequence.counts_positions())
        events.note("positions are the whole sequence's: a script hands the model position_ids that it cuts as tokens");
      tell_partial_checkpoints(events);
    }
    if (events.note && std::ranges::any_of(parts_->plan.traps, [](const Trap& trap) { return trap.number == 27; }))
      events.note("trap 27 is PyTorch's: the norm here has the other tensor ranks' shards too");
    if (events.note && leaves_gradients_unsummed(setup_.job))
      events.note("nobody sums the gradients of the ranks that share a sequence");
    after_init_ = backend_->memory();
    if (setup_.recorder != nullptr && control_ != nullptr) align_clocks(*setup_.recorder, *control_);
    return {};
  }

  const Model& model() const override { return parts_->model; }
  const Plan& plan() const override { return parts_->plan; }
  std::int64_t first_step() const override { return first_step_; }
  MemoryReport after_init() const override { return after_init_; }
  MemoryReport memory() const override { return memory_; }
  Communicator* control() override { return control_.get(); }

  TrainingEnd run(const TrainingEvents& events) override {
    try {
      return steps(events);
    } catch (const std::exception& error) {  // the control group: a peer is gone
      return failed(between(doing_, first_line(error.what())));
    }
  }

 private:
  /// Ranks that a mesh's tensor and context dimensions put side by side share their batches.
  DataShare share() const {
    const auto ranks = static_cast<int>(setup_.job.mesh.tensor * setup_.job.mesh.context);
    return {setup_.place.rank / ranks, setup_.place.world_size / ranks};
  }
  const TrainOptions& train() const { return setup_.job.train; }
  std::int64_t rows() const {
    const Shape& shape = parts_->model.values[parts_->model.inputs.front().index()].shape;
    return shape.empty() ? 1 : shape.front();
  }
  TrainingEnd failed(FailureAccount account) const {
    return {TrainingEnd::How::Failed, progress_.step, std::move(account), last_saved_};
  }
  TrainingEnd ended(TrainingEnd::How how) const { return {how, progress_.step, {}, last_saved_}; }

  /// What went wrong behind the step that is done, or before the one that is to come.
  FailureAccount between(const std::string& doing, const std::string& cause) const {
    const bool begun = progress_.step > first_step_;
    return account_between(parts_->plan, begun ? progress_.step : progress_.step + 1, begun, doing, cause);
  }

  Result<void> check_checkpoint_folder() const {
    const std::string& dir = train().checkpoint.dir;
    if (setup_.resume && dir.empty()) {
      return fail(training_error(ErrorCode::Usage, "train.checkpoint.dir", "--resume needs a folder of checkpoints",
                                 "--set train.checkpoint.dir=DIR"));
    }
    if (setup_.emulated && !dir.empty()) {
      return fail(training_error(ErrorCode::Usage, "train.checkpoint.dir",
                                 "one rank that stands for many saves nothing", "--set train.checkpoint.dir=\"\""));
    }
    if (dir.empty()) return {};
    if (setup_.place.rank == 0) {  // before anything is trained that could not be kept
      if (auto made = try_checkpoint_folder(dir); !made) return made;
    }
    if (setup_.resume || !has_checkpoints(dir)) return {};
    Error error =
        training_error(ErrorCode::Refused, "train.checkpoint.dir", "the folder holds checkpoints of an earlier run",
                       "--resume goes on from them; another folder starts anew");
    error.file = dir;
    return fail(std::move(error));
  }

  Result<void> connect() {
    if (setup_.place.world_size == 1) return {};
    std::vector<int> world(static_cast<std::size_t>(setup_.place.world_size));
    for (std::size_t r = 0; r < world.size(); ++r) world[r] = static_cast<int>(r);
    for (auto* shared : {&control_, &checkpoint_}) {
      if (setup_.emulated) break;
      auto made = setup_.connect(shared == &control_ ? "control" : "checkpoint", world);
      if (!made) return fail(made.error());
      *shared = std::move(*made);
    }
    const Connect& connect_group = setup_.device.connect ? setup_.device.connect : setup_.connect;
    for (const CommunicatorId id : communicators_to_connect(parts_->plan)) {
      const PlanCommunicator& group = parts_->plan.communicators[id.index()];
      auto made = connect_group(meeting_name(group), {group.ranks.begin(), group.ranks.end()});
      if (!made) return fail(made.error());
      communicators_.set(id, std::move(*made));
    }
    return {};
  }

  Result<void> make_backend() {
    if (!setup_.device.make_backend) {
      backend_ = make_host_backend({.rank = setup_.place.rank,
                                    .intra_op_threads = setup_.intra_op_threads,
                                    .recorder = setup_.recorder,
                                    .arena = arena_places(parts_->plan, setup_.job)});
      return {};
    }
    auto made = setup_.device.make_backend(parts_->plan);
    if (!made) return fail(made.error());
    backend_ = std::move(*made);
    for (at::Tensor& buffer : parts_->weights.buffers) buffer = on_device(buffer, setup_.device.kind);
    return {};
  }

  Result<void> make_runner() {
    PlanRunnerSetup setup{parts_->model,
                          parts_->plan,
                          *parts_->interpreter,
                          *backend_,
                          communicators_,
                          train().optimizer,
                          parts_->weights.buffers,
                          parts_->units.trainable,
                          static_cast<std::uint64_t>(train().seed)};
    if (!casts_are_recorded(parts_->model)) setup.input_dtype = model_input_dtype(setup_.job, parts_->units);
    // Divided by what all ranks have counted, and FSDP takes the mean over ranks.
    if (script_->counts()) setup.loss_factor = static_cast<double>(share().ranks);
    setup.ranks_per_node = setup_.job.cluster.ranks_per_node;
    setup.scaler = train().grad_scaler;
    auto hook = own_hook(setup_.job, setup_.hooks);
    if (!hook) return fail(hook.error());
    setup.comm_hook = std::move(*hook);
    auto runner = PlanRunner::create(std::move(setup), parts_->weights.params);
    if (!runner) return fail(runner.error());
    runner_ = std::move(*runner);
    parts_->weights.params = nullptr;  // and with it mapped files
    progress_.seed = train().seed;
    progress_.data = data_->identity();
    return {};
  }

  void tell_partial_checkpoints(const TrainingEvents& events) const {
    if (!events.note) return;
    for (const std::string& folder : partial_checkpoints(train().checkpoint.dir))
      events.note(fmt::format("passed over {}: a save that did not come to its end", folder));
  }

  Result<void> resume(const TrainingEvents& events) {
    const auto note = [&](const std::string& text) {
      if (events.note) events.note(text);
    };
    const std::string& dir = train().checkpoint.dir;
    tell_partial_checkpoints(events);
    if (!has_checkpoints(dir)) {
      note(fmt::format("no checkpoint in {} yet: starting at step 0", dir));
      return {};
    }
    auto state = runner_->state();
    if (!state) return fail(training_error(ErrorCode::Inconsistent, dir, state.error().text));
    TrainState host = in_host_memory(*state);
    auto loaded = resume_checkpoint(dir, parts_->model, host, checkpoint_.get());
    if (!loaded) return fail(loaded.error());
    for (std::size_t t = 0; t < host.tensors.size(); ++t) {
      if (host.tensors[t].local.defined()) state->tensors[t].local.copy_(host.tensors[t].local);  // of itself: nothing
    }
    runner_->set_optimizer_steps(host.optimizer_steps);
    if (host.scaler) runner_->set_scaler(*host.scaler);
    for (const std::string& text : loaded->notes) note(text);
    if (loaded->progress.data != progress_.data) {
      note(fmt::format("the data differ from the checkpoint's ({}, now {}): the position counts on in the new ones",
                       loaded->progress.data, progress_.data));
    }
    if (loaded->progress.seed != progress_.seed) {
      note(fmt::format("train.seed differs from the checkpoint's ({}): the order of the data is another",
                       loaded->progress.seed));
    }
    progress_.step = loaded->progress.step;
    progress_.samples = loaded->progress.samples;
    first_step_ = progress_.step;
    last_saved_ = loaded->folder;
    note(fmt::format("resumed from {}: {} steps done", loaded->folder, progress_.step));
    return {};
  }

  TrainingEnd steps(const TrainingEvents& events) {
    // Ranks that are asked before they have begun agree on it: none is left alone in a collective.
    if (progress_.step < train().steps && anybody_stops(exchange({0, own_wish()})))
      return ended(TrainingEnd::How::Interrupted);
    while (progress_.step < train().steps) {
      StepReport report;
      std::string trouble;
      if (auto done = one_step(report); !done) return failed(std::move(done.error()));
      const std::vector<StepWord> words = exchange({report.loss, own_wish()});
      const bool stop = anybody_stops(words);
      report.loss = 0;
      for (const StepWord& word : words) report.loss += word.loss / static_cast<double>(words.size());
      if (std::isfinite(report.loss)) {
        if (auto done = evaluate_if_due(report); !done) return failed(std::move(done.error()));
      }
      if (events.step) events.step(report);
      if (!std::isfinite(report.loss) && !report.skipped) return failed(not_finite(words));
      if (auto saved = save_if_due(stop, events); !saved) return failed(std::move(saved.error()));
      if (stop && progress_.step < train().steps) return ended(TrainingEnd::How::Interrupted);
    }
    return ended(TrainingEnd::How::Done);
  }

  double own_wish() const { return setup_.stop_asked() ? 1.0 : 0.0; }
  static bool anybody_stops(const std::vector<StepWord>& words) {
    return std::any_of(words.begin(), words.end(), [](const StepWord& word) { return word.stop != 0; });
  }

  tl::expected<void, FailureAccount> one_step(StepReport& report) {
    const auto start = Clock::now();
    std::vector<MicroBatch> micro_batches;
    for (std::int64_t m = 0; m < train().micro_batches; ++m) {
      const std::int64_t first = progress_.samples + (m * share().ranks + share().rank) * rows();
      auto batch = data_->batch(first);
      if (!batch) return tl::unexpected(between("reading the batch", to_text(batch.error())));
      micro_batches.push_back(std::move(*batch));
    }
    count_labels(micro_batches);
    for (MicroBatch& batch : micro_batches)
      for (at::Tensor& input : batch) input = on_device(parts_->sequence.cut(input), setup_.device.kind);
    backend_->reset_peak_memory();
    report.lr = learning_rate(train(), progress_.step);
    const auto result = runner_->step(micro_batches, report.lr);
    if (!result) return tl::unexpected(account_of(parts_->plan, progress_.step + 1, result.error()));
    const auto took = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start);
    memory_ = backend_->memory();
    const double ranks = share().ranks;
    progress_.step += 1;
    progress_.samples += train().micro_batches * share().ranks * rows();
    report.step = progress_.step;
    report.loss = result->loss;
    report.grad_norm = result->grad_norm;
    report.loss_scale = result->loss_scale;
    report.skipped = result->skipped;
    report.step_time_ns = took.count();
    if (parts_->model.tokens_per_batch > 0) {
      const double tokens = static_cast<double>(parts_->model.tokens_per_batch * train().micro_batches) * ranks;
      report.tokens_per_s = tokens / (static_cast<double>(took.count()) * 1e-9);
    }
    tell_memory(report, memory_);
    return {};
  }

  /// As Transformers' Trainer does: labels with a loss in all micro-batches of all ranks (num_items_in_batch).
  void count_labels(std::vector<MicroBatch>& micro_batches) {
    const std::optional<double> own = script_->counted(micro_batches);
    if (!own) return;
    double all = 0;
    const std::vector<StepWord> words = exchange({*own, 0});
    for (const StepWord& word : words) all += word.loss;
    // Ranks that read the same batch count it each; peers that are pretended count nothing.
    script_->tell(micro_batches, all * share().ranks / static_cast<double>(words.size()));
  }

  tl::expected<void, FailureAccount> evaluate_if_due(StepReport& report) {
    if (evaluation_ == nullptr || !evaluation_->due(progress_.step)) return {};
    const auto start = Clock::now();
    const auto loss = evaluation_->run(*runner_, progress_.step, [this](const at::Tensor& input) {
      return on_device(parts_->sequence.cut(input), setup_.device.kind);
    });
    if (!loss) return tl::unexpected(loss.error());
    const std::vector<StepWord> words = exchange({*loss, 0});
    report.eval_loss = 0;
    for (const StepWord& word : words) *report.eval_loss += word.loss / static_cast<double>(words.size());
    report.eval_time_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count();
    return {};
  }

  std::vector<StepWord> exchange(const StepWord& own) {
    if (control_ == nullptr) return {own};
    std::vector<StepWord> words(static_cast<std::size_t>(control_->size()));
    static_assert(sizeof(StepWord) == 2 * sizeof(double));
    control_->all_gather(words.data(), &own, 2, DType::Float64);
    return words;
  }

  /// PyTorch would go on with parameters that are not numbers any more; nobody wants the rest of such a run.
  FailureAccount not_finite(const std::vector<StepWord>& words) const {
    std::vector<std::size_t> ranks;
    for (std::size_t r = 0; r < words.size(); ++r) {
      if (!std::isfinite(words[r].loss)) ranks.push_back(r);
    }
    std::string cause =
        fmt::format("the loss is not finite (on rank {}); this step's update was not saved", fmt::join(ranks, ", "));
    if (!last_saved_.empty()) cause += ", the last checkpoint is " + last_saved_;
    FailureAccount account = between("the step's loss", cause);
    if (!ranks.empty()) account.rank = static_cast<int>(ranks.front());
    account.text = fmt::format("rank {}, step {}: {} (behind instruction {})", setup_.place.rank, progress_.step, cause,
                               account.instruction);
    return account;
  }

  tl::expected<void, FailureAccount> save_if_due(bool stopping, const TrainingEvents& events) {
    const SaveOptions& options = train().checkpoint;
    if (options.dir.empty()) return {};
    const bool due = options.every > 0 && progress_.step % options.every == 0;
    if (!due && !stopping && progress_.step < train().steps) return {};
    auto state = runner_->state();
    if (!state) return tl::unexpected(account_of(parts_->plan, progress_.step, state.error()));
    doing_ = "saving";
    auto folder = save_checkpoint(options.dir, in_host_memory(*state), {parts_->model, progress_, {}, setup_.documents},
                                  checkpoint_.get(), options.keep);
    if (!folder) {
      return tl::unexpected(between("saving", "no checkpoint: " + to_text(folder.error())));
    }
    doing_ = kExchange;
    last_saved_ = *folder;
    if (events.saved) events.saved(*folder);
    return {};
  }

  TrainingSetup setup_;
  std::unique_ptr<Parts> parts_;
  std::unique_ptr<BatchSource> data_;
  std::optional<ScriptInputs> script_;
  std::unique_ptr<Evaluation> evaluation_;
  std::shared_ptr<Communicator> control_, checkpoint_;
  Communicators communicators_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<PlanRunner> runner_;  // after what it refers to
  TrainProgress progress_;
  std::int64_t first_step_ = 0;
  std::string last_saved_;
  std::string doing_ = kExchange;  // with the other ranks, beside the plan's instructions
  MemoryReport after_init_, memory_;
};

}  // namespace

Result<std::unique_ptr<Training>> Training::open(const TrainingSetup& setup, const TrainingEvents& events) {
  auto training = std::make_unique<RankTraining>(setup);
  try {
    if (auto opened = training->open(events); !opened) return fail(opened.error());
  } catch (const std::exception& error) {
    return fail(
        training_error(ErrorCode::Inconsistent, fmt::format("rank {}", setup.place.rank), first_line(error.what())));
  }
  return training;
}

}  // namespace foreshard::exec
