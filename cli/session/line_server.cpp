#include "cli/session/line_server.h"

#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <thread>
#include <utility>

#include "cli/session/sibling_program.h"

namespace foreshard::cli {

std::string LineServer::start(const std::string& path, std::vector<std::string> arguments) {
  if (child_ > 0) return {};
  arguments.insert(arguments.begin(), path);
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) return std::strerror(errno);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  const int failed = ::posix_spawn(&child_, path.c_str(), &actions, nullptr, pointers_to(arguments).data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  if (failed == 0) {
    socket_ = ends[0];
    return {};
  }
  child_ = 0;
  ::close(ends[0]);
  return std::strerror(failed);
}

std::string LineServer::ask(const std::string& line) {
  const std::string question = line + '\n';
  for (std::size_t sent = 0; sent < question.size();) {
    const ssize_t part = ::send(socket_, question.data() + sent, question.size() - sent, MSG_NOSIGNAL);
    if (part < 0 && errno == EINTR) continue;
    if (part <= 0) return stop(), std::string();
    sent += static_cast<std::size_t>(part);
  }
  std::array<char, 4096> part{};
  for (;;) {
    if (const std::size_t end = heard_.find('\n'); end != heard_.npos) {
      std::string answer = heard_.substr(0, end);
      heard_.erase(0, end + 1);
      return answer;
    }
    const ssize_t got = ::recv(socket_, part.data(), part.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return stop(), std::string();
    heard_.append(part.data(), static_cast<std::size_t>(got));
  }
}

void LineServer::stop() {
  if (child_ <= 0) return;
  ::close(std::exchange(socket_, -1));
  int status = 0;
  constexpr int kMostWaits = 200;
  for (int waits = 0; ::waitpid(child_, &status, WNOHANG) == 0; ++waits) {
    if (waits == kMostWaits) ::kill(child_, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  child_ = 0;
  heard_.clear();
}

}  // namespace foreshard::cli
