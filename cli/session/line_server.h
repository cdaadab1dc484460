// A program of ours that answers line by line, started once and asked many times: its standard input and output are one
// socket. One thread at a time.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace foreshard::cli {

class LineServer {
 public:
  LineServer() = default;
  LineServer(const LineServer&) = delete;
  LineServer& operator=(const LineServer&) = delete;
  ~LineServer() { stop(); }

  /// Starts `path arguments...` unless it runs. The system's words if that cannot be done, else empty.
  std::string start(const std::string& path, std::vector<std::string> arguments);

  /// Sends a line and waits for the next one; without its end. Empty: the program has ended, `exit_code` says how.
  std::string ask(const std::string& line);

  /// Its input ends, and it with it; after two seconds it is killed.
  void stop();

  /// Of the program that ended last; 128 + the signal's number where one ended it.
  int exit_code() const { return exit_code_; }

 private:
  pid_t child_ = 0;
  int socket_ = -1, exit_code_ = 0;
  std::string heard_;  // behind the last line
};

}  // namespace foreshard::cli
