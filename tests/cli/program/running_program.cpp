#include "tests/cli/program/running_program.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "tests/support/file_content.h"
#include "tests/support/temporary_path.h"

namespace foreshard {
namespace {

using foreshard::testing::content_of;

bool is_launcher_variable(const std::string& assignment) {
  for (const char* name : {"RANK=", "WORLD_SIZE=", "LOCAL_RANK=", "MASTER_", "TORCHELASTIC_", "SLURM_", "OMPI_", "PMI_",
                           "FORESHARD_SET=", "NO_COLOR="}) {
    if (assignment.starts_with(name)) return true;
  }
  return false;
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

RunningProgram::RunningProgram(const std::string& program, const std::vector<std::string>& arguments,
                               const std::vector<std::string>& environment) {
  static int count = 0;
  const std::string number = std::to_string(count++);
  out_path_ = testing::temporary_path("running_out" + number);
  err_path_ = testing::temporary_path("running_err" + number);
  std::vector<std::string> words = {program};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<std::string> variables = environment;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (!is_launcher_variable(*variable)) variables.emplace_back(*variable);
  }
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&files, 1, out_path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_addopen(&files, 2, err_path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  // Tests that run in a shell's background ignore SIGINT; their programs must not inherit that.
  sigset_t as_usual;
  sigemptyset(&as_usual);
  for (const int signal : {SIGINT, SIGQUIT, SIGTERM, SIGHUP}) sigaddset(&as_usual, signal);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
  posix_spawnattr_setsigdefault(&attributes, &as_usual);
  EXPECT_EQ(::posix_spawn(&pid_, program.c_str(), &files, &attributes, pointers_to(words).data(),
                          pointers_to(variables).data()),
            0);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
}

RunningProgram::~RunningProgram() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  std::filesystem::remove(out_path_);
  std::filesystem::remove(err_path_);
}

bool RunningProgram::wait_for_lines(int count) {
  for (int i = 0; i < 3600; ++i) {
    const std::string text = content_of(out_path_);
    if (std::count(text.begin(), text.end(), '\n') >= count) return true;
    siginfo_t info{};
    if (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid != 0) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return false;
}

std::optional<pid_t> RunningProgram::child_with(const std::string& assignment) const {
  const std::string own = std::to_string(pid_);
  std::ifstream children("/proc/" + own + "/task/" + own + "/children");
  for (pid_t child = 0; children >> child;) {
    std::string environment = content_of("/proc/" + std::to_string(child) + "/environ");
    environment.insert(environment.begin(), '\0');
    if (environment.find('\0' + assignment + '\0') != std::string::npos) return child;
  }
  return std::nullopt;
}

ProgramEnd RunningProgram::wait() {
  int status = 0;
  ::waitpid(pid_, &status, 0);
  pid_ = 0;
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, content_of(out_path_), content_of(err_path_)};
}

int free_port() {
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t length = sizeof address;
  ::bind(socket, reinterpret_cast<sockaddr*>(&address), length);
  ::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &length);
  ::close(socket);
  return ntohs(address.sin_port);
}

}  // namespace foreshard
