#include "cli/exec_program/run_training.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/console/json_text.h"
#include "cli/exec_program/devices/run_device.h"
#include "cli/exec_program/plugins.h"
#include "cli/exec_program/rank_session.h"
#include "cli/exec_program/run_action.h"
#include "cli/exec_program/run_timeline.h"
#include "cli/exec_program/step_report.h"
#include "cli/session/job_source.h"
#include "core/job/job_file.h"
#include "core/job/located_error.h"
#include "core/output_file.h"
#include "core/text/utf8.h"
#include "exec/launch/launch.h"
#include "exec/launch/stop_request.h"
#include "exec/record/recorder.h"
#include "exec/training/training_loop.h"

namespace foreshard::cli {
namespace {

using exec::RankPlace;
using exec::TrainingEnd;

void tell_early_end(const std::string& signal, const Console& console) {
  if (console.json) {
    JsonText out(0);
    out.begin_object().field("schema", "foreshard.run/1").field("end", "interrupted").field("steps", 0);
    out.field("signal", signal).end_object();
    console.result(out.take());
  }
  Console loud = console;
  loud.quiet = false;
  loud.note(fmt::format("note: stopped by {} before the first step: nothing was trained, nothing is saved", signal));
}

/// What a rank says of signals; rank 0 for all of them where they all say the same.
exec::StopWords stop_words(RankSession& session, const RunFlags& flags, const Console& console, const Job& job) {
  exec::StopWords words;
  const std::string dir = job.train.checkpoint.dir;
  const std::string saving = dir.empty() ? "train.checkpoint.dir is empty: nothing is saved" : "then saves to " + dir;
  words.asked = [&session, &console, &flags, saving](const std::string& signal) {
    if (!session.first()) return;
    console.note(
        fmt::format("note: {}: the run finishes its step, {}, and ends, at the latest after {} s; another signal after "
                    "{} s ends it "
                    "at once",
                    signal, saving, flags.stop_seconds, exec::kStopGrace.count()));
  };
  words.ended_early = [&session, &console](const std::string& signal) {
    if (session.first()) tell_early_end(signal, console);
    if (session.meeting() != nullptr)
      session.meeting()->report_failure(
          fmt::format("rank {} was stopped by {} before the first step", session.place().rank, signal));
  };
  words.gave_up = [&session, dir](const std::string& why) {
    const std::string rest = dir.empty() ? "nothing is saved" : "the newest whole checkpoint is in " + dir;
    session.failed(fmt::format("rank {}: {}; {}", session.place().rank, why, rest));
  };
  return words;
}

/// One rank that trains.
class RankTraining {
 public:
  RankTraining(RankSession& session, exec::StopRequest& stop, const RunFlags& flags, const Console& console,
               const LoadedJob& loaded)
      : session_(session), stop_(stop), flags_(flags), console_(console), loaded_(loaded) {}

  ExitCode run() {
    try {
      return train();
    } catch (const std::exception& error) {  // a peer is gone while the recordings are gathered
      return session_.failed(fmt::format("rank {}: {}", session_.place().rank, first_line(error.what())));
    }
  }

 private:
  exec::RecordedKinds recorded() const {
    return flags_.record == "work" ? exec::RecordedKinds::WorkOnly : exec::RecordedKinds::All;
  }

  ExitCode train() {
    std::optional<exec::Recorder> recorder;
    if (records()) recorder.emplace();
    const DeviceWish wish{loaded_.job,        session_.place(),    session_.timeout(), recorder ? &*recorder : nullptr,
                          session_.meeting(), session_.emulated(), flags_.cuda_graphs, flags_.nccl_register,
                          recorded()};
    const auto device = flags_.backend == "cuda" ? open_cuda_device(wish) : open_host_device(wish);
    if (!device) return session_.wrong(device.error());
    if (session_.first()) {
      for (const std::string& note : (*device)->notes()) console_.note("note: " + note);
    }
    const auto hooks = load_plugins(flags_.load);
    if (!hooks) return session_.wrong(hooks.error());
    exec::TrainingSetup setup;
    setup.hooks = &*hooks;
    setup.device = device_of(**device);
    setup.emulated = session_.emulated();
    setup.job = loaded_.job;
    setup.place = session_.place();
    setup.connect = [this](const std::string& name, const std::vector<int>& ranks) {
      stop_.steps_begin();  // from here on ranks wait for each other
      return session_.connect(name, ranks);
    };
    setup.intra_op_threads =
        exec::intra_op_threads(session_.place(), [](const char* name) { return std::getenv(name); });
    setup.recorder = recorder ? &*recorder : nullptr;
    setup.resume = flags_.resume;
    setup.stop_asked = [this] { return stop_.asked(); };
    setup.documents = documents();
    const exec::TrainingEvents events = own_events();
    const auto training = exec::Training::open(setup, events);
    if (!training)
      return stop_.asked() ? stopped_before_the_first_step() : session_.wrong(located(training.error(), loaded_));
    stop_.steps_begin();
    const TrainingEnd end = (*training)->run(events);
    end_bar();
    if (end.how == TrainingEnd::How::Failed) return session_.failed(end.failure);
    if (end.how == TrainingEnd::How::Interrupted && end.steps == (*training)->first_step())
      return stopped_before_the_first_step();
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
    if (session_.first()) tell_note(stopped_text(end));
    return ExitCode::Partial;
  }

  /// The device's own groups end with a lost rank, too.
  exec::TrainingDevice device_of(RunDevice& device) {
    exec::TrainingDevice of = device.training_device();
    if (of.connect && !session_.emulated()) {
      of.connect = [this, connect = std::move(of.connect)](const std::string& name, const std::vector<int>& ranks) {
        auto made = connect(name, ranks);
        if (made) session_.abort_with_the_lost(*made);
        return made;
      };
    }
    return of;
  }

  std::string stopped_text(const TrainingEnd& end) const {
    const std::string saved = end.saved.empty() ? "nothing is saved: train.checkpoint.dir is empty"
                                                : fmt::format("saved in {}; --resume goes on from there", end.saved);
    return fmt::format("note: stopped by a signal after {} of {} steps: {}", end.steps, loaded_.job.train.steps, saved);
  }

  ExitCode stopped_before_the_first_step() {
    if (session_.first()) tell_early_end(stop_.signal(), console_);
    return ExitCode::Partial;
  }

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
  exec::StopRequest& stop_;
  const RunFlags& flags_;
  const Console& console_;
  const LoadedJob& loaded_;
  std::vector<exec::StepReport> steps_;
  bool bar_ = false;
};

/// The launcher's own word, with the place where a rank that lived on was when it lost the other.
exec::FailureAccount account_of_lost_rank(const exec::LocalOutcome& outcome) {
  exec::FailureAccount account;
  for (const std::string& text : outcome.accounts) {
    const auto survivor = exec::account_from_json(text);
    if (!survivor || (account.instruction >= 0 && survivor->instruction < 0)) continue;
    if (account.text.empty() || account.instruction < 0) account = *survivor;
  }
  const std::string& word = outcome.first_word;
  account.rank = exec::blamed_rank("; " + word).value_or(account.rank);
  account.text = account.text.empty()                           ? word
                 : account.text.find(word) == account.text.npos ? account.text + "; " + word
                                                                : account.text;
  account.cause = word;
  return account;
}

/// The launcher checks what it can, so that a mistake is told once and not once a rank.
ExitCode launch_here(const RunFlags& flags, const Console& console, const LoadedJob& loaded,
                     const std::vector<std::string>& command) {
  RankPlace place;
  place.world_size = place.local_world_size = flags.nproc;
  place.launcher = "foreshard";
  if (auto fits = exec::check_world(loaded.job, place); !fits) return console.error(fits.error());
  if (auto possible = try_outputs({flags.timeline, flags.trace}); !possible) return console.error(possible.error());
  exec::LocalLaunch launch{command, flags.nproc};
  launch.stop_seconds = flags.stop_seconds;
  const auto outcome = exec::run_local_ranks(launch);
  if (!outcome) return console.error(outcome.error());
  if (outcome->said_by_launcher) print_failure(account_of_lost_rank(*outcome), console);
  return static_cast<ExitCode>(outcome->exit_code);
}

Error both_launchers(const RankPlace& place) {
  Error error;
  error.code = ErrorCode::Usage;
  error.place = "--nproc";
  error.expected = "one of them";
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
  error.expected = "no launcher and no --nproc";
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
  const auto link = link_limit(flags.link, flags.backend != "cuda" && flags.emulate_world == 0);
  if (!link) return quiet.error(link.error());
  RankSession session(console, {place, std::chrono::seconds(flags.timeout_seconds), flags.emulate_world > 0, *link});
  exec::StopRequest stop(stop_words(session, flags, console, loaded->job), std::chrono::seconds(flags.stop_seconds));
  if (!own_child && session.first()) {  // a launcher has tried them already
    if (auto possible = try_outputs({flags.timeline, flags.trace}); !possible) return console.error(possible.error());
  }
  return session.run(loaded->job, [&] {
    return flags.action != "train" ? run_actions(session, flags, console, loaded->job)
                                   : RankTraining(session, stop, flags, console, *loaded).run();
  });
}

}  // namespace foreshard::cli
