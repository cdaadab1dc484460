#include "cli/session/machine.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "cli/console/amount_text.h"
#include "cli/console/environment.h"
#include "cli/session/sibling_program.h"
#include "sim/machine/host_processor.h"
#include "sim/machine/profile.h"

namespace foreshard::cli {
namespace {

namespace fs = std::filesystem;

bool is_there(const fs::path& path) {
  std::error_code code;
  return fs::exists(path, code);
}

// The first `limit` bytes: some of these files are large, some are endless.
std::string beginning_of(const fs::path& path, std::size_t limit = 1U << 16U) {
  std::ifstream file(path, std::ios::binary);
  std::string text(limit, '\0');
  file.read(text.data(), static_cast<std::streamsize>(limit));
  text.resize(static_cast<std::size_t>(std::max<std::streamsize>(0, file.gcount())));
  return text;
}

std::string trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\"'");
  if (first == std::string_view::npos) return {};
  return std::string(text.substr(first, text.find_last_not_of(" \t\r\n\"',") - first + 1));
}

/// What stands behind `key` and `separator` on its line.
std::string value_of(const std::string& text, std::string_view key, std::string_view separator) {
  const auto at = text.find(key);
  if (at == std::string::npos) return {};
  const auto end = std::min(text.find('\n', at + key.size()), text.size());
  const auto from = text.find(separator, at + key.size());
  return from == std::string::npos || from >= end
             ? std::string()
             : trimmed(std::string_view(text).substr(from + separator.size(), end - from - separator.size()));
}

std::vector<fs::path> split(const std::string& text) {
  const std::vector<std::string> folders = folders_of(text);
  return {folders.begin(), folders.end()};
}

fs::path find_in(std::vector<fs::path> folders, const std::string& name) {
  for (const fs::path& folder : folders) {
    if (is_there(folder / name)) return folder / name;
  }
  return {};
}

std::vector<fs::path> library_folders() {
  auto folders = split(variable("LD_LIBRARY_PATH"));
  for (const char* folder : {"/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib",
                             "/usr/local/lib", "/usr/local/cuda/lib64"}) {
    folders.emplace_back(folder);
  }
  return folders;
}

Finding look_for_cpu() {
  Finding f{"CPU", true, "", "planning and simulating", ""};
  cpu_set_t set;
  const int cores =
      sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  const std::string model = value_of(beginning_of("/proc/cpuinfo"), "model name", ":");
  f.detail = fmt::format("{}{}{}", model, model.empty() ? "" : ", ", counted(cores, "core"));
  return f;
}

/// What decides how much memory CPU kernels take beside their results.
Finding look_for_instructions() {
  const HostProcessor processor = host_processor();
  const std::string held = variable("ONEDNN_MAX_CPU_ISA");
  return {"CPU kernels", true,
          fmt::format("oneDNN {}{}, ATen {}, second cache {} a core", cpu_isa_name(processor.isa),
                      held.empty() ? "" : fmt::format(" (ONEDNN_MAX_CPU_ISA={})", held), processor.vectors,
                      bytes_text(processor.l2_bytes)),
          "host.isa and host.l2_bytes of this machine's profile", ""};
}

Finding look_for_memory() {
  Finding f{"memory", true, "", "planning and simulating need less than 100 MB", ""};
  const std::string info = beginning_of("/proc/meminfo");
  const auto kib = [&](const char* key) { return std::atoll(value_of(info, key, ":").c_str()) * 1024; };
  f.detail = fmt::format("{}, {} available", bytes_text(kib("MemTotal")), bytes_text(kib("MemAvailable")));
  return f;
}

Finding look_for_driver() {
  Finding f{"NVIDIA driver", false, "", "running on the GPUs of this machine",
            "install the driver; not needed to plan and simulate"};
  std::string version = beginning_of("/proc/driver/nvidia/version");
  version.resize(std::min(version.find('\n'), version.size()));
  int cards = 0;
  while (cards < 64 && is_there(fmt::format("/dev/nvidia{}", cards))) ++cards;
  f.found = !version.empty() || cards > 0;
  if (f.found) f.detail = fmt::format("{}{}{}", counted(cards, "card"), version.empty() ? "" : ", ", version);
  return f;
}

/// Whether everybody may trace the device.
Finding look_for_profiling() {
  Finding f{"GPU profiling", false, "", "run --timeline on GPUs: device spans by CUPTI", "needs the NVIDIA driver"};
  const std::string text = beginning_of("/proc/driver/nvidia/params");
  f.found = !text.empty() && (value_of(text, "RmProfilingAdminOnly", ":") != "1" || geteuid() == 0);
  if (f.found) {
    f.detail = "permitted";
  } else if (!text.empty()) {
    f.remedy =
        "only root may profile (ERR_NVGPUCTRPERM): write \"options nvidia NVreg_RestrictProfilingToAdminUsers=0\" into "
        "/etc/modprobe.d/profile.conf and load the driver again";
  }
  return f;
}

Finding look_for_cuda() {
  Finding f{"CUDA toolkit", false, "", "building the executor for GPUs",
            "install CUDA 13; not needed to plan and simulate"};
  std::vector<fs::path> folders;
  for (const char* name : {"CUDA_HOME", "CUDA_PATH"}) {
    if (!variable(name).empty()) folders.emplace_back(variable(name));
  }
  folders.emplace_back("/usr/local/cuda");
  const fs::path nvcc = find_program("nvcc");
  if (!nvcc.empty()) folders.push_back(nvcc.parent_path().parent_path());
  const fs::path header = find_in(folders, "include/cuda.h");
  f.found = !header.empty();
  if (!f.found) return f;
  const fs::path home = header.parent_path().parent_path();
  const int version = std::atoi(value_of(beginning_of(header), "#define CUDA_VERSION", " ").c_str());  // 13000 = 13.0
  f.detail = fmt::format("{}{}", version > 0 ? fmt::format("{}.{}, ", version / 1000, version % 1000 / 10) : "",
                         home.string());
  return f;
}

Finding look_for_nccl() {
  Finding f{"NCCL", false, "", "collectives between GPUs", "install libnccl2 and libnccl-dev"};
  const fs::path library = find_in(library_folders(), "libnccl.so.2");
  const fs::path header = find_in({"/usr/include", "/usr/local/cuda/include", "/usr/local/include"}, "nccl.h");
  f.found = !library.empty();
  if (!library.empty()) f.detail = library.string();
  if (header.empty()) return f;
  const std::string text = beginning_of(header);
  f.detail =
      fmt::format("{}.{}.{}, {}", value_of(text, "#define NCCL_MAJOR", " "), value_of(text, "#define NCCL_MINOR", " "),
                  value_of(text, "#define NCCL_PATCH", " "), library.empty() ? header.string() : library.string());
  return f;
}

Finding look_for_libtorch() {
  Finding f{"LibTorch", false, "", "training, calibration and the deep checks (foreshard-exec)",
            "scripts/setup-torch, or FORESHARD_TORCH naming a virtual environment with the torch 2.11 wheel"};
  std::vector<fs::path> folders;
  std::vector<fs::path> bases;
  // The same places as the build (cmake/FindLibTorchWheel.cmake): a virtual environment, or the torch folder itself.
  if (const fs::path named = variable("FORESHARD_TORCH"); !named.empty()) {
    folders.push_back(named);
    bases.push_back(named / "lib");
  }
  bases.emplace_back(sibling_path("../../torch-venv/lib"));  // build/torch-venv, seen from build/PRESET/bin
  if (!variable("VIRTUAL_ENV").empty()) bases.push_back(fs::path(variable("VIRTUAL_ENV")) / "lib");
  const fs::path python = find_program("python3");
  if (!python.empty()) bases.push_back(python.parent_path().parent_path() / "lib");
  std::error_code code;
  for (const fs::path& base : bases) {
    for (const auto& entry : fs::directory_iterator(base, code))
      folders.push_back(entry.path() / "site-packages/torch");
  }
  const fs::path library = find_in(folders, "lib/libtorch_cpu.so");
  f.found = !library.empty();
  if (!f.found) return f;
  const fs::path home = library.parent_path().parent_path().lexically_normal();
  const std::string version = value_of(beginning_of(home / "version.py", 4096), "\n__version__", "=");
  f.detail = fmt::format("{}{}{}", version, version.empty() ? "" : ", ", home.string());
  return f;
}

Finding look_for_library(const char* name, const char* file, const char* gives, const char* remedy) {
  const fs::path library = find_in(library_folders(), file);
  return {name, !library.empty(), library.string(), gives, remedy};
}

Finding look_for_sibling(const char* name, const char* gives, const char* remedy) {
  const std::string program = sibling_path(name);
  const bool found = access(program.c_str(), X_OK) == 0;
  return {name, found, found ? program : "", gives, remedy};
}

Finding look_for_profiles() {
  const auto profiles = known_profiles();
  std::string names;
  for (const std::string& id : profiles) names += (names.empty() ? "" : ", ") + id;
  return {"profiles", !profiles.empty(),
          fmt::format("{}{}{}", counted(static_cast<std::int64_t>(profiles.size()), "profile"),
                      names.empty() ? "" : ": ", names),
          "machines to simulate", "set FORESHARD_PROFILES to the folder that holds them"};
}

}  // namespace

std::vector<Finding> look_at_machine() {
  return {look_for_cpu(),
          look_for_instructions(),
          look_for_memory(),
          look_for_profiles(),
          look_for_driver(),
          look_for_profiling(),
          look_for_cuda(),
          look_for_nccl(),
          look_for_libtorch(),
          look_for_library("Gloo", "libgloo.so.0", "collectives between CPUs", "apt install libgloo-dev"),
          look_for_library("Qt 6", "libQt6Core.so.6", "the viewer", "apt install qt6-base-dev"),
          look_for_sibling("foreshard-exec", "run, calibrate, checkpoint", "scripts/setup-torch, then scripts/build"),
          look_for_sibling("foreshard-viewer", "view, report", "needs Qt 6: scripts/setup installs it")};
}

}  // namespace foreshard::cli
