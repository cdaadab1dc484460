#include "cli/exec_program/run_action.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/action_report.h"
#include "cli/exec_program/measured_actions.h"
#include "cli/exec_program/run_device.h"
#include "cli/exec_program/run_timeline.h"
#include "core/plan/units.h"
#include "exec/action_runner.h"
#include "exec/action_state.h"
#include "exec/checkpoint.h"
#include "exec/failure_text.h"
#include "exec/host_backend.h"
#include "exec/in_process_communicator.h"
#include "exec/plan_groups.h"
#include "exec/recorder.h"
#include "exec/starting_weights.h"
#include "sim/simulate.h"

namespace foreshard::cli {
namespace {

using Clock = std::chrono::steady_clock;
using Requests = std::vector<ActionRequest>;

Error refused(ErrorCode code, std::string place, std::string message, std::string got, std::string hint) {
  return Error{code, std::move(message), "", std::move(place), "", std::move(got), std::move(hint)};
}

/// One rank that does what is asked for.
class ActionRun {
 public:
  ActionRun(RankSession& session, const RunFlags& flags, const Console& console, const Job& job)
      : session_(session), flags_(flags), console_(console), job_(job) {}

  Result<void> open() {
    job_.cluster.rank = session_.place().rank;
    auto requests = parse_actions(flags_.action);
    if (!requests) return fail(requests.error());
    requests_ = std::move(*requests);
    auto prepared = prepare_actions(job_, flags_.action);
    if (!prepared) return fail(prepared.error());
    prepared_ = std::move(*prepared);
    auto units = build_units(model(), job_);
    if (!units) return fail(units.error());
    units_ = std::move(*units);
    for (ActionRequest& request : requests_) {
      if (!request.kind_given && job_.fsdp.runtime == Runtime::Fsdp2) request.kind = StateKind::Sharded;
    }
    auto weights = exec::starting_weights(model(), job_);
    if (!weights) return fail(weights.error());
    weights_ = std::move(*weights);
    fresh_ = weights_.from_files ? "the weights of " + job_.model.source
                                 : fmt::format("fresh values, seed {}", job_.train.seed);
    if (auto predicted = predict(); !predicted) return predicted;
    return make_runner();
  }

  /// Errors: no such checkpoint, another model's. Throws where a peer is gone.
  Result<void> begin() {
    if (recorder_ && control_ != nullptr) align_clocks(*recorder_, *control_);
    if (requests_.front().action == PlanAction::Init) return {};
    runner_->make_state(requests_.front().action != PlanAction::Load);
    exec::TrainState state = runner_->state();
    if (auto filled = fill(state); !filled) return filled;
    runner_->set_state(state);
    return {};
  }

  /// One after the other; the text of what failed, or of what could not be read.
  Result<void> run(std::string& failure) {
    for (std::size_t a = 0; a < requests_.size() && failure.empty(); ++a) {
      if (requests_[a].action == PlanAction::Init) origin_ = fresh_;
      from_.push_back(origin_);
      if (requests_[a].action == PlanAction::Load) {
        if (auto read = read_dict(a); !read) return read;
      }
      failure = run_one(a);
    }
    return {};
  }

  Result<void> write_timeline() {
    if (!recorder_) return {};
    return write_run_timeline(plan(), control_.get(), *recorder_, {flags_.timeline, flags_.trace, processor_text()});
  }

  /// Every rank to rank 0, which tells it.
  bool tell() {
    std::vector<std::string> texts{to_json_text(results_)};
    if (control_ != nullptr) texts = exec::gather_texts(texts.front(), *control_);
    if (!session_.first()) return true;
    MeasuredActions measured{job_, model(), plan(), from_, {}};
    for (const std::string& text : texts) measured.ranks.push_back(actions_from_json(text));
    return console_.result(console_.json ? actions_json(measured) : actions_text(measured));
  }

 private:
  const Model& model() const { return prepared_->model; }
  const Plan& plan() const { return prepared_->plan; }
  StateSource source() const { return {model(), job_, units_}; }

  /// As `simulate --action` does.
  Result<void> predict() {
    auto prediction = simulate(plan(), model(), prepared_->lowered, job_, prepared_->profile, simulate_options(job_));
    if (!prediction) return fail(prediction.error());
    results_.resize(plan().iterations.size());
    // What the allocator was asked for: it rounds blocks, the host does not.
    for (std::size_t a = 0; a < results_.size() && prediction->fits && a < prediction->iterations.size(); ++a) {
      const IterationResult& of = prediction->iterations[a];
      results_[a].predicted = {of.peak_requested, of.end_requested, of.peak_allocated};
    }
    return {};
  }

  Result<void> make_runner() {
    if (!flags_.timeline.empty() || !flags_.trace.empty()) recorder_.emplace();
    const int threads = exec::intra_op_threads(session_.place(), [](const char* name) { return std::getenv(name); });
    if (threads > 0) at::set_num_threads(threads);
    backend_ = exec::make_host_backend(
        {.rank = session_.place().rank, .intra_op_threads = threads, .recorder = recorder_ ? &*recorder_ : nullptr});
    std::map<GroupKind, std::shared_ptr<exec::Communicator>> groups;
    if (auto connected = connect(groups); !connected) return connected;
    auto runner =
        exec::ActionRunner::create({source(), plan(), *backend_, std::move(groups), weights_.params, weights_.buffers});
    if (!runner) return fail(runner.error());
    runner_ = std::move(*runner);
    return {};
  }

  Result<void> connect(std::map<GroupKind, std::shared_ptr<exec::Communicator>>& groups) {
    if (session_.place().world_size > 1) {
      std::vector<int> world(static_cast<std::size_t>(session_.place().world_size));
      for (std::size_t r = 0; r < world.size(); ++r) world[r] = static_cast<int>(r);
      auto control = session_.connect("control", world);
      if (!control) return fail(control.error());
      control_ = std::move(*control);
    }
    for (const exec::PlanGroup& group : exec::groups_of(plan())) {
      if (group.stream != Stream::D) continue;  // of training: the runner refuses it
      const std::vector<int> ranks(group.ranks.begin(), group.ranks.end());
      if (groups.contains(group.group)) {
        return fail(refused(ErrorCode::Unsupported, "fsdp.overrides", "units are sharded over groups of several sizes",
                            fmt::format("ranks {} beside another group", fmt::join(ranks, ",")),
                            "plan and simulate take it"));
      }
      auto made = session_.connect(fmt::format("actions of ranks {}", fmt::join(ranks, ",")), ranks);
      if (!made) return fail(made.error());
      groups[group.group] = std::move(*made);
    }
    for (const GroupKind kind : {GroupKind::Shard, GroupKind::Replicate, GroupKind::World}) {
      if (!groups.contains(kind)) groups[kind] = exec::in_process_communicators(1).front();  // meets nobody
    }
    return {};
  }

  /// From the checkpoint that was asked for, else the job's own values.
  Result<void> fill(exec::TrainState& state) {
    origin_ = fresh_;
    if (!flags_.resume) {
      exec::fill_params(state, model(), weights_.params);
      return {};
    }
    const auto loaded = exec::resume_checkpoint(job_.train.checkpoint.dir, model(), state, control_.get());
    if (!loaded) return fail(loaded.error());
    origin_ = loaded->folder;
    if (!session_.first()) return {};
    for (const std::string& note : loaded->notes) console_.note("note: " + note);
    return {};
  }

  /// What the save before it has returned, if it is of its kind; else the checkpoint or the job's own values.
  Result<void> read_dict(std::size_t a) {
    const ActionRequest& load = requests_[a];
    const auto save = std::find_if(requests_.begin(), requests_.begin() + static_cast<std::ptrdiff_t>(a),
                                   [](const ActionRequest& r) { return r.action == PlanAction::Save; });
    const bool saved = save != requests_.begin() + static_cast<std::ptrdiff_t>(a);
    // fsdp1 loads the model's full state on every rank, which rank 0 alone has saved.
    const bool everywhere = !save->rank0_only || job_.fsdp.runtime == Runtime::Fsdp2;
    if (saved && everywhere && save->kind == load.kind && save->rank0_only == load.rank0_only &&
        (save->optimizer || !load.optimizer)) {
      from_.back() = action_text(*save);
      runner_->set_dict(runner_->dict());
      return {};
    }
    exec::DictToFill read = exec::dict_to_fill(source(), load, weights_.buffers);
    if (auto filled = fill(read.state); !filled) return filled;
    from_.back() = origin_;
    runner_->set_dict(std::move(read.dict));
    return {};
  }

  std::string run_one(std::size_t a) {
    ActionOnRank& result = results_[a];
    std::chrono::nanoseconds looking{0};  // at what summon shows: our own time, not the action's
    runner_->on_shown([&](ParamId param, const at::Tensor& full) {
      const auto begin = Clock::now();
      const ParamInfo& info = model().params[param.index()];
      result.tensors.push_back(action_tensor(info.fqn, info.dtype, info.shape, 0, full));
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
                         exec::instruction_text(plan(), done.error()), done.error().text);
    }
    result.time_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(took).count();
    const exec::MemoryCount memory = backend_->memory().total;
    result.peak = memory.peak_allocated;
    result.end = memory.allocated;
    if (requests_[a].action == PlanAction::Save) {
      for (const exec::DictTensor& t : exec::dict_tensors(runner_->dict(), source(), requests_[a])) {
        result.tensors.push_back(action_tensor(t.key, t.dtype, t.shape, t.first, t.local));
      }
    } else if (requests_[a].action != PlanAction::Summon) {
      list_state(result);
    }
    return "";
  }

  /// What this rank keeps: the shards after init and load.
  void list_state(ActionOnRank& result) const {
    for (const exec::StateTensor& t : runner_->state().tensors) {
      const DType dtype = model().params[model().find_param(t.fqn).index()].dtype;
      result.tensors.push_back(action_tensor(t.slot == "param" ? t.fqn : t.fqn + "." + t.slot, dtype, t.shape,
                                             t.pieces.empty() ? 0 : t.pieces.front().global_offset, t.local));
    }
  }

  RankSession& session_;
  const RunFlags& flags_;
  const Console& console_;
  Job job_;
  Requests requests_;
  std::optional<Prepared> prepared_;
  UnitTable units_;
  exec::StartingWeights weights_;
  std::optional<exec::Recorder> recorder_;
  std::unique_ptr<exec::Backend> backend_;
  std::shared_ptr<exec::Communicator> control_;
  std::unique_ptr<exec::ActionRunner> runner_;  // after what it refers to
  std::string fresh_, origin_;                  // where values come from, in words
  std::vector<std::string> from_;               // by action
  std::vector<ActionOnRank> results_;
};

}  // namespace

ExitCode run_actions(RankSession& session, const RunFlags& flags, const Console& console, const Job& job) {
  try {
    ActionRun run(session, flags, console, job);
    if (auto opened = run.open(); !opened) return session.wrong(opened.error());
    if (auto begun = run.begin(); !begun) return session.wrong(begun.error());
    std::string failure;
    if (auto done = run.run(failure); !done) return session.wrong(done.error());
    if (!failure.empty()) return session.failed(failure);
    if (auto written = run.write_timeline(); !written) return session.wrong(written.error());
    return run.tell() ? ExitCode::Ok : ExitCode::RunFailed;
  } catch (const std::exception& error) {  // a peer is gone, a weight cannot be read
    return session.failed(fmt::format("rank {}: {}", session.place().rank, error.what()));
  }
}

}  // namespace foreshard::cli
