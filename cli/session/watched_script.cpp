#include "cli/session/watched_script.h"

#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <set>
#include <string_view>
#include <thread>

#include "cli/session/python_package.h"
#include "cli/session/sibling_program.h"
#include "core/output_file.h"
#include "sim/network/collectives.h"

namespace foreshard::cli {
namespace {

namespace fs = std::filesystem;

std::int64_t number_of(const char* variable, std::int64_t otherwise) {
  const char* text = std::getenv(variable);
  return text && *text ? std::strtoll(text, nullptr, 10) : otherwise;
}

/// As NVIDIA numbers them: what kernels PyTorch and cuBLAS choose hangs on it.
std::string compute_capability(const HardwareProfile& profile) {
  const CardArchitecture& card = profile.architecture;
  if (card.maker == CardArchitecture::Maker::Nvidia) return fmt::format("{}.{}", card.number / 10, card.number % 10);
  return "9.0";
}

double rate_of(const std::map<DType, double>& rates, DType dtype, double otherwise) {
  const auto at = rates.find(dtype);
  return at == rates.end() ? otherwise : at->second;
}

/// A group of so many ranks as a script usually makes it: a node's first, then whole nodes.
GroupPlacement placement_of(std::int64_t ranks, std::int64_t per_node) {
  return {static_cast<int>(ranks), static_cast<int>(ranks <= per_node ? 1 : ceil_div(ranks, per_node))};
}

/// "KIND RANKS BYTES NS" a line, for the device to look up: sizes are powers of two, times in between are interpolated.
std::string collectives_text(const HardwareProfile& profile, const ScriptWorld& world) {
  std::set<std::int64_t> groups{world.world, world.ranks_per_node, world.world / world.ranks_per_node};
  for (std::int64_t ranks = 2; ranks <= world.world; ranks *= 2) groups.insert(ranks);
  static const std::array<std::pair<CollectiveKind, const char*>, 4> kKinds = {
      {{CollectiveKind::AllGather, "ncclAllGather"},
       {CollectiveKind::ReduceScatter, "ncclReduceScatter"},
       {CollectiveKind::AllReduce, "ncclAllReduce"},
       {CollectiveKind::Broadcast, "ncclBroadcast"}}};
  std::string text;
  for (const std::int64_t ranks : groups) {
    if (ranks < 2) continue;
    for (const auto& [kind, word] : kKinds) {
      for (Bytes bytes = kKiB; bytes <= 64 * kGiB; bytes *= 2)
        text += fmt::format("{} {} {} {}\n", word, ranks, bytes,
                            collective_time(profile, kind, placement_of(ranks, world.ranks_per_node), bytes));
    }
  }
  return text;
}

std::string in_front_of(const std::string& first, const char* variable, char separator) {
  const char* rest = std::getenv(variable);
  return fmt::format("{}={}{}", variable, first, rest && *rest ? separator + std::string(rest) : "");
}

volatile std::sig_atomic_t asked_to_stop = 0;
void ask_to_stop(int signal) { asked_to_stop = signal; }

/// While it lives signals are a request to stop; then they are what they were: this may be a library in a process of
/// somebody else's.
class StopSignals {
 public:
  StopSignals() {
    asked_to_stop = 0;
    struct sigaction action {};
    action.sa_handler = ask_to_stop;
    for (std::size_t k = 0; k < kSignals.size(); ++k) ::sigaction(kSignals[k], &action, &before_[k]);
  }
  ~StopSignals() {
    for (std::size_t k = 0; k < kSignals.size(); ++k) ::sigaction(kSignals[k], &before_[k], nullptr);
  }
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

 private:
  static constexpr std::array<int, 3> kSignals{SIGINT, SIGTERM, SIGHUP};
  std::array<struct sigaction, kSignals.size()> before_{};
};

/// This process's own, with what is given in place of variables of the same name.
std::vector<std::string> with_own(std::vector<std::string> given) {
  std::set<std::string> names;
  for (const std::string& each : given) names.insert(each.substr(0, each.find('=')));
  for (char** own = environ; *own; ++own) {
    const std::string text = *own;
    if (!names.contains(text.substr(0, text.find('=')))) given.push_back(text);
  }
  return given;
}

}  // namespace

Result<ShadowParts> find_shadow_parts() {
  const auto library = [](const char* name) {
    return std::vector<std::string>{sibling_path(std::string("../lib/") + name),
                                    sibling_path(std::string("../lib/foreshard/") + name)};
  };
  const char* hint = "build the targets fakegpu and fakenvrtc (they need CUDA 13's headers), or pip install foreshard";
  auto device = first_that_is("the virtual device", library("libfakegpu.so"), hint);
  if (!device) return fail(device.error());
  auto compiler = first_that_is("the virtual device's compiler", library("libfakenvrtc.so"), hint);
  if (!compiler) return fail(compiler.error());
  auto package = find_python_package();
  if (!package) return fail(package.error());
  auto inject = first_that_is("the Python package foreshard.shadow", {*package + "/shadow/inject"}, hint);
  if (!inject) return fail(inject.error());
  return ShadowParts{*device, *compiler, *inject};
}

Result<ScriptWorld> script_world(int world, int rank) {
  ScriptWorld found;
  found.given = world > 0 || std::getenv("WORLD_SIZE") != nullptr;
  found.world = world > 0 ? world : std::max<std::int64_t>(1, number_of("WORLD_SIZE", 8));
  found.rank = rank >= 0 ? rank : std::max<std::int64_t>(0, number_of("RANK", 0));
  found.ranks_per_node = std::clamp<std::int64_t>(number_of("LOCAL_WORLD_SIZE", 8), 1, found.world);
  if (found.rank < found.world) return found;
  Error error;
  error.code = ErrorCode::OutOfRange;
  error.message = "this rank is not in the world";
  error.place = "--rank";
  error.expected = fmt::format("0 to {}", found.world - 1);
  error.got = std::to_string(found.rank);
  error.hint = "give --world too";
  return fail(error);
}

Result<std::vector<std::string>> script_environment(const ShadowParts& parts, const HardwareProfile& profile,
                                                    const ScriptOptions& options) {
  const ScriptWorld& world = options.world;
  const std::int64_t local = world.rank % world.ranks_per_node;
  std::vector<std::string> all;
  const auto set = [&](const char* name, const auto& value) { all.push_back(fmt::format("{}={}", name, value)); };
  // The rank's, as torchrun sets them.
  set("WORLD_SIZE", world.world), set("RANK", world.rank), set("LOCAL_RANK", local),
      set("LOCAL_WORLD_SIZE", world.ranks_per_node);
  set("GROUP_RANK", world.rank / world.ranks_per_node),
      set("GROUP_WORLD_SIZE", ceil_div(world.world, world.ranks_per_node));
  set("ROLE_RANK", world.rank), set("ROLE_WORLD_SIZE", world.world), set("MASTER_ADDR", "127.0.0.1"),
      set("MASTER_PORT", "29500");
  // The device's.
  const std::string collectives = options.folder + "/collectives";
  if (auto done = write_whole_file(collectives, collectives_text(profile, world)); !done) return fail(done.error());
  const double half = rate_of(profile.gemm_tflops, DType::BFloat16, rate_of(profile.gemm_tflops, DType::Float16, 100));
  set("FAKEGPU_NAME", fmt::format("NVIDIA {} (virtual)", profile.id)), set("FAKEGPU_CC", compute_capability(profile));
  set("FAKEGPU_DEVICES", world.ranks_per_node), set("FAKEGPU_GPUS_PER_NODE", world.ranks_per_node);
  set("FAKEGPU_SMS", std::max(profile.sm_count, 1)),
      set("FAKEGPU_MEM_GIB", static_cast<double>(profile.memory_bytes) / kGiB);
  set("FAKEGPU_KERNELS", "bytes"), set("FAKEGPU_TIME", "model"), set("FAKEGPU_COLLECTIVES", collectives);
  set("FAKEGPU_TFLOPS_HALF", half),
      set("FAKEGPU_TFLOPS_SINGLE", rate_of(profile.gemm_tflops, DType::Float32, half / 8));
  set("FAKEGPU_TFLOPS_FLOAT8", rate_of(profile.gemm_tflops, DType::Float8E4M3, half));
  set("FAKEGPU_TFLOPS_ATTENTION", rate_of(profile.peak_tflops, DType::BFloat16, half) * profile.attention_share);
  set("FAKEGPU_HBM_GBPS", profile.hbm_gb_per_s * profile.hbm_share),
      set("FAKEGPU_KERNEL_US", profile.min_kernel_ns / 1e3);
  set("FAKEGPU_LAUNCH_US", (profile.launch_ns + profile.op_ns) / 1e3), set("FAKEGPU_CALL_US", profile.call_ns / 1e3);
  set("FAKEGPU_MALLOC_US", profile.driver_alloc_ns / 1e3), set("FAKEGPU_PCIE_GBPS", profile.host_link_gb_per_s);
  set("FAKEGPU_HOST_COPY_GBPS", profile.host_copy_gb_per_s);
  set("FAKEGPU_LOG", options.folder + "/device-%p.jsonl"), set("FAKEGPU_LOG_QUERIES", 0);
  // The kinds of elements stand at the end of a kernel's name.
  set("FAKEGPU_NAME_CHARS", options.timeline ? 600 : 120), set("FAKEGPU_LOG_ALLOCATOR", options.timeline ? 1 : 0);
  set("FORESHARD_SHADOW_RANGES", options.timeline ? 1 : 0);
  if (options.timeline) set("NVTX_INJECTION64_PATH", parts.device);
  // What watches.
  set("FORESHARD_SHADOW", options.folder), set("FORESHARD_SHADOW_STEPS", options.steps),
      set("FORESHARD_SHADOW_PLAN", options.plan ? 1 : 0);
  set("FORESHARD_SHADOW_FAKE_WEIGHTS", options.fake_weights ? 1 : 0),
      set("FORESHARD_SHADOW_WORLD_GIVEN", world.given ? 1 : 0);
  set("PYTHONUNBUFFERED", 1);
  all.push_back(in_front_of(parts.inject, "PYTHONPATH", ':'));
  all.push_back(in_front_of(parts.device + " " + parts.compiler, "LD_PRELOAD", ' '));
  return all;
}

Result<ScriptEnd> run_script(const std::vector<std::string>& command, const std::vector<std::string>& environment,
                             int timeout_seconds) {
  std::vector<std::string> words = command, variables = with_own(environment);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);  // its own group: all that it starts ends with it
  posix_spawnattr_setpgroup(&attributes, 0);
  const StopSignals signals;  // before the script starts: none is lost
  pid_t child = 0;
  const int failed = ::posix_spawnp(&child, words.front().c_str(), &actions, &attributes, pointers_to(words).data(),
                                    pointers_to(variables).data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (failed != 0) {
    Error error;
    error.code = ErrorCode::NotFound;
    error.message = "the script cannot be started";
    error.place = words.front();
    error.expected = "a program, as in: foreshard shadow -- python train.py";
    error.got = std::strerror(failed);
    return fail(error);
  }
  using Clock = std::chrono::steady_clock;
  const auto began = Clock::now();
  ScriptEnd end;
  int status = 0;
  for (int kills = 0; ::waitpid(child, &status, WNOHANG) == 0;) {
    const std::chrono::duration<double> passed = Clock::now() - began;
    end.timed_out = end.timed_out || passed.count() > timeout_seconds;
    end.stopped = end.stopped || asked_to_stop != 0;
    if (end.timed_out || end.stopped) ::kill(-child, ++kills > 100 ? SIGKILL : SIGTERM);  // a second to end by itself
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ::kill(-child, SIGKILL);  // workers that it left behind
  end.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  end.seconds = std::chrono::duration<double>(Clock::now() - began).count();
  return end;
}

}  // namespace foreshard::cli
