// run_local_ranks and follow_launcher of exec/launch/launch.h: the ranks of this machine as children of one launcher.
#include <fmt/format.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "exec/launch/launch.h"
#include "exec/launch/rendezvous.h"
#include "exec/launch/stop_request.h"

namespace foreshard::exec {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kExitRunFailed = 1;
constexpr int kExitStopped = 5;  // by a signal, after a whole step: nothing failed

struct Child {
  int rank = 0;
  pid_t pid = 0;
  bool running = true;
  std::optional<Clock::time_point> stopped_since = std::nullopt;  // by SIGSTOP and its like
  int stopped_by = 0;
};

/// SIGCHLD and the signals that ask to stop come to sigtimedwait instead of handlers. Threads that start later inherit
/// this.
class WaitedSignals {
 public:
  WaitedSignals() {
    set_ = stop_signals();
    sigaddset(&set_, SIGCHLD);
    pthread_sigmask(SIG_BLOCK, &set_, &before_);
  }
  ~WaitedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  WaitedSignals(const WaitedSignals&) = delete;
  WaitedSignals& operator=(const WaitedSignals&) = delete;

  const sigset_t& before() const { return before_; }

  /// 0 after the deadline; no deadline waits for ever.
  int next(std::optional<Clock::time_point> deadline, siginfo_t& info) const {
    if (!deadline) return ::sigwaitinfo(&set_, &info);
    const auto left = std::max(Clock::duration::zero(), *deadline - Clock::now());
    const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(left).count();
    const timespec limit{ns / 1'000'000'000, ns % 1'000'000'000};
    const int signal = ::sigtimedwait(&set_, &info, &limit);
    return signal < 0 && errno == EAGAIN ? 0 : signal;
  }

 private:
  sigset_t set_{}, before_{};
};

class LocalRanks {
 public:
  LocalRanks(const LocalLaunch& launch, Rendezvous& store) : launch_(launch), store_(store) {}
  ~LocalRanks() { kill_all(SIGKILL), reap(true); }
  LocalRanks(const LocalRanks&) = delete;
  LocalRanks& operator=(const LocalRanks&) = delete;

  Result<void> start(const sigset_t& mask) {
    for (int rank = 0; rank < launch_.ranks; ++rank) {
      if (auto started = start_one(rank, mask); !started) return started;
    }
    return {};
  }

  LocalOutcome wait(const WaitedSignals& signals) {
    while (reap(false), anybody_runs()) {
      if (deadline_ && Clock::now() >= *deadline_) kill_all(SIGKILL), deadline_.reset();
      end_the_stopped();
      siginfo_t info{};
      const int signal = signals.next(next_deadline(), info);
      if (signal > 0 && signal != SIGCHLD) interrupted(signal);
    }
    if (const auto word = store_.reported_failure(std::chrono::milliseconds::zero())) outcome_.first_word = *word;
    for (const Child& child : children_) {
      if (auto account = store_.account_of(child.rank)) outcome_.accounts.push_back(std::move(*account));
    }
    return outcome_;
  }

 private:
  Result<void> start_one(int rank, const sigset_t& mask) {
    std::vector<std::string> variables = environment_of(rank);
    std::vector<char*> environment, arguments;
    for (std::string& variable : variables) environment.push_back(variable.data());
    environment.push_back(nullptr);
    std::vector<std::string> command = launch_.command;
    for (std::string& argument : command) arguments.push_back(argument.data());
    arguments.push_back(nullptr);
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
    posix_spawnattr_setsigmask(&attributes, &mask);
    pid_t pid = 0;
    const int code =
        ::posix_spawn(&pid, command[0].c_str(), nullptr, &attributes, arguments.data(), environment.data());
    posix_spawnattr_destroy(&attributes);
    if (code != 0) {
      Error error;
      error.code = ErrorCode::NotFound;
      error.file = command[0];
      error.expected = "a program that can be started";
      error.message = fmt::format("rank {} cannot be started: {}", rank, std::strerror(code));
      return fail(std::move(error));
    }
    children_.push_back({rank, pid});
    return {};
  }

  /// torchrun's words, so that a rank finds its place in one way only.
  std::vector<std::string> environment_of(int rank) const {
    std::vector<std::pair<std::string, std::string>> own = {{"RANK", std::to_string(rank)},
                                                            {"LOCAL_RANK", std::to_string(rank)},
                                                            {"WORLD_SIZE", std::to_string(launch_.ranks)},
                                                            {"LOCAL_WORLD_SIZE", std::to_string(launch_.ranks)},
                                                            {"MASTER_ADDR", "127.0.0.1"},
                                                            {"MASTER_PORT", std::to_string(store_.port())},
                                                            {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                                            {"TORCHELASTIC_RESTART_COUNT", "0"},
                                                            {"FORESHARD_LAUNCHER", std::to_string(::getpid())}};
    std::vector<std::string> all;
    for (char** variable = environ; *variable != nullptr; ++variable) {
      const std::string text = *variable;
      const std::string name = text.substr(0, text.find('='));
      const bool replaced = std::any_of(own.begin(), own.end(), [&](const auto& pair) { return pair.first == name; });
      if (!replaced) all.push_back(text);
    }
    for (const auto& [name, value] : own) all.push_back(name + "=" + value);
    return all;
  }

  void reap(bool to_the_end) {
    for (Child& child : children_) {
      int status = 0;
      const int how = to_the_end ? 0 : WNOHANG | WUNTRACED | WCONTINUED;
      if (!child.running || ::waitpid(child.pid, &status, how) != child.pid) continue;
      if (WIFSTOPPED(status)) {
        child.stopped_since = Clock::now();
        child.stopped_by = WSTOPSIG(status);
        note_stopped();
      } else if (WIFCONTINUED(status)) {
        child.stopped_since.reset();
        note_stopped();
      } else {
        child.running = false;
        forget_the_stopped(status);
        ended(child.rank, status);
      }
    }
  }

  /// For ranks that lose patience before we do: each of them knows its neighbours only.
  void note_stopped() {
    const auto still = std::find_if(children_.begin(), children_.end(),
                                    [](const Child& child) { return child.running && child.stopped_since; });
    store_.note_stopped(still == children_.end() ? "" : stopped_text(*still));
  }

  /// A rank that crashed goes before one that is stopped: those who lose it are not to blame the other. Not where the
  /// stopped one is what it failed of, or what we have ended.
  void forget_the_stopped(int status) {
    if (WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == kExitStopped)) return;
    const std::string noted = store_.noted_stopped();
    if (noted.empty()) return;
    const auto word = store_.reported_failure(std::chrono::milliseconds::zero());
    if (!word || word->find(noted) == word->npos) store_.note_stopped("");
  }

  static std::string stopped_text(const Child& child) {
    return fmt::format("rank {} stands still: stopped by signal {} ({})", child.rank, child.stopped_by,
                       ::strsignal(child.stopped_by));
  }

  void ended(int rank, int status) {
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
    const bool follows = outcome_.exit_code != 0 && outcome_.exit_code != kExitStopped;
    // Who spoke first may end last: it waits until the others have read its word.
    const bool spoke_first = rank == first_speaker();
    if (follows && !(spoke_first && WIFEXITED(status))) return;
    outcome_.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : kExitRunFailed;
    if (follows) return;
    std::string word;
    if (WIFSIGNALED(status)) {
      const int signal = WTERMSIG(status);
      word = fmt::format("rank {} was killed by signal {} ({})", rank, signal, ::strsignal(signal));
      if (asked_at_) word += fmt::format(": it had not ended {} s after {}", since_asked(), asked_by_);
    } else if (WEXITSTATUS(status) == kExitStopped) {
      store_.note_ended();
      return;
    } else {
      word = fmt::format("rank {} ended with exit code {}", rank, WEXITSTATUS(status));
    }
    report(word);
  }

  void report(const std::string& word) {
    store_.report_failure(word);
    outcome_.said_by_launcher = store_.reported_failure(std::chrono::milliseconds::zero()) == word;
    bring_forward(std::chrono::seconds(launch_.grace_seconds));
  }

  /// A rank that is stopped keeps the others waiting. It has some time to go on, unless the run has failed already or
  /// all of them are stopped, which is somebody's wish.
  void end_the_stopped() {
    const bool failed = outcome_.exit_code != 0 && outcome_.exit_code != kExitStopped;
    const bool others_run = std::any_of(children_.begin(), children_.end(),
                                        [](const Child& child) { return child.running && !child.stopped_since; });
    for (Child& child : children_) {
      if (!child.running || !child.stopped_since) continue;
      const bool long_enough = others_run && Clock::now() - *child.stopped_since >= still();
      if (!failed && !long_enough) continue;
      if (!failed) {
        outcome_.exit_code = kExitRunFailed;
        report(fmt::format("{} for {} s", stopped_text(child), launch_.still_seconds));
      }
      ::kill(child.pid, SIGKILL);
      child.stopped_since.reset();
    }
  }

  std::chrono::seconds still() const { return std::chrono::seconds(launch_.still_seconds); }
  std::int64_t since_asked() const {
    return std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - *asked_at_).count();
  }

  void bring_forward(std::chrono::seconds from_now) {
    const auto then = Clock::now() + from_now;
    if (!deadline_ || then < *deadline_) deadline_ = then;
  }

  /// Of the whole run, or of a rank that stands still.
  std::optional<Clock::time_point> next_deadline() const {
    auto next = deadline_;
    for (const Child& child : children_) {
      if (!child.running || !child.stopped_since) continue;
      const auto then = std::max(*child.stopped_since + still(), Clock::now() + std::chrono::milliseconds(100));
      next = next ? std::min(*next, then) : then;
    }
    return next;
  }

  /// The rank whose word of failure was the first: all of them begin with "rank N". -1: nobody has said anything.
  int first_speaker() const {
    constexpr std::string_view kRank = "rank ";
    const auto word = store_.reported_failure(std::chrono::milliseconds::zero());
    int rank = -1;
    if (word && word->starts_with(kRank))
      std::from_chars(word->data() + kRank.size(), word->data() + word->size(), rank);
    return rank;
  }

  /// Ranks take what comes twice for one request. They end themselves; we are there if they cannot.
  void interrupted(int signal) {
    constexpr std::chrono::seconds kForLastWords{5};
    if (asked_at_ && Clock::now() - *asked_at_ < kStopGrace) return;
    kill_all(signal);
    bring_forward(asked_at_ ? kForLastWords : std::chrono::seconds(launch_.stop_seconds) + kForLastWords);
    if (asked_at_) return;
    asked_at_ = Clock::now();
    asked_by_ = signal_text(signal);
  }

  void kill_all(int signal) {
    for (const Child& child : children_) {
      if (child.running) ::kill(child.pid, signal);
    }
  }

  bool anybody_runs() const {
    return std::any_of(children_.begin(), children_.end(), [](const Child& child) { return child.running; });
  }

  const LocalLaunch& launch_;
  Rendezvous& store_;
  std::vector<Child> children_;
  std::optional<Clock::time_point> deadline_;
  std::optional<Clock::time_point> asked_at_;  // to stop
  std::string asked_by_;
  LocalOutcome outcome_;
};

}  // namespace

Result<LocalOutcome> run_local_ranks(const LocalLaunch& launch) {
  const WaitedSignals signals;  // before the store's threads start
  auto store = Rendezvous::host("127.0.0.1", launch.ranks);
  if (!store) return fail(store.error());
  LocalRanks ranks(launch, **store);
  if (auto started = ranks.start(signals.before()); !started) return fail(started.error());
  return ranks.wait(signals);
}

bool follow_launcher(const RankPlace& place) {
  if (place.launcher != "foreshard") return false;
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  const char* launcher = std::getenv("FORESHARD_LAUNCHER");
  if (launcher != nullptr && std::to_string(::getppid()) != launcher)
    ::raise(SIGTERM);  // it ended before the line above
  return true;
}

}  // namespace foreshard::exec
