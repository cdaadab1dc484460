#include "exec/actions/action_run.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "core/adapters/adapted_model.h"
#include "core/model/mesh_dimension.h"
#include "core/model/sources/load_model.h"
#include "core/plan/units/units.h"
#include "exec/actions/action_runner.h"
#include "exec/actions/action_state.h"
#include "exec/checkpoint/checkpoint.h"
#include "exec/host/host_backend.h"
#include "exec/record/recorder.h"
#include "exec/run/weight_source.h"
#include "exec/step/plan_groups.h"
#include "exec/training/failure_text.h"
#include "exec/training/starting_weights.h"
#include "exec/units/unit_tensors.h"

namespace foreshard::exec {
namespace {

using Clock = std::chrono::steady_clock;

constexpr Numel kFirst = 3;  // elements that are shown of a tensor

ActionTensor action_tensor(std::string name, DType dtype, Shape whole, Numel first_at, const at::Tensor& local) {
  ActionTensor tensor{std::move(name), std::string(dtype_name(dtype)), std::move(whole), first_at, 0, 0, {}};
  if (!local.defined() || local.numel() == 0) return tensor;
  tensor.bytes = local.numel() * itemsize(dtype);
  const at::Tensor flat = local.reshape({-1});
  const double norm = at::linalg_vector_norm(at::isFloatingType(flat.scalar_type()) ? flat : flat.to(at::kDouble), 2,
                                             c10::nullopt, false, at::kDouble)
                          .item<double>();
  tensor.squares = norm * norm;
  const at::Tensor first = flat.narrow(0, 0, std::min(kFirst, flat.numel())).to(at::kDouble);
  for (Numel i = 0; i < first.numel(); ++i) tensor.first.push_back(first[i].item<double>());
  return tensor;
}

class RankActions final : public ActionRun {
 public:
  explicit RankActions(ActionRunSetup setup) : setup_(std::move(setup)) {}

  Result<void> open() {
    for (const PlanIteration& iteration : plan().iterations) {
      auto request = parse_actions(iteration.actions.front());
      if (!request) continue;  // the step before a summon with gradients: the runner refuses it
      requests_.push_back(request->front());
      ActionRequest& added = requests_.back();
      if (!added.kind_given && plan().runtime == Runtime::Fsdp2) added.kind = StateKind::Sharded;
    }
    auto units = build_units(model(), job());
    if (!units) return fail(units.error());
    units_ = std::move(*units);
    if (auto found = find_weights(); !found) return found;
    if (auto made = make_runner(); !made) return made;
    if (setup_.recorder != nullptr && control_ != nullptr) align_clocks(*setup_.recorder, *control_);
    if (requests_.front().action == PlanAction::Init) return {};
    runner_->make_state(requests_.front().action != PlanAction::Load);
    TrainState state = runner_->state();
    if (auto filled = fill(state); !filled) return filled;
    runner_->set_state(state);
    return {};
  }

  Result<ActionEnd> run() override {
    ActionEnd end;
    for (std::size_t a = 0; a < requests_.size(); ++a) {
      ActionReport& report = end.actions.emplace_back();
      if (requests_[a].action == PlanAction::Init) origin_ = fresh_;
      report.from = origin_;
      if (requests_[a].action == PlanAction::Load) {
        if (auto read = read_dict(a, report); !read) return fail(read.error());
      }
      end.failure = run_one(a, report);
      if (!end.failure.empty()) break;
    }
    return end;
  }

  Communicator* control() override { return control_.get(); }

 private:
  /// Of the whole model, which a mesh has cut for this rank.
  Result<void> find_weights() {
    if (!model().mesh.empty()) {
      auto whole = load_model(job().model, program_options(job(), ProgramDevice::Cpu));
      if (whole) whole = adapted_model(std::move(*whole), job(), ProgramDevice::Cpu);
      if (!whole) return fail(whole.error());
      whole_ = std::move(*whole);
    }
    auto weights = starting_weights(whole_ ? *whole_ : model(), job());
    if (!weights) return fail(weights.error());
    weights_ = std::move(*weights);
    fresh_ = weights_.origin;
    return {};
  }

  const Job& job() const { return setup_.job; }
  const Model& model() const { return setup_.model; }
  const Plan& plan() const { return setup_.plan; }
  StateSource source() const { return {model(), job(), units_}; }

  Result<void> make_runner() {
    if (setup_.intra_op_threads > 0) at::set_num_threads(setup_.intra_op_threads);
    backend_ = make_host_backend(
        {.rank = setup_.place.rank, .intra_op_threads = setup_.intra_op_threads, .recorder = setup_.recorder});
    Communicators groups;
    if (auto connected = connect(groups); !connected) return connected;
    auto runner = ActionRunner::create(
        {source(), plan(), *backend_, std::move(groups), own_parts(model(), weights_.params), weights_.buffers});
    if (!runner) return fail(runner.error());
    runner_ = std::move(*runner);
    return {};
  }

  Result<void> connect(Communicators& groups) {
    if (setup_.place.world_size > 1) {
      std::vector<int> world(static_cast<std::size_t>(setup_.place.world_size));
      for (std::size_t r = 0; r < world.size(); ++r) world[r] = static_cast<int>(r);
      auto control = setup_.connect("control", world);
      if (!control) return fail(control.error());
      control_ = std::move(*control);
    }
    for (const CommunicatorId id : communicators_to_connect(plan())) {
      const PlanCommunicator& group = plan().communicators[id.index()];
      auto made = setup_.connect("actions in " + meeting_name(group), {group.ranks.begin(), group.ranks.end()});
      if (!made) return fail(made.error());
      groups.set(id, std::move(*made));
    }
    return {};
  }

  /// From the checkpoint that was asked for, else the job's own values.
  Result<void> fill(TrainState& state) {
    origin_ = fresh_;
    if (!setup_.resume) {
      fill_params(state, model(), weights_.params);
      return {};
    }
    const auto loaded = resume_checkpoint(job().train.checkpoint.dir, model(), state, control_.get());
    if (!loaded) return fail(loaded.error());
    origin_ = loaded->folder;
    for (const std::string& text : loaded->notes) setup_.note(text);
    return {};
  }

  /// What the save before it has returned, if it is of its kind; else the checkpoint or the job's own values.
  Result<void> read_dict(std::size_t a, ActionReport& report) {
    const ActionRequest& load = requests_[a];
    const auto save = std::find_if(requests_.begin(), requests_.begin() + static_cast<std::ptrdiff_t>(a),
                                   [](const ActionRequest& r) { return r.action == PlanAction::Save; });
    const bool saved = save != requests_.begin() + static_cast<std::ptrdiff_t>(a);
    // fsdp1 loads the model's full state on every rank, which rank 0 alone has saved.
    const bool everywhere = !save->rank0_only || job().fsdp.runtime == Runtime::Fsdp2;
    if (saved && everywhere && save->kind == load.kind && save->rank0_only == load.rank0_only &&
        (save->optimizer || !load.optimizer)) {
      report.from = action_text(*save);
      runner_->set_dict(runner_->dict());
      return {};
    }
    DictToFill read = dict_to_fill(source(), load, weights_.buffers);
    if (auto filled = fill(read.state); !filled) return filled;
    report.from = origin_;
    runner_->set_dict(std::move(read.dict));
    return {};
  }

  std::string run_one(std::size_t a, ActionReport& result) {
    std::chrono::nanoseconds looking{0};  // at what summon shows: our own time, not the action's
    runner_->on_shown([&](ParamId param, const at::Tensor& full) {
      const auto begin = Clock::now();
      const ParamInfo& info = model().params[param.index()];
      const Numel first =
          pieces_of_whole(model(), info, {{0, 0, full.numel()}}).front().global_offset;  // a mesh's part of it
      result.tensors.push_back(action_tensor(info.fqn, info.dtype, whole_shape(info), first, full));
      looking += Clock::now() - begin;
    });
    if (control_ != nullptr) control_->barrier();
    backend_->reset_peak_memory();
    result.before = backend_->memory().total.allocated;
    const auto begin = Clock::now();
    const auto done = runner_->run(a);
    const auto took = Clock::now() - begin - looking;
    if (!done) {
      return fmt::format("rank {}, {}: {} failed: {}", plan().rank, action_text(requests_[a]),
                         instruction_text(plan(), done.error()), done.error().text);
    }
    result.time_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(took).count();
    const MemoryCount memory = backend_->memory().total;
    result.peak = memory.peak_allocated;
    result.end = memory.allocated;
    if (requests_[a].action == PlanAction::Save) {
      for (const DictTensor& t : dict_tensors(runner_->dict(), source(), requests_[a])) {
        result.tensors.push_back(action_tensor(t.key, t.dtype, t.shape, t.first, t.local));
      }
    } else if (requests_[a].action != PlanAction::Summon) {
      list_state(result);
    }
    return "";
  }

  /// What this rank keeps: the shards after init and load.
  void list_state(ActionReport& result) const {
    for (const StateTensor& t : runner_->state().tensors) {
      const DType dtype = model().params[model().find_param(t.fqn).index()].dtype;
      result.tensors.push_back(action_tensor(t.slot == "param" ? t.fqn : t.fqn + "." + t.slot, dtype, t.shape,
                                             t.pieces.empty() ? 0 : t.pieces.front().global_offset, t.local));
    }
  }

  ActionRunSetup setup_;
  std::vector<ActionRequest> requests_;  // by action, their kind settled
  UnitTable units_;
  std::optional<Model> whole_;  // where a mesh cuts it
  StartingWeights weights_;
  std::unique_ptr<Backend> backend_;
  std::shared_ptr<Communicator> control_;
  std::unique_ptr<ActionRunner> runner_;  // after what it refers to
  std::string fresh_, origin_;            // where values come from, in words
};

}  // namespace

Result<std::unique_ptr<ActionRun>> ActionRun::open(ActionRunSetup setup) {
  auto run = std::make_unique<RankActions>(std::move(setup));
  if (auto opened = run->open(); !opened) return fail(opened.error());
  return run;
}

}  // namespace foreshard::exec
