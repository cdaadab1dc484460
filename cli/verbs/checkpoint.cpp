// `foreshard checkpoint`: becomes foreshard-exec, which reads and writes tensors (cli/exec_program).
#include "cli/session/executor_process.h"
#include "cli/verbs/verbs.h"

namespace foreshard::cli {

ExitCode run_verb(const CheckpointFlags& flags, const Console& console) {
  std::vector<std::string> arguments = {"checkpoint", flags.action, flags.source};
  const auto add = [&arguments](const char* name, const std::string& value) {
    if (!value.empty()) arguments.insert(arguments.end(), {name, value});
  };
  if (!flags.job.empty()) arguments.push_back(flags.job);
  for (const std::string& set : flags.set) add("--set", set);
  add("--out", flags.out);
  add("--max-shard-size", flags.max_shard_size);
  add("--dtype", flags.dtype);
  if (flags.optimizer) arguments.emplace_back("--optimizer");
  if (flags.verify) arguments.emplace_back("--verify");
  return run_in_executor(std::move(arguments), console);
}

}  // namespace foreshard::cli
