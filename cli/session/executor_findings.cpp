#include "cli/session/executor_findings.h"

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/session/executor_program.h"

namespace foreshard::cli {
namespace {

constexpr const char* kName = "foreshard-exec-cuda";
constexpr const char* kGives = "run and calibrate with --backend cuda";

Finding not_started(const std::string& printed) {
  // The loader's own words name the library: "...: error while loading shared libraries: libnccl.so.2: cannot open ..."
  const std::string line = printed.substr(0, printed.find('\n'));
  return {kName, false, "", kGives,
          "it does not start: " + (line.empty() ? "it says nothing" : line) +
              "; put the folder of the missing library into LD_LIBRARY_PATH, or install it"};
}

}  // namespace

void tell_findings(JsonText& out, const std::vector<Finding>& findings) {
  out.key("found").begin_array();
  for (const Finding& f : findings) {
    out.begin_object().field("name", f.name).field("found", f.found).field("detail", f.detail).field("gives", f.gives);
    out.field("remedy", f.found ? "" : f.remedy).end_object();
  }
  out.end_array();
}

std::vector<Finding> findings_in(const std::string& printed, int exit_code) {
  const std::size_t begin = printed.find('{');
  const auto json =
      begin == std::string::npos ? nlohmann::json() : nlohmann::json::parse(printed.substr(begin), nullptr, false);
  if (exit_code != 0 || !json.is_object() || !json.contains("found")) return {not_started(printed)};
  std::vector<Finding> findings;
  for (const auto& f : json["found"]) {
    findings.push_back({f.value("name", ""), f.value("found", false), f.value("detail", ""), f.value("gives", ""),
                        f.value("remedy", "")});
  }
  return findings;
}

std::vector<Finding> ask_cuda_executor() {
  const std::string path = executor_path(Executor::Cuda);
  if (access(path.c_str(), X_OK) != 0) {
    return {{kName, false, "", kGives, "configure again where LibTorch, CUDA 13 and NCCL with its header are found"}};
  }
  std::FILE* answer = ::popen(("timeout 60 '" + path + "' doctor --json 2>&1").c_str(), "r");
  if (answer == nullptr) return {not_started("")};
  std::string printed;
  std::array<char, 4096> part{};
  while (const std::size_t read = std::fread(part.data(), 1, part.size(), answer)) printed.append(part.data(), read);
  const int status = ::pclose(answer);
  return findings_in(printed, WIFEXITED(status) ? WEXITSTATUS(status) : -1);
}

}  // namespace foreshard::cli
