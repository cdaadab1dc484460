// SIGINT, SIGTERM and SIGHUP in a rank, as one request to stop however often they arrive: a group's signal reaches a
// rank from the terminal, from Slurm or systemd, and once more from its launcher.
//
//   before the first step     the process says so and ends at once: there is nothing to lose
//   while steps run           asked() becomes true; the training finishes its step, saves and ends
//     within the grace time   further signals are the same request
//     after it                another one ends the process at once, after a word
//     after the deadline      so does the time
//
// One in a process, made before its first thread: the signals are blocked in the calling thread and those that it
// starts, and a thread of this object's own waits for them (so that it may print, which a handler may not).
#pragma once

#include <atomic>
#include <chrono>
#include <csignal>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace foreshard::exec {

/// Signals within it are one request; launcher and ranks agree on it.
inline constexpr std::chrono::seconds kStopGrace{5};

struct StopWords {
  /// While steps run: somebody asked; the run goes on to the end of its step. `signal` as in "SIGTERM".
  std::function<void(const std::string& signal)> asked;
  /// Before the first step; the process then ends with exit code 5.
  std::function<void(const std::string& signal)> ended_early;
  /// The process then ends with exit code 1: a signal after the grace time, or the deadline has passed.
  std::function<void(const std::string& why)> gave_up;
};

/// The signals that ask to stop; SIGHUP not where the process was told to ignore it (nohup).
sigset_t stop_signals();
/// "SIGTERM"
std::string signal_text(int signal);

class StopRequest {
 public:
  /// The words are said on this object's thread; a process does not wait longer than two seconds for its last ones.
  StopRequest(StopWords words, std::chrono::seconds deadline);
  ~StopRequest();
  StopRequest(const StopRequest&) = delete;
  StopRequest& operator=(const StopRequest&) = delete;

  /// From here on a request waits for the end of a step. Before ranks that wait for each other are connected.
  void steps_begin();
  bool asked() const { return asked_.load(); }
  /// "SIGTERM"; empty while nobody has asked.
  std::string signal() const;

 private:
  void watch();
  void take(int signal);
  [[noreturn]] static void end(const std::function<void(const std::string&)>& words, const std::string& text, int code);

  using Clock = std::chrono::steady_clock;

  StopWords words_;
  std::chrono::seconds deadline_;
  sigset_t signals_{}, before_{};
  mutable std::mutex mutex_;  // of what follows
  bool steps_ = false;
  std::string signal_;
  Clock::time_point since_;
  std::atomic<bool> asked_{false};
  int received_ = -1, closing_ = -1;  // descriptors: a signal is there, the object goes
  std::thread watcher_;
};

}  // namespace foreshard::exec
