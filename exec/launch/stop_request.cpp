#include "exec/launch/stop_request.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <future>
#include <utility>

namespace foreshard::exec {
namespace {

constexpr int kStopped = 5, kFailed = 1;  // exit codes, docs/errors.md
constexpr std::chrono::seconds kLastWords{2};

}  // namespace

sigset_t stop_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction now {};
    // nohup's wish; SIGINT is ignored in whatever a script starts in its background, where it means nothing.
    const bool ignored = signal == SIGHUP && ::sigaction(signal, nullptr, &now) == 0 && now.sa_handler == SIG_IGN;
    if (!ignored) sigaddset(&set, signal);
  }
  return set;
}

std::string signal_text(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name != nullptr ? fmt::format("SIG{}", name) : fmt::format("signal {}", signal);
}

StopRequest::StopRequest(StopWords words, std::chrono::seconds deadline)
    : words_(std::move(words)), deadline_(deadline), signals_(stop_signals()) {
  ::pthread_sigmask(SIG_BLOCK, &signals_, &before_);
  received_ = ::signalfd(-1, &signals_, SFD_CLOEXEC | SFD_NONBLOCK);
  closing_ = ::eventfd(0, EFD_CLOEXEC);
  watcher_ = std::thread([this] { watch(); });
}

StopRequest::~StopRequest() {
  const std::uint64_t one = 1;
  static_cast<void>(::write(closing_, &one, sizeof one));
  watcher_.join();
  ::close(received_);
  ::close(closing_);
  ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

void StopRequest::steps_begin() {
  std::lock_guard lock(mutex_);
  steps_ = true;
}

std::string StopRequest::signal() const {
  std::lock_guard lock(mutex_);
  return signal_;
}

void StopRequest::watch() {
  for (;;) {
    int patience = -1;
    if (asked_) {
      const auto left = since_ + deadline_ - Clock::now();  // written by this thread only
      patience = static_cast<int>(
          std::clamp<std::int64_t>(std::chrono::ceil<std::chrono::milliseconds>(left).count(), 0, 3'600'000));
      if (left <= Clock::duration::zero())
        end(words_.gave_up,
            fmt::format("the step was not finished and saved within {} s of {}", deadline_.count(), signal_), kFailed);
    }
    std::array<pollfd, 2> ready{{{received_, POLLIN, 0}, {closing_, POLLIN, 0}}};
    if (::poll(ready.data(), ready.size(), patience) <= 0) continue;
    if (ready[1].revents != 0) return;
    signalfd_siginfo info{};
    if (::read(received_, &info, sizeof info) == sizeof info) take(static_cast<int>(info.ssi_signo));
  }
}

void StopRequest::take(int signal) {
  const std::string name = signal_text(signal);
  {
    std::lock_guard lock(mutex_);
    if (!steps_) end(words_.ended_early, name, kStopped);  // whoever wants to begin steps waits here for the end
    if (!asked_) {
      signal_ = name;
      since_ = Clock::now();
      asked_ = true;
    } else if (Clock::now() - since_ < kStopGrace) {
      return;
    } else {
      end(words_.gave_up, fmt::format("a second signal ({}) ended the run at once", name), kFailed);
    }
  }
  if (words_.asked) words_.asked(name);
}

/// What the last words need may be held by the thread that hangs.
void StopRequest::end(const std::function<void(const std::string&)>& words, const std::string& text, int code) {
  std::promise<void> said;
  std::future<void> done = said.get_future();
  std::thread([&] {
    if (words) words(text);
    said.set_value();
  }).detach();
  done.wait_for(kLastWords);
  ::_exit(code);
}

}  // namespace foreshard::exec
