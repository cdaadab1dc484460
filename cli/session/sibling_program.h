// The other programs of Foreshard, found beside this one as git finds its verbs.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace foreshard::cli {

/// Where `name` is, or would be: the folder of this program. The name alone where the kernel does not tell.
std::string sibling_path(std::string_view name);

/// What exec and spawn take of `words`: their characters, ended by nullptr. Good as long as `words` are.
std::vector<char*> pointers_to(std::vector<std::string>& words);

/// Replaces this process by `path arguments...`; returns only if that cannot be done, with the system's words for it.
std::string replace_process(const std::string& path, std::vector<std::string> arguments);

struct Captured {
  int exit_code = 0;    // 128 + the signal's number where one ended it
  std::string printed;  // on standard output; the rest goes where ours goes
  std::string failure;  // the system's words if the program could not be started
};
/// Runs `path arguments...` and waits for its end.
Captured capture_program(const std::string& path, std::vector<std::string> arguments);

}  // namespace foreshard::cli
