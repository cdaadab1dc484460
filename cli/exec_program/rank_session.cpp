#include "cli/exec_program/rank_session.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <utility>

#include "cli/console/json_text.h"
#include "core/job/job_keys.h"
#ifdef FORESHARD_WITH_GLOO
#include "exec/communicators/gloo_communicator.h"
#endif

namespace foreshard::cli {
namespace {

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
    if (!meeting) return wrong(meeting.error());
    meeting_ = std::move(*meeting);
    met_ = meeting_.get();
  }
  const ExitCode code = work();
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
  const bool ours = meeting_->reported_failure(std::chrono::milliseconds::zero()) == word;
  return ours ? console_.error(error) : exit_code_of(error.code);
}

ExitCode RankSession::failed(exec::FailureAccount account) {
  bool ours = true;
  if (meeting() != nullptr) {
    meeting()->leave_account(exec::account_json(account));
    meeting()->report_failure(account.text);
    ours = meeting()->reported_failure(std::chrono::milliseconds::zero()) == account.text;
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

Result<exec::LinkLimit> link_limit(const LinkFlags& flags) {
  exec::LinkLimit limit;
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
