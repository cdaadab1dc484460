// A program that the test can look at and kill while it runs.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

namespace foreshard {

struct ProgramEnd {
  int exit_code = -1;  // -1: ended by a signal
  std::string out, err;
};

class RunningProgram {
 public:
  /// `environment` are assignments such as "RANK=1", added to a copy of this process's without its launcher variables.
  RunningProgram(const std::string& program, const std::vector<std::string>& arguments,
                 const std::vector<std::string>& environment = {});
  ~RunningProgram();  // kills it
  RunningProgram(const RunningProgram&) = delete;
  RunningProgram& operator=(const RunningProgram&) = delete;

  pid_t pid() const { return pid_; }
  /// Waits until stdout holds this many lines; false if the program ended before or three minutes have passed.
  bool wait_for_lines(int count);
  /// The child process that has this assignment in its environment ("RANK=1").
  std::optional<pid_t> child_with(const std::string& assignment) const;
  ProgramEnd wait();

 private:
  pid_t pid_ = 0;
  std::string out_path_, err_path_;
};

/// A port that nobody listens on just now.
int free_port();

}  // namespace foreshard
