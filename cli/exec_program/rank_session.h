// What every run of a rank has beside its work: its place, the meeting with the other ranks, and one voice for all of
// them when something goes wrong. Lives on the thread that issues; outlives what was connected through it.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "cli/console/console.h"
#include "core/job.h"
#include "core/result.h"
#include "exec/communicators/communicator.h"
#include "exec/communicators/throttled_communicator.h"
#include "exec/launch/heartbeat.h"
#include "exec/launch/launch.h"
#include "exec/launch/rendezvous.h"
#include "exec/training/failure_text.h"

namespace foreshard::cli {

struct SessionOptions {
  exec::RankPlace place;
  std::chrono::milliseconds timeout{0};  // of meetings and collectives
  bool emulated = false;                 // one process stands for all ranks: nobody is met
  exec::LinkLimit link;                  // of every communicator of the host's ranks
};

class RankSession {
 public:
  RankSession(const Console& console, SessionOptions options) : console_(console), options_(std::move(options)) {}

  /// Meets the other ranks, does `work`, and lets them read why if it failed.
  ExitCode run(const Job& job, const std::function<ExitCode()>& work);

  const exec::RankPlace& place() const { return options_.place; }
  std::chrono::milliseconds timeout() const { return options_.timeout; }
  bool emulated() const { return options_.emulated; }
  bool first() const { return place().rank == 0 || emulated(); }  // who speaks
  exec::Rendezvous* meeting() const { return met_.load(); }       // null for a rank alone; from any thread

  /// Ranks call it in the same order.
  Result<std::shared_ptr<exec::Communicator>> connect(const std::string& name, const std::vector<int>& ranks);
  /// A communicator that was made elsewhere: aborted, as those of connect() are, when a rank is lost.
  void abort_with_the_lost(const std::shared_ptr<exec::Communicator>& communicator);

  /// All ranks see most wrong inputs; the one whose word was kept tells it. Without a meeting, rank 0 does.
  ExitCode wrong(const Error& error);
  /// A run that failed while it ran: code "run_failed".
  ExitCode failed(exec::FailureAccount account);
  ExitCode failed(const std::string& text);  // nothing is known but the sentence

 private:
  bool tells(const std::string& word);
  void lose(const std::string& word, bool ours);
  void order_behind_steps();
  void blame_the_stopped(exec::FailureAccount& account);

  const Console& console_;
  SessionOptions options_;
  std::unique_ptr<exec::Rendezvous> meeting_;
  std::atomic<exec::Rendezvous*> met_{nullptr};

  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  std::vector<std::weak_ptr<exec::Communicator>> communicators_;
  std::string lost_;     // the heartbeat's word, empty while nobody is lost
  bool speaks_ = false;  // for all of them, of the lost one
  bool told_ = false;    // why this rank ends
  bool ended_ = false;
  std::optional<exec::Heartbeat> heartbeat_;  // last: it calls back
};

/// A run that failed is no Error of the input. In JSON one line, with the account's parts behind the fields of errors.
void print_failure(const exec::FailureAccount& account, const Console& console);

/// What the flags say. Errors: a bandwidth that is no size, a limit where ranks are no host ranks.
Result<exec::LinkLimit> link_limit(const LinkFlags& flags, bool host_ranks);

}  // namespace foreshard::cli
