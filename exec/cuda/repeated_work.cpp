#include "exec/cuda/repeated_work.h"

#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>
#include <cuda_runtime_api.h>

#include <utility>

namespace foreshard::exec {

// The default stream cannot be captured: another one stands in for it. Nothing runs there, so nothing waits for it.
std::unique_ptr<at::cuda::CUDAGraph> RepeatedWork::capture(const std::function<void()>& work) {
  auto graph = std::make_unique<at::cuda::CUDAGraph>();
  const c10::cuda::CUDAStreamGuard aside(c10::cuda::getStreamFromPool());
  graph->capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
  try {
    work();
  } catch (...) {
    graph->capture_end();
    throw;
  }
  graph->capture_end();
  return graph;
}

void RepeatedWork::run(std::uint64_t key, const std::function<void()>& work) {
  Entry& entry = entries_[key];
  if (entry.graph != nullptr) return entry.graph->replay();
  if (refused_ || entry.issued++ == 0 || graphs_ >= kMostGraphs) return work();
  try {
    entry.graph = capture(work);
  } catch (const c10::Error&) {  // what cannot be captured runs as it comes
    cudaGetLastError();
    refused_ = true;
    return work();
  }
  ++graphs_;
  entry.graph->replay();
}

}  // namespace foreshard::exec
