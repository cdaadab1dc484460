// Which of CUDA's libraries this process has loaded, and from where: one runtime, one CUPTI and one NCCL, those that
// LibTorch was built with. Two runtimes in a process have two ideas of streams and errors.
#pragma once

#include <string>
#include <vector>

namespace foreshard::exec {

struct LoadedLibrary {
  std::string kind;                // "libcudart"
  std::vector<std::string> files;  // as the loader has them, links resolved
};

/// libcudart, libcupti and libnccl, in this order; no files: it is not loaded.
std::vector<LoadedLibrary> loaded_libraries();

/// What is wrong with them, in a sentence; empty: one of each, and all from one place (a folder of `nvidia` wheels, or
/// one folder of a toolkit; NCCL may come from the system's).
std::string wrong_with(const std::vector<LoadedLibrary>& libraries);

}  // namespace foreshard::exec
