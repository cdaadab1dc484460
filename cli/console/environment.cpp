#include "cli/console/environment.h"

#include <unistd.h>

#include <cstdlib>
#include <sstream>

namespace foreshard::cli {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

std::vector<std::string> folders_of(const std::string& list) {
  std::vector<std::string> folders;
  std::stringstream stream(list);
  for (std::string part; std::getline(stream, part, ':');)
    if (!part.empty()) folders.push_back(part);
  return folders;
}

std::string find_program(const std::string& name) {
  for (const std::string& folder : folders_of(variable("PATH"))) {
    std::string file = folder;
    file.append("/").append(name);
    if (::access(file.c_str(), X_OK) == 0) return file;
  }
  return {};
}

}  // namespace foreshard::cli
