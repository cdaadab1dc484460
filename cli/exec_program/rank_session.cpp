#include "cli/exec_program/rank_session.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <utility>

#include "cli/console/json_text.h"
#include "core/job/job_keys.h"
#include "exec/backend/abort_all.h"
#ifdef FORESHARD_WITH_GLOO
#include "exec/communicators/gloo_communicator.h"
#endif

namespace foreshard::cli {
namespace {

constexpr std::chrono::seconds kToEnd{8};              // for a rank whose peer is lost; then it is ended
constexpr std::chrono::milliseconds kLingering{2000};  // for the others to read the word of a rank that holds the store

Console on_stderr(Console console) {
  console.json = false;
  return console;
}

}  // namespace

void print_failure(const exec::FailureAccount& account, const Console& console) {
  if (console.json) {
    JsonText out(0);
    out.begin_object().key("error").begin_object().field("code", "run_failed").field("message", account.text);
    for (const char* key : {"file", "place", "expected", "got", "hint"}) out.field(key, "");
    out.field("rank", account.rank).field("seen_by", account.seen_by).field("step", account.step);
    out.field("instruction", account.instruction).field("unit", account.unit).field("cause", account.cause);
    out.end_object().end_object();
    console.result(out.take());
    return;
  }
  const bool tty = console.color && isatty(STDERR_FILENO) != 0;
  const std::string line = fmt::format("{}error:{} {}\n", tty ? "\x1b[1;31m" : "", tty ? "\x1b[0m" : "", account.text);
  std::fwrite(line.data(), 1, line.size(), stderr);
}

ExitCode RankSession::run(const Job& job, const std::function<ExitCode()>& work) {
  if (auto fits = exec::check_world(job, place()); !fits) return wrong(fits.error());
  if (place().world_size > 1 && !emulated()) {
    auto meeting =
        exec::Rendezvous::meet({place().master_address, place().master_port, place().rank, place().world_size,
                                place().store_hosted_elsewhere, place().store_prefix, timeout()});
    if (!meeting && meeting.error().got == exec::Rendezvous::kEndedBySignal && place().launcher == "foreshard") {
      Console loud = console_;
      loud.quiet = false;
      if (first()) loud.note("note: stopped by a signal before the first step: nothing was trained, nothing is saved");
      return ExitCode::Partial;
    }
    if (!meeting) {
      // A word that ended the meeting is told by whoever left it.
      const bool told = !meeting.error().got.empty() && place().launcher == "foreshard";
      return told ? on_stderr(console_).error(meeting.error()) : wrong(meeting.error());
    }
    meeting_ = std::move(*meeting);
    met_ = meeting_.get();
    // Our own launcher sees its ranks stop and go.
    if (place().launcher != "foreshard")
      heartbeat_.emplace(*meeting_, exec::HeartbeatOptions{},
                         [this](const std::string& word, bool ours) { lose(word, ours); });
  }
  const ExitCode code = work();
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    changed_.notify_all();
  }
  heartbeat_.reset();
  if (meeting_ != nullptr && code != ExitCode::Ok && code != ExitCode::Partial) meeting_->let_others_read(kLingering);
  return code;
}

ExitCode RankSession::wrong(const Error& error) {
  const std::string word = fmt::format("rank {}: {}", place().rank, to_text(error));
  if (meeting_ == nullptr) {
    // Those that do not meet cannot agree on who speaks.
    return first() ? console_.error(error) : on_stderr(console_).error(error);
  }
  meeting_->report_failure(word);
  return tells(word) ? console_.error(error) : exit_code_of(error.code);
}

/// Whether this rank speaks for all: the first word is its own, or the heartbeat's that it found. With the store gone
/// there is no first word; then rank 1 speaks of rank 0, which held it.
bool RankSession::tells(const std::string& word) {
  const auto first_word = meeting_->reported_failure(std::chrono::milliseconds::zero());
  const std::lock_guard lock(mutex_);
  told_ = true;
  if (!lost_.empty() && (!first_word || *first_word == lost_)) return speaks_;
  if (!first_word) return meeting_->held_by_rank_0() && place().rank == 1;
  return *first_word == word;
}

/// On the heartbeat's thread. What this rank waits for will not come: its calls throw, and it ends by itself; or, where
/// it waits for something that nobody can end, here.
void RankSession::lose(const std::string& word, bool ours) {
  std::vector<std::shared_ptr<exec::Communicator>> living;
  {
    const std::lock_guard lock(mutex_);
    lost_ = word;
    speaks_ = ours;
    for (const auto& communicator : communicators_) {
      if (auto kept = communicator.lock()) living.push_back(std::move(kept));
    }
  }
  exec::abort_all(living, word);
  living.clear();
  std::unique_lock lock(mutex_);
  if (changed_.wait_for(lock, kToEnd, [this] { return ended_; })) return;
  if (!told_) {
    exec::FailureAccount account;
    account.text = fmt::format("rank {}: {}; it could not end by itself", place().rank, word);
    account.cause = word;
    account.seen_by = place().rank;
    account.rank = exec::blamed_rank(word).value_or(-1);
    print_failure(account, ours ? console_ : on_stderr(console_));
  }
  ::_exit(static_cast<int>(ExitCode::RunFailed));
}

void RankSession::abort_with_the_lost(const std::shared_ptr<exec::Communicator>& communicator) {
  std::string lost;
  {
    const std::lock_guard lock(mutex_);
    communicators_.push_back(communicator);
    lost = lost_;
  }
  if (!lost.empty()) communicator->abort(lost);
}

/// Ranks that wait for a stopped one in a ring give up on each other: the launcher has seen which of them it is.
void RankSession::blame_the_stopped(exec::FailureAccount& account) {
  const std::string stopped = meeting()->noted_stopped();
  const auto rank = exec::blamed_rank("; " + stopped);
  // Gloo names a neighbour that is gone, or only says which operation it waited for.
  const bool waited = account.text.find("lost rank ") != account.text.npos ||
                      account.text.find("Timed out waiting ") != account.text.npos;
  if (!rank || !waited) return;
  account.text += "; " + stopped;
  account.rank = *rank;
  account.cause = stopped;
}

ExitCode RankSession::failed(exec::FailureAccount account) {
  bool ours = true;
  if (meeting() != nullptr) {
    blame_the_stopped(account);
    meeting()->leave_account(exec::account_json(account));
    meeting()->report_failure(account.text);
    ours = tells(account.text);
    if (first() || (ours && console_.json)) order_behind_steps();
  }
  print_failure(account, ours ? console_ : on_stderr(console_));
  return ExitCode::RunFailed;
}

ExitCode RankSession::failed(const std::string& text) {
  exec::FailureAccount account;
  account.text = account.cause = text;
  account.seen_by = place().rank;
  account.rank = exec::blamed_rank(text).value_or(place().rank);
  return failed(std::move(account));
}

/// All ranks write to one stdout: the word of the rank that failed comes behind rank 0's last step. A rank 0 that is
/// gone or stands still is not waited for longer than others are.
void RankSession::order_behind_steps() {
  constexpr const char* kStepsAreTold = "steps_are_told";
  try {
    if (first())
      meeting_->set(kStepsAreTold, {1});
    else
      static_cast<void>(meeting_->get(kStepsAreTold, kLingering));
  } catch (const std::exception&) {  // no store any more, or nobody came: then there is nobody to be ordered with
  }
}

Result<std::shared_ptr<exec::Communicator>> RankSession::connect(const std::string& name,
                                                                 const std::vector<int>& ranks) {
#ifdef FORESHARD_WITH_GLOO
  auto made = exec::make_gloo_communicator(*meeting_, {name, ranks, timeout()});
  if (!made) return made;
  abort_with_the_lost(*made);
  return exec::throttled(std::move(*made), options_.link);
#else
  Error error;
  error.code = ErrorCode::Unsupported;
  error.place = "cluster.world_size";
  error.expected = "one rank";
  error.message =
      fmt::format("ranks cannot be connected ({} of {} ranks): this build found no Gloo", name, ranks.size());
  error.hint = "install libgloo-dev and build again";
  return fail(std::move(error));
#endif
}

Result<exec::LinkLimit> link_limit(const LinkFlags& flags, bool host_ranks) {
  exec::LinkLimit limit;
  if (!host_ranks && (flags.latency_us > 0 || !flags.bytes_per_s.empty()))
    return fail({.code = ErrorCode::Usage,
                 .message = "a slower link is played between ranks on CPUs only",
                 .file = {},
                 .place = "--link-latency, --link-bandwidth",
                 .expected = "--backend host, and real ranks",
                 .got = "a card, or an emulated world",
                 .hint = "leave the link flags away"});
  limit.latency = std::chrono::microseconds(flags.latency_us);
  if (flags.bytes_per_s.empty()) return limit;
  const auto bytes = parse_size(flags.bytes_per_s);
  if (bytes && *bytes > 0) {
    limit.bytes_per_second = static_cast<double>(*bytes);
    return limit;
  }
  return fail({.code = ErrorCode::Usage,
               .message = "a bandwidth is a size, in bytes per second",
               .file = {},
               .place = "--link-bandwidth",
               .expected = "100MB, 1GiB, ...",
               .got = flags.bytes_per_s,
               .hint = "leave it out for the machine's own speed"});
}

}  // namespace foreshard::cli
