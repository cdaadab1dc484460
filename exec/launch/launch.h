// Launch: which rank of which run this process is, told by torchrun, Slurm or MPI in the environment, or by ourselves
// after starting the ranks of this machine (`--nproc N`).
//
// Plain functions on values; run_local_ranks and follow_launcher alone touch processes. Ports and addresses are those
// of the rendezvous (exec/launch/rendezvous.h). Source of the variables' meaning: torch.distributed.elastic's, sbatch's
// and Open MPI's pages.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/job.h"
#include "core/result.h"

namespace foreshard::exec {

/// One process of a run.
struct RankPlace {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;  // on this machine
  int local_world_size = 1;
  std::string launcher;  // "torchrun", "slurm", "mpi", "foreshard" (--nproc); empty: a process of its own
  std::string master_address = "127.0.0.1";
  int master_port = 29500;
  bool store_hosted_elsewhere = false;  // by the launcher, not by rank 0
  std::string store_prefix;             // a restart by torchrun's agent meets under another prefix
  bool operator==(const RankPlace&) const = default;
};

/// A variable's value, nullptr if it is not set. std::getenv's type.
using Environment = std::function<const char*(const char* name)>;

/// RANK + WORLD_SIZE, else SLURM_PROCID + SLURM_NTASKS, else OMPI_COMM_WORLD_RANK + _SIZE or PMI_RANK + PMI_SIZE;
/// nullopt if none of them is set. MASTER_ADDR and MASTER_PORT count with all of them; Slurm's node list and job id
/// give them otherwise. Errors: half of a pair, no numbers, a rank outside the world, several machines without an
/// address.
Result<std::optional<RankPlace>> place_in_environment(const Environment& environment);

/// The processes that were started are those that the job is planned for. The error says how to start it.
Result<void> check_world(const Job& job, const RankPlace& place);

/// LibTorch's threads inside one operator, as torchrun decides: OMP_NUM_THREADS; else 1 where ranks share the machine,
/// 0 (LibTorch's own choice) for a rank alone.
int intra_op_threads(const RankPlace& place, const Environment& environment);

struct LocalLaunch {
  std::vector<std::string> command;  // of each rank: program and arguments; its place is in its environment
  int ranks = 1;
  int grace_seconds = 10;  // for the others, after a rank has failed; then they are killed
  int stop_seconds = 300;  // after SIGINT, SIGTERM or SIGHUP; then the ranks are killed
  int still_seconds = 10;  // that a rank may be stopped (SIGSTOP) while others run; then it is killed
};

struct LocalOutcome {
  int exit_code = 0;       // of the rank that failed first; 1 if a signal ended it; 5 after an interruption
  std::string first_word;  // what the first rank to fail (or the launcher on its behalf) said; empty: nothing failed
  bool said_by_launcher = false;      // of a rank that could not say it any more
  std::vector<std::string> accounts;  // of ranks that failed after it: Rendezvous::leave_account
};

/// Starts the ranks, holds their store, and waits for all of them. SIGINT, SIGTERM and SIGHUP are handed on once,
/// however often they arrive within kStopGrace (exec/launch/stop_request.h); a later one ends the ranks. A rank that is
/// stopped or gone is named to the others. The calling thread sleeps; it must be the only one so far. Errors: a program
/// that cannot be started.
Result<LocalOutcome> run_local_ranks(const LocalLaunch& launch);

/// In a rank started by run_local_ranks: ends with its launcher. True if this is such a rank.
bool follow_launcher(const RankPlace& place);

}  // namespace foreshard::exec
