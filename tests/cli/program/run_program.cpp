#include "tests/cli/program/run_program.h"
#include "tests/support/file_content.h"
#include "tests/support/temporary_path.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>

namespace foreshard {
namespace {

using foreshard::testing::content_of;

std::string quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

}  // namespace

ProgramRun run_program(const std::vector<std::string>& arguments, const std::vector<std::string>& environment) {
  const std::string out = testing::temporary_path("out"), err = testing::temporary_path("err");
  std::string command = "env -u NO_COLOR -u FORESHARD_SET LC_ALL=C.UTF-8 ";
  for (const std::string& assignment : environment) command += quoted(assignment) + " ";
  command += quoted(FORESHARD_PROGRAM);
  for (const std::string& argument : arguments) command += " " + quoted(argument);
  const int status = std::system((command + " >" + quoted(out) + " 2>" + quoted(err) + " </dev/null").c_str());
  ProgramRun run{WIFEXITED(status) ? WEXITSTATUS(status) : -1, content_of(out), content_of(err)};
  std::remove(out.c_str());
  std::remove(err.c_str());
  return run;
}

std::string temporary_file(const std::string& name, const std::string& content) {
  const std::string path = testing::temporary_path(name);
  std::ofstream(path, std::ios::binary) << content;
  return path;
}

}  // namespace foreshard
