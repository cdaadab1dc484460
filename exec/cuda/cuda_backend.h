// The CUDA backend: the plan's streams are CUDA streams, its events CUDA events, its buffers come from LibTorch's
// caching allocator, in the pool of the stream that the plan names.
//
// Work runs on the issuer, at once, with its stream current: it enqueues kernels and must not wait for the device. A
// buffer goes back to the allocator at the plan's free; other streams hold it exactly where the plan notes a use
// (record_stream), so that the allocator does what PyTorch's would (rules A). The stream "D" is the device's default
// stream, as PyTorch computes on it; the others come from LibTorch's pool of non-blocking streams, with their priority.
//
// Buffers that an arena places are parts of one block a stream. The caching allocator would hand a freed block of a
// stream to the next one that asks there; so does a place of the arena, and the plan's events order who else uses it,
// as PyTorch's do.
//
// The stream "host" is the issuer itself: its memory is pinned, its work is done when launch returns, and it waits for
// an event by blocking, as PyTorch's CPU offload does.
//
// A CUDA error is asynchronous: it is noticed at some later call, and its Failure says so.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "core/plan.h"
#include "core/result.h"
#include "exec/backend/arena_places.h"
#include "exec/backend/backend.h"
#include "exec/record/recorder.h"

namespace foreshard::exec {

class CuptiRecorder;

struct CudaBackendOptions {
  int device = 0;  // index among the visible ones (CUDA_VISIBLE_DEVICES)
  int rank = 0;    // named in failures that reach other ranks
  /// A collective that has not ended after so long, whatever the host does meanwhile, is taken for one that a peer does
  /// not join: communicators are aborted, and the next wait of the host is a Failure (exec/cuda/collective_watch.h).
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
  Recorder* recorder = nullptr;    // of the host's spans and memory; outlives the backend
  CuptiRecorder* cupti = nullptr;  // with a recorder: of the device's spans; outlives the backend
  RecordedKinds recorded = RecordedKinds::All;
  const Plan* plan = nullptr;  // whose units profilers are told of as NVTX ranges; outlives the backend
  bool graphs = false;         // work that repeats as CUDA graphs (exec/cuda/repeated_work.h)
  std::shared_ptr<const ArenaPlaces> arena =
      nullptr;  // of the plan that runs; buffers that it places are parts of blocks
};

/// Errors: those of cuda_device (exec/cuda/cuda_device.h), a card whose memory is taken.
Result<std::unique_ptr<Backend>> make_cuda_backend(const CudaBackendOptions& options = {});

}  // namespace foreshard::exec
