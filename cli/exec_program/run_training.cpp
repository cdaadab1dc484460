#include "cli/exec_program/run_training.h"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/exec_program/plugins.h"
#include "cli/exec_program/rank_session.h"
#include "cli/exec_program/run_action.h"
#include "cli/exec_program/devices/run_device.h"
#include "cli/exec_program/run_timeline.h"
#include "cli/exec_program/step_report.h"
#include "cli/session/job_source.h"
#include "core/job/job_file.h"
#include "exec/launch/launch.h"
#include "exec/record/recorder.h"
#include "exec/training/training_loop.h"

namespace foreshard::cli {
namespace {

using exec::RankPlace;
using exec::TrainingEnd;

std::atomic<bool> stop_asked{false};
static_assert(std::atomic<bool>::is_always_lock_free);

/// The first signal asks, a second one ends the process at once.
void listen_to_signals() {
  struct sigaction action {};
  action.sa_handler = [](int) { stop_asked = true; };
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
  for (const int signal : {SIGINT, SIGTERM}) ::sigaction(signal, &action, nullptr);
}

/// One rank that trains.
class RankTraining {
 public:
  RankTraining(RankSession& session, const RunFlags& flags, const Console& console, const LoadedJob& loaded)
      : session_(session), flags_(flags), console_(console), loaded_(loaded) {}

  ExitCode run() {
    std::optional<exec::Recorder> recorder;
    if (records()) recorder.emplace();
    const DeviceWish wish{loaded_.job,        session_.place(),    session_.timeout(), recorder ? &*recorder : nullptr,
                          session_.meeting(), session_.emulated(), flags_.cuda_graphs, flags_.nccl_register};
    const auto device = flags_.backend == "cuda" ? open_cuda_device(wish) : open_host_device(wish);
    if (!device) return session_.wrong(device.error());
    if (session_.first()) {
      for (const std::string& note : (*device)->notes()) console_.note("note: " + note);
    }
    const auto hooks = load_plugins(flags_.load);
    if (!hooks) return session_.wrong(hooks.error());
    exec::TrainingSetup setup;
    setup.hooks = &*hooks;
    setup.device = (*device)->training_device();
    setup.emulated = session_.emulated();
    setup.job = loaded_.job;
    setup.place = session_.place();
    setup.connect = [this](const std::string& name, const std::vector<int>& ranks) {
      return session_.connect(name, ranks);
    };
    setup.intra_op_threads =
        exec::intra_op_threads(session_.place(), [](const char* name) { return std::getenv(name); });
    setup.recorder = recorder ? &*recorder : nullptr;
    setup.resume = flags_.resume;
    setup.stop_asked = [] { return stop_asked.load(); };
    setup.documents = documents();
    const exec::TrainingEvents events = own_events();
    const auto training = exec::Training::open(setup, events);
    if (!training) return session_.wrong(training.error());
    const TrainingEnd end = (*training)->run(events);
    end_bar();
    if (end.how == TrainingEnd::How::Failed) return session_.failed(end.text);
    if (recorder) {
      (*device)->finish_recording();
      tell_dropped(*recorder);
      auto written = write_run_timeline((*training)->plan(), (*training)->control(), *recorder,
                                        {flags_.timeline, flags_.trace, (*device)->hardware()});
      if (!written) return session_.wrong(written.error());
    }
    if (session_.first()) {
      const MeasuredTraining measured{loaded_.job, **training, steps_, end, flags_.backend, session_.emulated()};
      if (!console_.result(console_.json ? summary_json(measured) : summary_text(measured))) return ExitCode::RunFailed;
    }
    if (end.how == TrainingEnd::How::Done) return ExitCode::Ok;
    if (session_.first())
      console_.note(fmt::format("note: stopped by a signal after {} of {} steps", end.steps, loaded_.job.train.steps));
    return ExitCode::Partial;
  }

 private:
  bool records() const { return !flags_.timeline.empty() || !flags_.trace.empty(); }

  /// Of any rank, whose recording would else be taken for whole.
  void tell_dropped(const exec::Recorder& recorder) {
    const exec::RecordingCost cost = recorder.cost();
    if (cost.dropped == 0) return;
    Console loud = console_;
    loud.quiet = false;
    loud.note(fmt::format("note: rank {}: the timeline lacks {} records that found no room ({} of them CUPTI's of {})",
                          session_.place().rank, cost.dropped, cost.device.dropped,
                          cost.device.records + cost.device.dropped));
  }

  std::map<std::string, std::string> documents() const {
    std::map<std::string, std::string> documents = {{"job.toml", job_to_toml(loaded_.job)}};
    if (auto config = model_config(loaded_.job.model.source)) documents["config.json"] = std::move(*config);
    return documents;
  }

  exec::TrainingEvents own_events() {
    if (!session_.first()) return {};
    exec::TrainingEvents events;
    events.step = [this](const exec::StepReport& step) { tell(step); };
    events.saved = [this](const std::string& folder) { tell_note("checkpoint: " + folder); };
    events.note = [this](const std::string& text) { tell_note("note: " + text); };
    return events;
  }

  bool draws_bar() const { return !console_.json && !console_.quiet && isatty(STDOUT_FILENO) != 0; }

  void tell(const exec::StepReport& step) {
    steps_.push_back(step);
    const std::int64_t all = loaded_.job.train.steps;
    if (draws_bar()) {
      bar_ = true;
      console_.result("\r\x1b[K" + progress_bar(step, all, console_.width, console_.unicode));
    } else {
      console_.result(console_.json ? step_json(step) : step_line(step, all));
    }
  }

  void tell_note(const std::string& text) {
    end_bar();
    console_.note(text);
  }

  void end_bar() {
    if (std::exchange(bar_, false)) console_.result("\n");
  }

  RankSession& session_;  // its meeting outlives the training's communicators
  const RunFlags& flags_;
  const Console& console_;
  const LoadedJob& loaded_;
  std::vector<exec::StepReport> steps_;
  bool bar_ = false;
};

/// The launcher checks what it can, so that a mistake is told once and not once a rank.
ExitCode launch_here(const RunFlags& flags, const Console& console, const LoadedJob& loaded,
                     const std::vector<std::string>& command) {
  RankPlace place;
  place.world_size = place.local_world_size = flags.nproc;
  place.launcher = "foreshard";
  if (auto fits = exec::check_world(loaded.job, place); !fits) return console.error(fits.error());
  const auto outcome = exec::run_local_ranks({command, flags.nproc});
  if (!outcome) return console.error(outcome.error());
  if (outcome->said_by_launcher) print_failure(outcome->first_word, console);
  return static_cast<ExitCode>(outcome->exit_code);
}

Error both_launchers(const RankPlace& place) {
  Error error;
  error.code = ErrorCode::Usage;
  error.message = fmt::format("--nproc starts ranks, and {} has started this one already", place.launcher);
  error.got = fmt::format("rank {} of {} in the environment", place.rank, place.world_size);
  error.hint = "leave --nproc out, or start without the launcher";
  return error;
}

Error peers_twice(const std::optional<RankPlace>& place) {
  Error error;
  error.code = ErrorCode::Usage;
  error.place = "--emulate-world";
  error.message = "one process stands for all ranks";
  error.got =
      place ? fmt::format("rank {} of {} in the environment ({})", place->rank, place->world_size, place->launcher)
            : "--nproc beside it";
  error.hint = "start it alone; cluster.rank says which of the ranks it is";
  return error;
}

}  // namespace

ExitCode run_training(const RunFlags& flags, const Console& console, const std::vector<std::string>& command) {
  const auto found = exec::place_in_environment([](const char* name) { return std::getenv(name); });
  if (!found) return console.error(found.error());
  const bool own_child = *found && exec::follow_launcher(**found);
  if (!own_child && flags.nproc > 0 && *found && (*found)->launcher == "torchrun") {
    return console.error(both_launchers(**found));
  }
  if (flags.emulate_world > 0 && (flags.nproc > 0 || *found)) return console.error(peers_twice(*found));
  Console quiet = console;
  quiet.quiet = console.quiet || (*found && (*found)->rank != 0);
  const auto loaded = load_job(flags.job, quiet);
  if (!loaded) return quiet.error(loaded.error());
  if (flags.nproc > 0 && !own_child) return launch_here(flags, console, *loaded, command);
  RankPlace place = found->value_or(RankPlace{});
  if (flags.emulate_world > 0) {  // cluster.rank of many, alone on this machine
    place.rank = static_cast<int>(loaded->job.cluster.rank);
    place.world_size = flags.emulate_world;
  }
  RankSession session(console, {place, std::chrono::seconds(flags.timeout_seconds), flags.emulate_world > 0});
  if (flags.action != "train") {
    return session.run(loaded->job, [&] { return run_actions(session, flags, console, loaded->job); });
  }
  listen_to_signals();
  return session.run(loaded->job, [&] { return RankTraining(session, flags, console, *loaded).run(); });
}

}  // namespace foreshard::cli
