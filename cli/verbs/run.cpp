// `foreshard run`: checks the job, then becomes foreshard-exec or foreshard-exec-cuda, the programs beside this one
// that are linked to LibTorch.
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/session/executor_process.h"
#include "cli/session/job_source.h"
#include "cli/session/pipeline.h"
#include "cli/session/run_action_check.h"
#include "cli/verbs/verbs.h"
#include "core/job/job_keys.h"
#include "sim/schedule/schedule_file.h"
#include "sim/schedule/schedule_search.h"
#include "sim/search/auto_wrap.h"

namespace foreshard::cli {
namespace {

void add_link(const LinkFlags& link, std::vector<std::string>& arguments) {
  if (link.latency_us > 0) arguments.insert(arguments.end(), {"--link-latency", std::to_string(link.latency_us)});
  if (!link.bytes_per_s.empty()) arguments.insert(arguments.end(), {"--link-bandwidth", link.bytes_per_s});
}

/// What the executor's command line says: it has the same parser.
std::vector<std::string> arguments_of(const RunFlags& flags) {
  std::vector<std::string> arguments = {"run", flags.job.file};
  const auto add = [&](std::initializer_list<std::string> words) { arguments.insert(arguments.end(), words); };
  for (const std::string& set : flags.job.set) add({"--set", set});
  if (flags.nproc > 0) add({"--nproc", std::to_string(flags.nproc)});
  add({"--backend", flags.backend, "--timeout", std::to_string(flags.timeout_seconds)});
  add({"--stop-within", std::to_string(flags.stop_seconds)});
  if (flags.action != "train") add({"--action", flags.action});
  if (!flags.timeline.empty()) add({"--timeline", flags.timeline});
  if (!flags.trace.empty()) add({"--trace", flags.trace});
  if (flags.record != "all") add({"--record", flags.record});
  if (flags.resume) add({"--resume"});
  for (const std::string& library : flags.load) add({"--load", library});
  if (flags.cuda_graphs) add({"--cuda-graphs"});
  if (flags.nccl_register) add({"--nccl-register"});
  add_link(flags.link, arguments);
  if (flags.emulate_world > 0) add({"--emulate-world", std::to_string(flags.emulate_world)});
  return arguments;
}

/// fsdp.wrap.policy = "auto", fsdp.runtime = "planned": the units and the schedule that `simulate` finds, handed on in
/// full, so that one search serves all ranks and both plan the same.
Result<void> settle_units(const Job& job, bool scheduled, const Console& console, std::vector<std::string>& sets) {
  const auto hand_on = [&sets](const Job& settled) {
    for (const char* const key : schedule_keys())
      sets.push_back(fmt::format("{}={}", key, write_job_key(*find_job_key(key), settled)));
  };
  if (scheduled) {  // by a file, which was laid beside the model: nothing is searched
    hand_on(job);
    return {};
  }
  if (!wants_wrap_search(job) && !wants_schedule_search(job)) return {};
  const auto profile = load_profile(job.cluster.profile);
  if (!profile) return fail(profile.error());
  const auto model = load_job_model(job, *profile);
  if (!model) return fail(model.error());
  const auto settled = settle_job(job, *model, *profile);
  if (!settled) return fail(settled.error());
  if (settled->job == job) return {};  // no repeated block: core's own choice, here as there
  for (const std::string& text : settled->texts) console.note("note: " + text);
  hand_on(settled->job);
  return {};
}

constexpr std::array<int, 3> kStopSignals{SIGINT, SIGTERM, SIGHUP};

/// Before anything has begun: a word, and the exit code of a run that a signal has stopped.
void tell_early_signals() {
  struct sigaction action {};
  action.sa_handler = [](int) {
    constexpr std::string_view kWord = "note: stopped by a signal before the first step: nothing was trained\n";
    static_cast<void>(::write(STDERR_FILENO, kWord.data(), kWord.size()));
    ::_exit(static_cast<int>(ExitCode::Partial));
  };
  for (const int signal : kStopSignals) {
    struct sigaction before {};
    const bool ignored = signal == SIGHUP && ::sigaction(signal, nullptr, &before) == 0 && before.sa_handler == SIG_IGN;
    if (!ignored) ::sigaction(signal, &action, nullptr);
  }
}

/// While the executor is loaded nobody could say anything: it takes what has come when it is there.
void hold_signals_back() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : kStopSignals) sigaddset(&set, signal);
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

}  // namespace

ExitCode run_verb(const RunFlags& flags, const Console& console) {
  tell_early_signals();
  if (auto fits = check_action_flags(flags); !fits) return console.error(fits.error());
  Console silent = console;
  silent.quiet = true;  // the executor says it
  RunFlags wanted = flags;
  if (flags.emulate_world > 0) wanted.job.set.push_back(fmt::format("cluster.world_size={}", flags.emulate_world));
  const auto loaded = load_job(wanted.job, silent);
  if (!loaded) return console.error(loaded.error());
  if (auto fits = check_action_list(flags, loaded->job); !fits) return console.error(fits.error());
  if (auto settled = settle_units(loaded->job, !flags.job.schedule.empty(), console, wanted.job.set); !settled)
    return tell_refusal(settled.error(), console);
  hold_signals_back();
  return run_in_executor(arguments_of(wanted), console, flags.backend == "cuda" ? Executor::Cuda : Executor::Host);
}

}  // namespace foreshard::cli
