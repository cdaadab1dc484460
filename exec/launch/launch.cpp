#include "exec/launch/launch.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>

namespace foreshard::exec {
namespace {

Error environment_error(std::string place, std::string message, std::string expected, std::string got,
                        std::string hint = "") {
  Error error;
  error.code = ErrorCode::OutOfRange;
  error.file = "environment";
  error.place = std::move(place);
  error.message = std::move(message);
  error.expected = std::move(expected);
  error.got = std::move(got);
  error.hint = std::move(hint);
  return error;
}

std::string_view variable_text(const Environment& environment, const char* name) {
  const char* value = environment(name);
  return value != nullptr ? value : "";
}

bool is_set(const Environment& environment, const char* name) { return !variable_text(environment, name).empty(); }

/// A whole number from `low` up.
Result<int> number(const Environment& environment, const char* name, int low, int otherwise) {
  const std::string_view text = variable_text(environment, name);
  if (text.empty()) return otherwise;
  int value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || end != text.data() + text.size() || value < low) {
    return fail(environment_error(name, "the launcher's variable holds no usable number",
                                  fmt::format("a whole number from {}", low), std::string(text)));
  }
  return value;
}

/// What one launcher calls its variables.
struct Names {
  const char* launcher;
  const char *rank, *size, *local_rank, *local_size;
};
constexpr Names kTorchrun{"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
constexpr Names kSlurm{"slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"};
constexpr Names kOpenMpi{"mpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                         "OMPI_COMM_WORLD_LOCAL_SIZE"};
constexpr Names kPmi{"mpi", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"};

/// "node[003-007,9],other" -> "node003"; "a,b" -> "a".
std::string first_host(std::string_view nodes) {
  const std::size_t bracket = nodes.find('[');
  const std::size_t comma = nodes.find(',');
  if (bracket == std::string_view::npos || comma < bracket) return std::string(nodes.substr(0, comma));
  const std::string_view inside = nodes.substr(bracket + 1);
  return std::string(nodes.substr(0, bracket)) + std::string(inside.substr(0, inside.find_first_of("-,]")));
}

/// Slurm's "2(x3),1": the first machine's tasks.
int first_count(std::string_view tasks) {
  int count = 0;
  std::from_chars(tasks.data(), tasks.data() + tasks.size(), count);
  return count;
}

Result<RankPlace> numbered(const Environment& environment, const Names& names) {
  if (!is_set(environment, names.size)) {
    return fail(environment_error(names.size, fmt::format("{} is set but {} is not", names.rank, names.size),
                                  "both, as the launcher sets them", "only one",
                                  "start with torchrun, srun or mpirun, or use --nproc"));
  }
  RankPlace place;
  place.launcher = names.launcher;
  const auto rank = number(environment, names.rank, 0, 0);
  if (!rank) return fail(rank.error());
  const auto size = number(environment, names.size, 1, 1);
  if (!size) return fail(size.error());
  if (*rank >= *size) {
    return fail(environment_error(names.rank, "the rank lies outside the world", fmt::format("below {}", *size),
                                  std::to_string(*rank)));
  }
  place.rank = *rank;
  place.world_size = *size;
  const auto local_rank = number(environment, names.local_rank, 0, *rank);
  if (!local_rank) return fail(local_rank.error());
  place.local_rank = *local_rank;
  const bool in_words = std::string_view(names.launcher) == "slurm" && is_set(environment, "SLURM_STEP_TASKS_PER_NODE");
  const auto local_size = in_words ? first_count(variable_text(environment, "SLURM_STEP_TASKS_PER_NODE"))
                                   : number(environment, names.local_size, 1, *size);
  if (!local_size) return fail(local_size.error());
  place.local_world_size = std::clamp(*local_size, 1, place.world_size);
  return place;
}

Result<void> find_master(const Environment& environment, RankPlace& place) {
  const bool here = place.local_world_size == place.world_size;
  int port = 29500;
  if (place.launcher == "slurm") {  // several jobs may share a machine: each has its own port
    const auto job = number(environment, "SLURM_JOB_ID", 0, 0);
    if (job) port = 20000 + *job % 20000;
  }
  const auto given_port = number(environment, "MASTER_PORT", 1, port);
  if (!given_port) return fail(given_port.error());
  if (*given_port > 65535) {
    return fail(environment_error("MASTER_PORT", "there is no such port", "1 to 65535", std::to_string(*given_port)));
  }
  place.master_port = *given_port;
  if (is_set(environment, "MASTER_ADDR")) {
    place.master_address = variable_text(environment, "MASTER_ADDR");
  } else if (place.launcher == "slurm" && !here) {
    const char* nodes = is_set(environment, "SLURM_STEP_NODELIST") ? "SLURM_STEP_NODELIST" : "SLURM_JOB_NODELIST";
    place.master_address = first_host(variable_text(environment, nodes));
  } else if (!here) {
    place.master_address.clear();
  }
  if (place.master_address.empty()) {
    return fail(environment_error("MASTER_ADDR", "the ranks are on several machines and do not know where to meet",
                                  "the address of rank 0's machine", "nothing",
                                  "set MASTER_ADDR (and MASTER_PORT) for all ranks"));
  }
  return {};
}

}  // namespace

Result<std::optional<RankPlace>> place_in_environment(const Environment& environment) {
  for (const Names& names : {kTorchrun, kSlurm, kOpenMpi, kPmi}) {
    if (!is_set(environment, names.rank)) continue;
    auto place = numbered(environment, names);
    if (!place) return fail(place.error());
    if (auto found = find_master(environment, *place); !found) return fail(found.error());
    if (variable_text(environment, "TORCHELASTIC_USE_AGENT_STORE") == "True") {
      place->store_hosted_elsewhere = true;
      place->store_prefix = fmt::format("attempt_{}/", variable_text(environment, "TORCHELASTIC_RESTART_COUNT"));
    }
    if (is_set(environment, "FORESHARD_LAUNCHER")) {  // its store is this run's alone
      place->launcher = "foreshard";
      place->store_prefix.clear();
    }
    return std::optional(std::move(*place));
  }
  return std::nullopt;
}

Result<void> check_world(const Job& job, const RankPlace& place) {
  if (job.cluster.world_size == place.world_size) return {};
  Error error;
  error.code = ErrorCode::Inconsistent;
  error.place = "cluster.world_size";
  error.expected = fmt::format("{} processes", job.cluster.world_size);
  error.got = std::to_string(place.world_size);
  if (place.launcher.empty()) {
    error.message = "the job is planned for several ranks, and one process was started";
    error.hint = fmt::format(
        "add --nproc {0} to run them on this machine, start it with torchrun, srun or mpirun, or "
        "--set cluster.world_size=1",
        job.cluster.world_size);
  } else {
    error.message = fmt::format("the job is planned for another number of ranks than were started ({})",
                                place.launcher == "foreshard" ? "--nproc" : place.launcher);
    error.hint = fmt::format("--set cluster.world_size={0} plans it for {0}", place.world_size);
  }
  return fail(std::move(error));
}

int intra_op_threads(const RankPlace& place, const Environment& environment) {
  const auto given = number(environment, "OMP_NUM_THREADS", 1, 0);
  if (given && *given > 0) return *given;
  return place.local_world_size > 1 ? 1 : 0;
}

}  // namespace foreshard::exec
