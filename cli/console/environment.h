// What the process was started with: variables, and the programs that its PATH names.
#pragma once

#include <string>
#include <vector>

namespace foreshard::cli {

/// Empty where it is not set.
std::string variable(const char* name);

/// The folders of a list like PATH's.
std::vector<std::string> folders_of(const std::string& list);

/// Where on the PATH an executable file of this name is; empty if nowhere.
std::string find_program(const std::string& name);

}  // namespace foreshard::cli
