#include "cli/session/sibling_program.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>

namespace foreshard::cli {

std::string sibling_path(std::string_view name) {
  std::error_code code;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", code);
  return code ? std::string(name) : (self.parent_path() / name).string();
}

std::vector<char*> pointers_to(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

std::string replace_process(const std::string& path, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), path);
  ::execv(path.c_str(), pointers_to(arguments).data());
  return std::strerror(errno);
}

Captured capture_program(const std::string& path, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), path);
  std::array<int, 2> pipe{};
  if (::pipe2(pipe.data(), O_CLOEXEC) != 0) return {127, "", std::strerror(errno)};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, pipe[1], STDOUT_FILENO);
  pid_t child = 0;
  const int failed = ::posix_spawn(&child, path.c_str(), &actions, nullptr, pointers_to(arguments).data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  ::close(pipe[1]);
  Captured captured;
  if (failed != 0) {
    captured.exit_code = 127;
    captured.failure = std::strerror(failed);
  } else {
    std::array<char, 4096> part{};
    for (;;) {
      const ssize_t read = ::read(pipe[0], part.data(), part.size());
      if (read < 0 && errno == EINTR) continue;
      if (read <= 0) break;
      captured.printed.append(part.data(), static_cast<std::size_t>(read));
    }
    int status = 0;
    while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    captured.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  ::close(pipe[0]);
  return captured;
}

}  // namespace foreshard::cli
