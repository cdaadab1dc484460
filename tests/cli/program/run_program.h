// Starts the program as a user would and keeps what it says on both streams.
#pragma once

#include <string>
#include <vector>

namespace foreshard {

struct ProgramRun {
  int exit_code = -1;  // -1: ended by a signal
  std::string out, err;
};

/// `environment` are assignments such as "NO_COLOR=1"; the locale is UTF-8 unless they say otherwise.
ProgramRun run_program(const std::vector<std::string>& arguments, const std::vector<std::string>& environment = {});

/// A file of the test's own with this content; its path.
std::string temporary_file(const std::string& name, const std::string& content);

}  // namespace foreshard
