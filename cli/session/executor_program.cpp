#include "cli/session/executor_program.h"

#include <cstdlib>
#include <filesystem>

#include "cli/session/sibling_program.h"

namespace foreshard::cli {
namespace {

namespace fs = std::filesystem;

const char* name_of(Executor executor) { return executor == Executor::Cuda ? "foreshard-exec-cuda" : "foreshard-exec"; }

Error not_built(Executor executor) {
  Error error;
  error.code = ErrorCode::NotFound;
  error.file = executor_path(executor);
  error.expected = "the program, beside foreshard";
  if (executor == Executor::Cuda && fs::exists(executor_path(Executor::Host))) {
    error.message = "this build of foreshard does not train on CUDA devices: it was configured without CUDA 13 or NCCL";
    error.hint = "`foreshard doctor` tells what is missing; --backend host trains on this machine's CPUs";
  } else {
    error.message = "this build of foreshard has no executor: it was configured without LibTorch";
    error.hint = "scripts/setup-torch installs LibTorch, scripts/build then builds foreshard-exec beside foreshard";
  }
  return error;
}

Error not_started(Executor executor, const std::string& why) {
  Error error = not_built(executor);
  error.message = "the executor cannot be started: " + why;
  error.hint.clear();
  return error;
}

/// Its warnings of lost connections say less than our errors.
void quiet_libtorch() { ::setenv("TORCH_CPP_LOG_LEVEL", "ERROR", 0); }

}  // namespace

std::string executor_path(Executor executor) { return sibling_path(name_of(executor)); }

ExitCode become_executor(const std::vector<std::string>& arguments, const Console& console, Executor executor) {
  std::error_code code;
  if (!fs::exists(executor_path(executor), code)) return console.error(not_built(executor));
  quiet_libtorch();
  return console.error(not_started(executor, replace_process(executor_path(executor), arguments)));
}

Result<Captured> capture_executor_program(const std::vector<std::string>& arguments, Executor executor) {
  std::error_code code;
  if (!fs::exists(executor_path(executor), code)) return fail(not_built(executor));
  quiet_libtorch();
  Captured captured = capture_program(executor_path(executor), arguments);
  if (!captured.failure.empty()) return fail(not_started(executor, captured.failure));
  return captured;
}

}  // namespace foreshard::cli
