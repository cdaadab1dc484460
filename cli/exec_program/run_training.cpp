#include "cli/exec_program/run_training.h"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/exec_program/plugins.h"
#include "cli/exec_program/run_device.h"
#include "cli/exec_program/run_timeline.h"
#include "cli/exec_program/step_report.h"
#include "cli/job_source.h"
#include "cli/json_text.h"
#include "core/job_file.h"
#include "exec/launch.h"
#include "exec/recorder.h"
#include "exec/rendezvous.h"
#include "exec/training_loop.h"
#ifdef FORESHARD_WITH_GLOO
#include "exec/gloo_communicator.h"
#endif

namespace foreshard::cli {
namespace {

using exec::RankPlace;
using exec::Rendezvous;
using exec::TrainingEnd;

constexpr std::chrono::milliseconds kLingering{2000};  // for the others to read the word of a rank that holds the store

std::atomic<bool> stop_asked{false};
static_assert(std::atomic<bool>::is_always_lock_free);

/// The first signal asks, a second one ends the process at once.
void listen_to_signals() {
  struct sigaction action {};
  action.sa_handler = [](int) { stop_asked = true; };
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
  for (const int signal : {SIGINT, SIGTERM}) ::sigaction(signal, &action, nullptr);
}

/// A run that failed is no Error of the input: code "run_failed".
void print_failure(const std::string& text, const Console& console) {
  if (console.json) {
    JsonText out;
    out.begin_object().key("error").begin_object().field("code", "run_failed").field("message", text);
    for (const char* key : {"file", "place", "expected", "got", "hint"}) out.field(key, "");
    out.end_object().end_object();
    console.result(out.take());
    return;
  }
  const bool tty = console.color && isatty(STDERR_FILENO) != 0;
  const std::string line = fmt::format("{}error:{} {}\n", tty ? "\x1b[1;31m" : "", tty ? "\x1b[0m" : "", text);
  std::fwrite(line.data(), 1, line.size(), stderr);
}

Console on_stderr(Console console) {
  console.json = false;
  return console;
}

/// One rank, from its place to its exit code.
class RankRun {
 public:
  RankRun(const RunFlags& flags, const Console& console, const LoadedJob& loaded, RankPlace place)
      : flags_(flags), console_(console), loaded_(loaded), place_(std::move(place)) {}

  ExitCode run() {
    if (auto fits = exec::check_world(loaded_.job, place_); !fits) return wrong(fits.error());
    if (place_.world_size > 1 && !emulated()) {
      auto meeting = Rendezvous::meet({place_.master_address, place_.master_port, place_.rank, place_.world_size,
                                       place_.store_hosted_elsewhere, place_.store_prefix, timeout()});
      if (!meeting) return wrong(meeting.error());
      meeting_ = std::move(*meeting);
    }
    const ExitCode code = train();
    if (meeting_ != nullptr && code != ExitCode::Ok && code != ExitCode::Partial) meeting_->let_others_read(kLingering);
    return code;
  }

 private:
  std::chrono::milliseconds timeout() const { return std::chrono::seconds(flags_.timeout_seconds); }
  bool emulated() const { return flags_.emulate_world > 0; }
  bool first() const { return place_.rank == 0 || emulated(); }
  bool records() const { return !flags_.timeline.empty() || !flags_.trace.empty(); }

  /// All ranks see most wrong inputs; the one whose word was kept tells it. Without a meeting, rank 0 does.
  ExitCode wrong(const Error& error) {
    const std::string word = fmt::format("rank {}: {}", place_.rank, to_text(error));
    if (meeting_ == nullptr) {
      // Those that do not meet cannot agree on who speaks.
      return first() ? console_.error(error) : on_stderr(console_).error(error);
    }
    meeting_->report_failure(word);
    const bool ours = meeting_->reported_failure(std::chrono::milliseconds::zero()) == word;
    return ours ? console_.error(error) : exit_code_of(error.code);
  }

  ExitCode failed(const std::string& text) {
    bool ours = true;
    if (meeting_ != nullptr) {
      meeting_->report_failure(text);
      ours = meeting_->reported_failure(std::chrono::milliseconds::zero()) == text;
      if (first() || (ours && console_.json)) order_behind_steps();
    }
    print_failure(text, ours ? console_ : on_stderr(console_));
    return ExitCode::RunFailed;
  }

  /// All ranks write to one stdout: the word of the rank that failed comes behind rank 0's last step. A rank 0 that is
  /// gone or stands still is not waited for longer than others are.
  void order_behind_steps() {
    constexpr const char* kStepsAreTold = "steps_are_told";
    try {
      if (first())
        meeting_->set(kStepsAreTold, {1});
      else
        static_cast<void>(meeting_->get(kStepsAreTold, kLingering));
    } catch (const std::exception&) {  // no store any more, or nobody came: then there is nobody to be ordered with
    }
  }

  Result<std::shared_ptr<exec::Communicator>> connect(const std::string& name, const std::vector<int>& ranks) {
#ifdef FORESHARD_WITH_GLOO
    return exec::make_gloo_communicator(*meeting_, {name, ranks, timeout()});
#else
    Error error;
    error.code = ErrorCode::Unsupported;
    error.message =
        fmt::format("ranks cannot be connected ({} of {} ranks): this build found no Gloo", name, ranks.size());
    error.hint = "install libgloo-dev and build again";
    return fail(std::move(error));
#endif
  }

  ExitCode train() {
    std::optional<exec::Recorder> recorder;
    if (records()) recorder.emplace();
    const DeviceWish wish{loaded_.job,    place_,     timeout(),          recorder ? &*recorder : nullptr,
                          meeting_.get(), emulated(), flags_.cuda_graphs, flags_.nccl_register};
    const auto device = flags_.backend == "cuda" ? open_cuda_device(wish) : open_host_device(wish);
    if (!device) return wrong(device.error());
    if (first()) {
      for (const std::string& note : (*device)->notes()) console_.note("note: " + note);
    }
    const auto hooks = load_plugins(flags_.load);
    if (!hooks) return wrong(hooks.error());
    exec::TrainingSetup setup;
    setup.hooks = &*hooks;
    setup.device = (*device)->training_device();
    setup.emulated = emulated();
    setup.job = loaded_.job;
    setup.place = place_;
    setup.connect = [this](const std::string& name, const std::vector<int>& ranks) { return connect(name, ranks); };
    setup.intra_op_threads = exec::intra_op_threads(place_, [](const char* name) { return std::getenv(name); });
    setup.recorder = recorder ? &*recorder : nullptr;
    setup.resume = flags_.resume;
    setup.stop_asked = [] { return stop_asked.load(); };
    setup.documents = documents();
    const exec::TrainingEvents events = own_events();
    const auto training = exec::Training::open(setup, events);
    if (!training) return wrong(training.error());
    const TrainingEnd end = (*training)->run(events);
    end_bar();
    if (end.how == TrainingEnd::How::Failed) return failed(end.text);
    if (recorder) {
      tell_dropped(*recorder);
      auto written = write_run_timeline(**training, *recorder, {flags_.timeline, flags_.trace, (*device)->hardware()});
      if (!written) return wrong(written.error());
    }
    if (first()) {
      const MeasuredTraining measured{loaded_.job, **training, steps_, end, flags_.backend, emulated()};
      if (!console_.result(console_.json ? summary_json(measured) : summary_text(measured))) return ExitCode::RunFailed;
    }
    if (end.how == TrainingEnd::How::Done) return ExitCode::Ok;
    if (first())
      console_.note(fmt::format("note: stopped by a signal after {} of {} steps", end.steps, loaded_.job.train.steps));
    return ExitCode::Partial;
  }

  /// Of any rank, whose recording would else be taken for whole.
  void tell_dropped(const exec::Recorder& recorder) {
    const exec::RecordingCost cost = recorder.cost();
    if (cost.dropped == 0) return;
    Console loud = console_;
    loud.quiet = false;
    loud.note(fmt::format("note: rank {}: the timeline lacks {} records that found no room ({} of them CUPTI's of {})",
                          place_.rank, cost.dropped, cost.device.dropped, cost.device.records + cost.device.dropped));
  }

  std::map<std::string, std::string> documents() const {
    std::map<std::string, std::string> documents = {{"job.toml", job_to_toml(loaded_.job)}};
    if (auto config = model_config(loaded_.job.model.source)) documents["config.json"] = std::move(*config);
    return documents;
  }

  exec::TrainingEvents own_events() {
    if (!first()) return {};
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

  const RunFlags& flags_;
  const Console& console_;
  const LoadedJob& loaded_;
  RankPlace place_;
  std::unique_ptr<Rendezvous> meeting_;  // outlives the training's communicators
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
  listen_to_signals();
  RankPlace place = found->value_or(RankPlace{});
  if (flags.emulate_world > 0) {  // cluster.rank of many, alone on this machine
    place.rank = static_cast<int>(loaded->job.cluster.rank);
    place.world_size = flags.emulate_world;
  }
  return RankRun(flags, console, *loaded, place).run();
}

}  // namespace foreshard::cli
