// `foreshard run --backend cuda` on the virtual device, two ranks of a tiny model for three steps.
#pragma once

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/job/job_file.h"
#include "core/model/sources/load_model.h"
#include "core/plan/build_plan.h"
#include "tests/cli/program/running_program.h"
#include "tests/support/temporary_path.h"
#include "tests/virtual_gpu/call_log.h"
#include "tests/virtual_gpu/planned_calls.h"

namespace foreshard::testing {

inline const std::string kJob = std::string(FORESHARD_SOURCE_DIR) + "/examples/tiny-llama-2ranks.toml";

inline std::vector<std::string> on_virtual_device(std::vector<std::string> more) {
  // The first of two assignments counts.
  more.insert(more.end(),
              {"LD_PRELOAD=" FORESHARD_FAKEGPU, "FAKEGPU_BACKED=1", "FAKEGPU_TIME=lazy", "FAKEGPU_RACES=abort"});
  return more;
}

inline std::vector<std::string> arguments_of(std::vector<std::string> more) {
  more.insert(more.begin(), {"run", kJob, "--backend", "cuda", "--set", "train.steps=3"});
  return more;
}

inline ProgramEnd run(std::vector<std::string> more, std::vector<std::string> environment = {}) {
  return RunningProgram(FORESHARD_PROGRAM, arguments_of(std::move(more)), on_virtual_device(std::move(environment)))
      .wait();
}

/// A folder for the logs of all processes of a run; gone with this.
class LogFolder {
 public:
  explicit LogFolder(const std::string& name = "logs") : path_(temporary_path("fakegpu_" + name)) {
    std::filesystem::create_directories(path_);
  }
  ~LogFolder() { std::filesystem::remove_all(path_); }
  std::string variable() const { return "FAKEGPU_LOG=" + path_ + "/%p.jsonl"; }
  /// Of the processes that trained.
  std::vector<std::vector<exec::DeviceCall>> of_ranks() const {
    std::vector<std::vector<exec::DeviceCall>> logs;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      auto calls = exec::calls_in(entry.path());
      if (!calls.empty()) logs.push_back(std::move(calls));
    }
    return logs;
  }

 private:
  std::string path_;
};

inline Plan plan_of(const std::vector<std::string>& set) {
  const auto job = load_job(kJob, set);
  if (!job) throw std::runtime_error(to_text(job.error()));
  const auto model = load_model(job->job.model, program_options(job->job, ProgramDevice::Cuda));
  if (!model) throw std::runtime_error(to_text(model.error()));
  auto plan = build_plan(*model, job->job);
  if (!plan) throw std::runtime_error(to_text(plan.error()));
  return std::move(*plan);
}

/// Of the three steps.
inline std::vector<exec::PlannedCall> calls_planned(const Plan& plan) {
  std::map<EventId, Stream> recorded_on;
  std::vector<exec::PlannedCall> planned;
  for (std::size_t step = 0; step < 3; ++step) {
    const PlanIteration& iteration = plan.iterations[std::min(step, plan.iterations.size() - 1)];
    for (auto& call : exec::planned_calls(plan, iteration, recorded_on)) planned.push_back(std::move(call));
  }
  return planned;
}

}  // namespace foreshard::testing
