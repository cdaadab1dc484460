// Communication hooks of a user's own, in C++: what reduces the gradient of an fsdp1 unit in place of FSDP's own
// reduction (rule G5). `fsdp.comm_hook = "own:NAME"` asks for the one that was registered under NAME; docs/run.md shows
// how to bring one.
//
// Needs nothing of Foreshard at link time: a library of hooks links LibTorch alone.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "exec/communicators/communicator.h"

namespace foreshard::exec {

/// One unit's gradient, in the dtype of reduction, on the stream of reductions: what the hook launches is ordered
/// there. Division by the number of ranks is the hook's job. The result is cast to the parameters' dtype behind it.
struct CommHookCall {
  std::string_view unit;  // "" = the root
  at::Tensor gradient;    // flat. Sharded units: padded to a multiple of the ranks; NO_SHARD: changed in place
  at::Tensor output;      // this rank's 1/ranks of the reduced gradient, to be filled; undefined under NO_SHARD
  int ranks = 1;
  Communicator* group = nullptr;  // null for a rank alone. Every rank makes the same calls in the same order
};

/// Called on a thread of the backend, for one unit after the other. What it throws ends the run.
using CommHook = std::function<void(const CommHookCall&)>;

class CommHookRegistry {
 public:
  /// A later one of the same name takes its place.
  void add(std::string name, CommHook hook) { hooks_[std::move(name)] = std::move(hook); }
  const std::map<std::string, CommHook, std::less<>>& hooks() const { return hooks_; }

 private:
  std::map<std::string, CommHook, std::less<>> hooks_;
};

}  // namespace foreshard::exec

/// Grows with every change to what a library of hooks is compiled against.
#define FORESHARD_PLUGIN_VERSION 1

/// In one source of a library for `run --load`: FORESHARD_PLUGIN(registry) { registry.add("name", hook); }
#define FORESHARD_PLUGIN(registry)                                                   \
  extern "C" __attribute__((visibility("default"))) int foreshard_plugin_version() { \
    return FORESHARD_PLUGIN_VERSION;                                                 \
  }                                                                                  \
  extern "C" __attribute__((visibility("default"))) void foreshard_plugin(foreshard::exec::CommHookRegistry&(registry))
