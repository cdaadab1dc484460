// `foreshard shadow -- python train.py`: the script on the virtual device, then the plan of what it was found to do.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <set>
#include <string_view>

#include "cli/reports/shadow_report.h"
#include "cli/session/job_source.h"
#include "cli/session/pipeline.h"
#include "cli/session/watched_script.h"
#include "cli/verbs/verbs.h"
#include "core/job/job_file.h"
#include "core/output_file.h"
#include "core/traps.h"
#include "shadow/device_log.h"
#include "shadow/differences.h"
#include "shadow/found_job.h"
#include "shadow/watched_run.h"
#include "sim/simulate.h"
#include "traces/formats/fst.h"

namespace foreshard::cli {
namespace {

namespace fs = std::filesystem;

/// As FAKEGPU_LOG names them: a folder of the user's may hold other .jsonl files.
bool is_device_log(const fs::path& file) {
  return file.extension() == ".jsonl" && file.filename().string().starts_with("device-");
}

/// What keep() puts there.
bool is_kept_name(const std::string& name) {
  static constexpr std::array<std::string_view, 4> kNames{"job.toml", "model.json", "model-config.json", "report.json"};
  return is_device_log(name) || std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

std::string job_name_of_turn(std::size_t number) { return fmt::format("job-{}.toml", number + 1); }

/// What keep() put there of the turns of an earlier run, by its report: others of such names are the user's.
std::set<std::string> kept_of_turns(const std::string& report) {
  std::set<std::string> names;
  const auto run = shadow::read_watched_run(report);
  for (std::size_t i = 0; run && i < run->turns.size(); ++i) {
    names.insert(job_name_of_turn(i + 1));
    names.insert(run->turns[i].model_file);
  }
  return names;
}

Result<std::set<std::string>> names_in(const std::string& folder) {
  std::set<std::string> names;
  std::error_code code;
  for (fs::directory_iterator at(folder, code); !code && at != fs::directory_iterator(); at.increment(code))
    names.insert(at->path().filename().string());
  if (code) return fail(output_error(folder, code.value()));
  return names;
}

/// Where report, model and log go while the script runs: a folder that is gone afterwards, inside the user's if there
/// is one. What an earlier run left there stays until keep().
class Folder {
 public:
  static Result<Folder> make(const std::string& wanted) {
    std::error_code code;
    if (!wanted.empty()) fs::create_directories(wanted, code);
    const fs::path around = wanted.empty() ? fs::temp_directory_path(code) : fs::absolute(wanted);
    std::string pattern = (around / (wanted.empty() ? "foreshard-shadow-XXXXXX" : ".shadow-XXXXXX")).string();
    if (!code && ::mkdtemp(pattern.data())) return Folder(pattern, wanted.empty() ? "" : around.string());
    if (!code) code = std::error_code(errno, std::generic_category());
    Error error;
    error.code = ErrorCode::NotFound;
    error.message = "the folder cannot be made";
    error.file = wanted;
    error.place = "--out";
    error.expected = "a folder that can be written to";
    error.got = code.message();
    return fail(error);
  }
  Folder(Folder&& other) noexcept : path_(std::exchange(other.path_, {})), users_(std::exchange(other.users_, {})) {}
  Folder& operator=(Folder&&) = delete;
  ~Folder() {
    std::error_code code;
    if (!path_.empty()) fs::remove_all(path_, code);
  }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }
  bool kept() const { return !users_.empty(); }
  /// Where the user will find it.
  std::string kept_as(const std::string& name) const { return users_ + "/" + name; }

  /// Everything takes its place in the user's folder; then what an earlier run left beside it goes.
  Result<void> keep() const {
    if (!kept()) return {};
    const auto made = names_in(path_);
    if (!made) return fail(made.error());
    const std::set<std::string> of_turns = kept_of_turns(kept_as("report.json"));  // until it is replaced
    std::error_code code;
    for (const std::string& name : *made) {
      fs::rename(*this / name, kept_as(name), code);
      if (code) return fail(output_error(kept_as(name), code.value()));
    }
    const auto there = names_in(users_);
    if (!there) return fail(there.error());
    for (const std::string& name : *there) {
      if ((!is_kept_name(name) && !of_turns.contains(name)) || made->contains(name)) continue;
      fs::remove(kept_as(name), code);
      if (code) return fail(output_error(kept_as(name), code.value()));
    }
    return {};
  }

 private:
  Folder(std::string path, std::string users) : path_(std::move(path)), users_(std::move(users)) {}

  std::string path_, users_;  // the second is empty where nothing is kept
};

Error script_error(ErrorCode code, std::string message, std::string got, std::string hint) {
  Error error;
  error.code = code;
  error.place = "the script";
  error.message = std::move(message);
  error.expected = "a PyTorch script that trains on a GPU";
  error.got = std::move(got);
  error.hint = std::move(hint);
  return error;
}

/// Ends without a single step: why, and with which exit code.
ExitCode tell_no_step(const ScriptEnd& end, const Result<shadow::WatchedRun>& run, const ShadowFlags& flags,
                      const Console& console) {
  const auto told = [&](ErrorCode code, const std::string& message, const std::string& got, const std::string& hint,
                        ExitCode exit) {
    console.error(script_error(code, message, got, hint));
    return exit;
  };
  if (end.timed_out) {
    return told(ErrorCode::Unsupported, "the script was ended: no step within the time",
                fmt::format("{} s without a step", flags.timeout_seconds),
                "give it more with --timeout, or see what it waits for", ExitCode::RunFailed);
  }
  if (end.stopped)
    return told(ErrorCode::Unsupported, "the script was ended by a signal", "a signal", "", ExitCode::Partial);
  if (run && run->failure) {
    const bool input = run->failure->code == "bad-input";
    return told(ErrorCode::Unsupported, run->failure->message, fmt::format("exit code {}", end.exit_code),
                run->failure->hint, input ? ExitCode::BadInput : ExitCode::RunFailed);
  }
  if (end.exit_code != 0) {
    return told(ErrorCode::Unsupported, "the script failed before its first step",
                fmt::format("exit code {}", end.exit_code), "what it printed is above", ExitCode::RunFailed);
  }
  if (!run && run.error().code != ErrorCode::NotFound) return console.error(run.error());
  if (!run) {
    return told(ErrorCode::Unsupported, "the script ended and never imported PyTorch", "no torch in its interpreter",
                "name the Python that has torch, as in: foreshard shadow -- venv/bin/python train.py",
                ExitCode::BadInput);
  }
  return told(ErrorCode::Unsupported, "the script ended and never trained: no optimizer of torch.optim made a step",
              "no step", "watched are steps of torch.optim.Optimizer's subclasses", ExitCode::BadInput);
}

/// The plan and its prediction, of the job that was meant or of the found one.
struct PlanBeside {
  Plan plan;
  Prediction prediction;
  bool meets = false;  // the program itself meets ranks: of a mesh, or of the script's own groups
};
Result<PlanBeside> plan_beside(const Job& job) {
  auto prepared = prepare(job);
  if (!prepared) return fail(prepared.error());
  SimulateOptions options = simulate_options(job);
  const bool meets = !prepared->model.mesh.empty();
  options.timeline = meets;
  auto prediction = simulate(prepared->plan, prepared->model, prepared->lowered, job, prepared->profile, options);
  if (!prediction) return fail(prediction.error());
  return PlanBeside{std::move(prepared->plan), std::move(*prediction), meets};
}

/// A program may have been captured with other rows than one batch of the script's (those of all tensor ranks, say):
/// then the job leaves its sizes to the program. `found` is what is written.
Result<PlanBeside> plan_beside(Job job, Job& found) {
  auto beside = plan_beside(job);
  for (const char* key : {"model.batch", "model.seq"}) {
    if (beside || beside.error().place != key) continue;
    const ModelOptions plain;
    for (Job* each : {&job, &found}) {
      if (std::string_view(key) == "model.batch")
        each->model.batch = plain.batch;
      else
        each->model.seq = plain.seq, each->model.seq_given = false;
    }
    beside = plan_beside(job);
  }
  return beside;
}

void append(std::vector<shadow::Difference>& to, std::vector<shadow::Difference> more) {
  to.insert(to.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

/// The log of the process that trained: the one in which steps end.
Result<shadow::DeviceLog> read_log(const Folder& folder, const shadow::LogOptions& options) {
  std::vector<fs::path> logs;
  for (const auto& entry : fs::directory_iterator(folder.path())) {
    if (is_device_log(entry.path()) && fs::file_size(entry.path()) > 0) logs.push_back(entry.path());
  }
  std::sort(logs.begin(), logs.end());
  Result<shadow::DeviceLog> read =
      shadow::read_device_log(logs.empty() ? folder / "log" : logs.front().string(), options);
  for (std::size_t i = 1; i < logs.size() && read && read->steps.empty(); ++i)
    read = shadow::read_device_log(logs[i].string(), options);
  return read;
}

class Answering {
 public:
  Answering(const ShadowFlags& flags, const Console& console, const Folder& folder, const ScriptOptions& options)
      : flags_(flags), console_(console), folder_(folder), options_(options) {}

  Result<ShadowAnswer> answer(shadow::WatchedRun run, double seconds) {
    answer_.profile = flags_.profile;
    answer_.seconds = seconds;
    answer_.notes = run.notes;
    answer_.run = std::move(run);
    const auto log =
        read_log(folder_, {static_cast<std::int32_t>(answer_.run.rank), !flags_.timeline.empty(), flags_.profile});
    if (!log) return fail(log.error());
    if (!flags_.timeline.empty()) {
      if (const auto written = write_fst(log->timeline, flags_.timeline); !written) return fail(written.error());
      console_.note(fmt::format("timeline: {}", flags_.timeline));
    }
    if (answer_.run.setting) {
      find();
      if (const auto compared = compare(*log); !compared) return fail(compared.error());
      if (const auto written = write_job(); !written) return fail(written.error());
      for (std::size_t turn = 1; turn <= answer_.run.turns.size(); ++turn)
        if (const auto told = further_turn(turn, *log); !told) return fail(told.error());
    }
    return std::move(answer_);
  }

 private:
  void find() {
    const std::string& model = answer_.run.setting->model_file;
    auto found = shadow::found_job(answer_.run, {flags_.profile, options_.world.ranks_per_node},
                                   model.empty() ? "" : folder_ / model);
    beyond_first_ = found.beyond;
    append(answer_.differences, std::move(found.beyond));
    answer_.found = std::move(found.job);
  }

  /// What the first turn's job cannot express either is told once.
  void append_beyond(std::size_t number, std::vector<shadow::Difference> beyond) {
    for (shadow::Difference& each : beyond) {
      if (std::find(beyond_first_.begin(), beyond_first_.end(), each) != beyond_first_.end()) continue;
      each.text = fmt::format("turn {}: {}", number + 1, each.text);
      answer_.differences.push_back(std::move(each));
    }
  }

  Result<void> write_job() {
    Job beside = *answer_.found;
    beside.model.source = answer_.run.setting->model_file;  // relative to the file
    answer_.job_text = shadow::short_job_text(beside);
    if (!folder_.kept()) return {};
    answer_.job_file = folder_.kept_as("job.toml");
    return write_whole_file(folder_ / "job.toml", answer_.job_text);
  }

  /// Optimizers in turns: each has a job and a plan of its own. A job that was meant stands for the first.
  Result<void> further_turn(std::size_t number, const shadow::DeviceLog& log) {
    const std::string& model = answer_.run.turns[number - 1].model_file;
    auto found = shadow::found_job(answer_.run, {flags_.profile, options_.world.ranks_per_node},
                                   model.empty() ? "" : folder_ / model, number);
    append_beyond(number, std::move(found.beyond));
    ShadowTurn& turn = answer_.turns.emplace_back();
    turn.found = std::move(found.job);
    Job job = turn.found;
    allow_all(job);
    if (!flags_.no_plan && !model.empty()) {
      auto beside = plan_beside(job, turn.found);
      if (beside) {
        tell_traps(beside->plan, turn.found);
        tell_differences(log, *beside, number);
        turn.plan = std::move(beside->prediction);
      } else {
        answer_.notes.push_back(fmt::format("no plan beside turn {}: {}", number + 1, to_text(beside.error())));
      }
    }
    Job written = turn.found;
    written.model.source = model;  // relative to the file
    turn.job_text = shadow::short_job_text(written);
    if (!folder_.kept()) return {};
    const std::string name = job_name_of_turn(number);
    turn.job_file = folder_.kept_as(name);
    return write_whole_file(folder_ / name, turn.job_text);
  }

  /// Of the last step of that turn.
  void tell_differences(const shadow::DeviceLog& log, const PlanBeside& beside, std::size_t turn) {
    const auto& steps = answer_.run.steps;
    std::size_t last = std::min(log.steps.size(), steps.size());  // a process that was ended has no figures of its last
    while (last > 0 && steps[last - 1].turn != turn) --last;
    if (last == 0) return;
    answer_.compared = true;
    const auto inside = shadow::collectives_inside(beside.plan, beside.prediction.timeline);
    append(answer_.differences,
           shadow::schedule_differences(log.steps[last - 1], beside.plan, beside.meets ? &inside : nullptr));
  }

  Result<void> compare(const shadow::DeviceLog& log) {
    if (!flags_.job.empty()) {
      const auto meant = load_job(JobFlags{flags_.job, {}, {}}, console_);
      if (!meant) return fail(meant.error());
      answer_.meant = meant->job;
      append(answer_.differences, shadow::setting_differences(*answer_.found, meant->job));
    }
    Job job = answer_.meant ? *answer_.meant : *answer_.found;
    if (!answer_.meant) allow_all(job);
    if (flags_.no_plan || job.model.source.empty()) return {};
    auto beside = answer_.meant ? plan_beside(job) : plan_beside(job, *answer_.found);
    if (!beside) {
      if (answer_.meant) return fail(beside.error());
      answer_.notes.push_back("no plan beside it: " + to_text(beside.error()));
      return {};
    }
    if (!answer_.meant) tell_traps(beside->plan, *answer_.found);
    tell_differences(log, *beside, 0);
    answer_.plan = std::move(beside->prediction);
    return {};
  }

  /// What PyTorch accepts without an error the script has done, whatever it means.
  static void allow_all(Job& job) {
    job.fsdp.allow_traps.resize(kTraps);
    std::iota(job.fsdp.allow_traps.begin(), job.fsdp.allow_traps.end(), 1);
  }

  void tell_traps(const Plan& plan, Job& found) {
    auto& allowed = found.fsdp.allow_traps;
    for (const Trap& trap : plan.traps) {
      if (!trap.refused || std::find(allowed.begin(), allowed.end(), trap.number) != allowed.end()) continue;
      allowed.push_back(trap.number);
      answer_.notes.push_back(
          fmt::format("trap {}, {}: {}; instead: {}", trap.number, trap.name, trap.text, trap.remedy));
    }
  }

  const ShadowFlags& flags_;
  const Console& console_;
  const Folder& folder_;
  const ScriptOptions& options_;
  std::vector<shadow::Difference> beyond_first_;  // of the first turn's job
  ShadowAnswer answer_;
};

/// A script that goes on after its steps is fine; one that failed in between is told, with what it came to.
ExitCode outcome(const shadow::WatchedRun& run, const ScriptEnd& end, const Console& console) {
  if (end.timed_out || end.stopped) {
    console.note(fmt::format("note: the script was ended {}", end.timed_out ? "by --timeout" : "by a signal"));
    return ExitCode::Partial;
  }
  if (!run.failure) return ExitCode::Ok;
  console.note(fmt::format("note: {}", run.failure->message));
  return run.failure->code == "does-not-fit" ? ExitCode::DoesNotFit : ExitCode::RunFailed;
}

}  // namespace

ExitCode run_verb(const ShadowFlags& flags, const Console& console) {
  if (auto possible = try_outputs({flags.timeline}); !possible) return console.error(possible.error());
  const auto parts = find_shadow_parts();
  if (!parts) return console.error(parts.error());
  const auto profile = load_profile(flags.profile);
  if (!profile) return console.error(profile.error());
  const auto world = script_world(flags.world, flags.rank);
  if (!world) return console.error(world.error());
  const auto folder = Folder::make(flags.out);
  if (!folder) return console.error(folder.error());

  const ScriptOptions options{*world,
                              folder->path(),
                              flags.steps,
                              !flags.no_plan && flags.job.empty(),
                              flags.fake_weights,
                              !flags.timeline.empty(),
                              flags.timeout_seconds};
  const auto environment = script_environment(*parts, *profile, options);
  if (!environment) return console.error(environment.error());
  const auto end = run_script(flags.command, *environment, flags.timeout_seconds);
  if (!end) return console.error(end.error());
  auto run = shadow::read_watched_run(*folder / "report.json");
  if (!run || run->steps.empty()) return tell_no_step(*end, run, flags, console);

  const auto answer = Answering(flags, console, *folder, options).answer(std::move(*run), end->seconds);
  if (!answer) return console.error(answer.error());
  if (auto kept = folder->keep(); !kept) return console.error(kept.error());
  const ReportStyle style{console.color, console.unicode, console.width};
  if (!console.result(console.json ? shadow_json(*answer) : shadow_report(*answer, style))) return ExitCode::RunFailed;
  return outcome(answer->run, *end, console);
}

}  // namespace foreshard::cli
