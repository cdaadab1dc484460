// Runs of FSDP2 as Kineto records them, with one fault planted: a host thread that issues, streams that work in order,
// collectives that wait for every rank. Times in microseconds.
#pragma once

#include <string>
#include <vector>

#include "traces/timeline/opened_trace.h"

namespace foreshard::testing {

struct PlantedRun {
  int ranks = 1, steps = 4, blocks = 6;
  double launch = 8;      // of the host, a kernel
  double forward = 2000;  // a block's; backward takes twice as long
  int kernels = 4;        // a block's, in forward
  double gather = 900, reduce = 1300, optimizer = 1500;
  std::int64_t block_numel = 50'000'000, root_numel = 40'000'000;
  double root_gather = 700;
  std::string product = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64";
  bool memory = false;  // allocator's counters

  // One of these is the fault.
  bool item_in_blocks = false;  // .item() in each block's forward
  bool item_in_step = false;    // of the loss, once a step: no fault
  double batch_wait = 0;        // in the data loader
  double driver_memory = 0;     // cudaFree and cudaMalloc, twice a forward
  double slow_rank = 1;         // the last rank computes so much longer
  double uneven = 1;            // in each step another rank computes so much longer
  double offload = 0;           // a copy of each gather's shard from the host, pinned
  double head_float32 = 0;      // a product of the head in float32
  double casts = 0;             // a block's, in forward
  bool prefetch = true;         // in backward
  bool one_communicator_stream = false;
  bool gather_again = false;  // twice in backward
  bool limiter = false;
  double pageable_copy = 0;  // of the batch
  bool wrapped = true;       // else everything is the root's
  bool collectives_on_compute = false;
  int optimizer_kernels = 6;
  std::int64_t logits = 0;  // MiB, in the loss
  std::int64_t optimizer_temporaries = 0;
  std::int64_t reserved_beyond = 200;  // MiB of cache beyond what is used
  bool cache_emptied = false;
  std::int64_t kept = 0;  // MiB that each step leaves behind
};

/// The recording of one of its ranks.
std::string kineto_of(const PlantedRun& run, int rank = 0);

/// All ranks, read as `open_traces` reads their files.
OpenedTrace opened(const PlantedRun& run);

}  // namespace foreshard::testing
