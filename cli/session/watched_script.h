// A PyTorch script started on the virtual device (shadow/device) with foreshard.shadow in its interpreter: what it
// needs is found beside this program, its environment is put together, its end is waited for.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/result.h"
#include "sim/machine/profile.h"

namespace foreshard::cli {

/// The libraries and the Python package of shadow.
struct ShadowParts {
  std::string device, compiler;  // libfakegpu.so, libfakenvrtc.so
  std::string inject;            // the folder that goes on PYTHONPATH
};
/// Error (NotFound): a part is missing, with where it was looked for.
Result<ShadowParts> find_shadow_parts();

struct ScriptWorld {
  std::int64_t world = 8, rank = 0, ranks_per_node = 8;
  bool given = false;  // --world or the environment: the script's launcher does not change it
};
/// From flags (0 and -1: not given) and the environment that torchrun sets. Error: rank beyond the world.
Result<ScriptWorld> script_world(int world, int rank);

struct ScriptOptions {
  ScriptWorld world;
  std::string folder;  // report.json and the device's logs go there
  int steps = 3;
  bool plan = true, fake_weights = false;
  bool timeline = false;  // ranges, operators and the allocator's changes are logged, too
  int timeout_seconds = 600;
};

/// "NAME=value" for the script, to be put in front of this process's own environment.
Result<std::vector<std::string>> script_environment(const ShadowParts& parts, const HardwareProfile& profile,
                                                    const ScriptOptions& options);

struct ScriptEnd {
  int exit_code = 0;  // 128 + the signal's number where one ended it
  bool timed_out = false, stopped = false;
  double seconds = 0;
};
/// Runs the command until its end, the time's, or a signal's to us, which is passed on. What it prints goes to our
/// standard error. Error (NotFound): it cannot be started.
Result<ScriptEnd> run_script(const std::vector<std::string>& command, const std::vector<std::string>& environment,
                             int timeout_seconds);

}  // namespace foreshard::cli
