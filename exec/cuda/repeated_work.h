// Work that is the same each time (kernels, addresses, numbers), as CUDA graphs: issued as it comes the first time,
// captured the second, and from then on repeated by one call (docs/adr/0005).
//
// Issuer's thread, inside work, on the stream that is current. A key is for one list of addresses; what a graph takes
// from the allocator while it is captured stays with it.
#pragma once

#include <ATen/cuda/CUDAGraph.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>

namespace foreshard::exec {

class RepeatedWork {
 public:
  /// Keys beyond this many are issued as they come: addresses that do not come back are no work that repeats.
  static constexpr std::size_t kMostGraphs = 16;

  void run(std::uint64_t key, const std::function<void()>& work);

 private:
  struct Entry {
    std::int64_t issued = 0;
    std::unique_ptr<at::cuda::CUDAGraph> graph;
  };
  static std::unique_ptr<at::cuda::CUDAGraph> capture(const std::function<void()>& work);

  std::unordered_map<std::uint64_t, Entry> entries_;
  std::size_t graphs_ = 0;
  bool refused_ = false;  // a capture has failed: nothing is captured any more
};

}  // namespace foreshard::exec
