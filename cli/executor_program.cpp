#include "cli/executor_program.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

namespace foreshard::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kExecutor = "foreshard-exec";

fs::path executor_path() {
  std::error_code code;
  const fs::path self = fs::read_symlink("/proc/self/exe", code);
  return code ? fs::path(kExecutor) : self.parent_path() / kExecutor;
}

Error not_built(const fs::path& path) {
  Error error;
  error.code = ErrorCode::NotFound;
  error.file = path.string();
  error.message = "this build of foreshard has no executor: it was configured without LibTorch";
  error.hint = "scripts/setup-torch installs LibTorch, scripts/build then builds foreshard-exec beside foreshard";
  return error;
}

}  // namespace

ExitCode become_executor(const std::vector<std::string>& arguments, const Console& console) {
  const fs::path path = executor_path();
  std::error_code code;
  if (!fs::exists(path, code)) return console.error(not_built(path));
  std::vector<std::string> command = arguments;
  command.insert(command.begin(), path.string());
  std::vector<char*> pointers;
  for (std::string& argument : command) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  ::setenv("TORCH_CPP_LOG_LEVEL", "ERROR", 0);  // its warnings of lost connections say less than our errors
  ::execv(path.c_str(), pointers.data());
  Error error = not_built(path);
  error.message = fmt::format("the executor cannot be started: {}", std::strerror(errno));
  error.hint.clear();
  return console.error(error);
}

}  // namespace foreshard::cli
