#include "cli/sibling_program.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

namespace foreshard::cli {

std::string sibling_path(std::string_view name) {
  std::error_code code;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", code);
  return code ? std::string(name) : (self.parent_path() / name).string();
}

std::string replace_process(const std::string& path, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), path);
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  ::execv(path.c_str(), pointers.data());
  return std::strerror(errno);
}

}  // namespace foreshard::cli
