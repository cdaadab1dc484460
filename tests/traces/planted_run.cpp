#include "tests/traces/planted_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "traces/encodings/byte_source.h"
#include "traces/formats/kineto.h"
#include "traces/timeline/clock_alignment.h"

namespace foreshard::testing {
namespace {

enum Stream { kCompute = 7, kGather = 20, kReduce = 24, kCopy = 28 };
constexpr int kMain = 100, kAutograd = 101;

/// When each collective may begin in earnest: when the last rank has come.
using Meetings = std::vector<double>;

class Writer {
 public:
  Writer(const PlantedRun& run, int rank, const Meetings& meetings) : r_(run), rank_(rank), meetings_(meetings) {}

  std::string take() {
    for (int step = 0; step < r_.steps; ++step) one_step(step);
    return fmt::format(
        R"({{"schemaVersion": 1, "distributedInfo": {{"backend": "nccl", "rank": {}, "world_size": {}}}, "traceEvents": [{}]}})",
        rank_, std::max(8, r_.ranks), events_);
  }
  const Meetings& arrivals() const { return arrivals_; }

 private:
  void event(const std::string& text) { events_ += (events_.empty() ? "\n" : ",\n") + text; }
  void slice(const char* category, const std::string& name, int thread, double start, double duration,
             const std::string& arguments = "") {
    event(fmt::format(
        R"({{"ph": "X", "cat": "{}", "name": "{}", "pid": {}, "tid": {}, "ts": {:.3f}, "dur": {:.3f}, "args": {{{}}}}})",
        category, name, thread >= kMain ? 100 : 0, thread, start, duration, arguments));
  }

  /// A range of the host around what `inside` does.
  template <class Inside>
  void range(const char* category, const std::string& name, const Inside& inside) {
    const double begin = host_;
    host_ += 0.5;
    inside();
    host_ += 0.5;
    slice(category, name, thread_, begin, host_ - begin);
  }

  struct Work {
    double duration = 0, after = 0;
    std::string category = "kernel", arguments = {};
  };
  double launch(Stream stream, const std::string& name, const Work& work) {
    const double called = host_;
    host_ += r_.launch;
    const int correlation = ++correlation_;
    slice("cuda_runtime", work.category == "kernel" ? "cudaLaunchKernel" : "cudaMemcpyAsync", thread_, called,
          r_.launch * 0.8, fmt::format(R"("correlation": {})", correlation));
    double& free_at = free_at_[stream];
    const double start = std::max({free_at, called + r_.launch, work.after});
    free_at = start + work.duration;
    slice(work.category.c_str(), name, stream, start, work.duration,
          fmt::format(R"("correlation": {}, "stream": {}, "device": 0{})", correlation, static_cast<int>(stream),
                      work.arguments));
    return free_at;
  }

  /// Begins where its rank is there, ends when all were.
  double collective(Stream stream, const char* kind, double duration, std::int64_t numel, double after = 0) {
    if (r_.collectives_on_compute) stream = kCompute;
    if (r_.one_communicator_stream && stream == kReduce) stream = kGather;
    const double start = std::max({free_at_[stream], host_ + r_.launch, after});
    const std::size_t index = arrivals_.size();
    arrivals_.push_back(start);
    const double all = index < meetings_.size() ? std::max(start, meetings_[index]) : start;
    const bool gathers = std::string_view(kind) == "AllGather";
    return launch(
        stream, fmt::format("ncclDevKernel_{}_RING_LL(ncclDevKernelArgsStorage<4096ul>)", kind),
        {all - start + duration, after, "kernel",
         fmt::format(
             R"(, "Collective name": "{}", "In msg nelems": {}, "Out msg nelems": {}, "dtype": "{}", "Process Group Name": "0")",
             gathers ? "_allgather_base" : "_reduce_scatter_base", gathers ? numel / 8 : numel,
             gathers ? numel : numel / 8, gathers ? "BFloat16" : "Float")});
  }

  void allocate(std::int64_t mib) {
    held_ += mib;
    most_ = std::max(most_, held_ + r_.reserved_beyond);
    if (!r_.memory) return;
    event(fmt::format(
        R"({{"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 100, "tid": {}, "ts": {:.3f}, "args": {{"Total Allocated": {}, "Total Reserved": {}, "Device Id": 0, "Device Type": 1, "Addr": 1, "Bytes": {}}}}})",
        thread_, host_, (4000 + held_) << 20, (4000 + most_) << 20, mib << 20));
  }

  std::string unit_name(int unit) const { return unit < 0 ? "" : fmt::format(" (layers.{})", unit); }

  void gather(int unit) {
    range("user_annotation", "FSDP::all_gather" + unit_name(unit), [&] {
      const bool root = unit < 0;
      if (r_.offload > 0) launch(kGather, "Memcpy HtoD (Pinned -> Device)", {r_.offload, 0, "gpu_memcpy"});
      gathered_[unit] =
          collective(kGather, "AllGather", root ? r_.root_gather : r_.gather, root ? r_.root_numel : r_.block_numel);
    });
  }
  void copy_out(int unit) {
    range("user_annotation", "FSDP::all_gather_copy_out" + unit_name(unit), [&] {
      launch(kCompute, "split_with_sizes_copy_out_kernel", {30, gathered_[unit]});
    });
  }

  void product(const char* op, double duration) {
    range("cpu_op", op, [&] { launch(kCompute, r_.product, {duration * slow_}); });
  }

  void wait_for_value() {
    range("cpu_op", "aten::item", [&] {
      range("cpu_op", "aten::_local_scalar_dense", [&] {
        const double called = host_;
        host_ = std::max(host_ + 5, free_at_[kCompute]);
        slice("cuda_runtime", "cudaStreamSynchronize", thread_, called, host_ - called, R"("correlation": 0)");
      });
    });
  }

  void driver_calls() {
    range("cpu_op", "aten::empty", [&] {
      for (const char* call : {"cudaFree", "cudaMalloc"}) {
        const double called = host_;
        host_ = std::max(host_, call == std::string_view("cudaFree") ? free_at_[kCompute] : 0) + r_.driver_memory / 2;
        slice("cuda_runtime", call, thread_, called, host_ - called, R"("correlation": 0)");
      }
    });
  }

  void hold_back(int unit) {
    range("user_annotation", "FullyShardedDataParallel.rate_limiter", [&] {
      const double called = host_;
      host_ = std::max(host_ + 5, free_at_[kCompute]);
      slice("cuda_runtime", "cudaEventSynchronize", thread_, called, host_ - called, R"("correlation": 0)");
    });
    static_cast<void>(unit);
  }

  void forward(int unit) {
    if (r_.wrapped && unit >= 0) {
      range("user_annotation", "FSDP::pre_forward" + unit_name(unit), [&] {
        if (r_.limiter) hold_back(unit);
        gather(unit);
        copy_out(unit);
      });
    }
    allocate(300);
    if (r_.driver_memory > 0 && unit % 3 == 1) driver_calls();
    for (int k = 0; k < r_.kernels; ++k) product("aten::mm", r_.forward / r_.kernels);
    if (r_.casts > 0) {
      range("cpu_op", "aten::_to_copy", [&] {
        launch(kCompute,
               "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda, LoadWithCast<1>>",
               {r_.casts});
      });
    }
    if (r_.item_in_blocks) {
      wait_for_value();
      host_ += 250;  // Python, before the next block's first launch
    }
    if (r_.wrapped && unit >= 0) range("user_annotation", "FSDP::post_forward" + unit_name(unit), [] {});
  }

  void backward(int unit) {
    if (r_.wrapped && unit >= 0) {
      range("user_annotation", "FSDP::pre_backward" + unit_name(unit), [&] {
        const bool last = unit == r_.blocks - 1;  // keeps its parameters
        if (!r_.prefetch && !last) gather(unit);
        if (!last) copy_out(unit);
        if (r_.prefetch && unit > 0) {
          range("user_annotation", "FSDP::backward_prefetch for layers." + std::to_string(unit - 1),
                [&] { gather(unit - 1); });
          if (r_.gather_again) gather(unit - 1);
        }
      });
    }
    for (int k = 0; k < 2 * r_.kernels; ++k)
      product("autograd::engine::evaluate_function: MmBackward0", r_.forward / r_.kernels);
    allocate(-300);
    if (!r_.wrapped || unit < 0) return;
    range("user_annotation", "FSDP::post_backward_reduce" + unit_name(unit),
          [&] { collective(kReduce, "ReduceScatter_Sum_f32", r_.reduce, r_.block_numel, free_at_[kCompute]); });
  }

  void loss() {
    range("cpu_op", "aten::linear", [&] {
      launch(kCompute, r_.head_float32 > 0 ? "ampere_sgemm_128x64_tn" : r_.product,
             {r_.head_float32 > 0 ? r_.head_float32 : 400});
    });
    range("cpu_op", "aten::cross_entropy_loss", [&] {
      allocate(r_.logits);
      launch(kCompute, "cunn_SoftMaxForward", {150});
    });
  }

  void optimizer() {
    range("user_annotation", "Optimizer.step#AdamW.step", [&] {
      allocate(r_.optimizer_temporaries);
      for (int k = 0; k < r_.optimizer_kernels; ++k) {
        range("cpu_op", "aten::_foreach_add_", [&] {
          launch(kCompute, "multi_tensor_apply_kernel",
                 {r_.optimizer / r_.optimizer_kernels, std::max(free_at_[kReduce], free_at_[kGather])});
        });
      }
      allocate(-r_.optimizer_temporaries);
    });
  }

  void one_step(int step) {
    thread_ = kMain;
    const double begin = host_;
    host_ += 20;
    slow_ = (rank_ == r_.ranks - 1 ? r_.slow_rank : 1) * (step % r_.ranks == rank_ ? r_.uneven : 1);
    if (r_.batch_wait > 0)
      range("user_annotation", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
            [&] { host_ += r_.batch_wait; });
    launch(kCompute, r_.pageable_copy > 0 ? "Memcpy HtoD (Pageable -> Device)" : "Memcpy HtoD (Pinned -> Device)",
           {std::max(10.0, r_.pageable_copy), 0, "gpu_memcpy"});
    free_at_[kGather] = std::max(free_at_[kGather], free_at_[kCompute]);  // the root's gather waits for the optimizer
    range("user_annotation", "FSDP::pre_forward", [&] {
      gather(-1);
      copy_out(-1);
    });
    product("aten::embedding", 500);
    for (int unit = 0; unit < r_.blocks; ++unit) forward(unit);
    range("user_annotation", "FSDP::post_forward", [] {});
    loss();
    thread_ = kAutograd;
    product("autograd::engine::evaluate_function: MmBackward0", 800);
    allocate(-r_.logits);
    for (int unit = r_.blocks - 1; unit >= 0; --unit) backward(unit);
    product("autograd::engine::evaluate_function: EmbeddingBackward0", 500);
    range("user_annotation", "FSDP::post_backward_reduce",
          [&] { collective(kReduce, "ReduceScatter_Sum_f32", r_.root_gather, r_.root_numel, free_at_[kCompute]); });
    thread_ = kMain;
    optimizer();
    if (r_.kept > 0) allocate(r_.kept);
    if (r_.cache_emptied && step > 0) empty_cache();
    if (r_.item_in_step) wait_for_value();
    slice("user_annotation", fmt::format("ProfilerStep#{}", step + 3), kMain, begin, host_ - begin);
  }

  void empty_cache() {
    const std::int64_t before = most_;
    most_ = held_ + r_.reserved_beyond;
    allocate(0);
    static_cast<void>(before);
  }

  const PlantedRun& r_;
  int rank_;
  const Meetings& meetings_;
  Meetings arrivals_;
  double host_ = 1000, slow_ = 1;
  int thread_ = kMain, correlation_ = 0;
  std::map<Stream, double> free_at_;
  std::map<int, double> gathered_;
  std::int64_t held_ = 0, most_ = 0;
  std::string events_;
};

/// Ranks wait for each other, which moves later arrivals: repeated until nothing moves.
std::vector<std::string> played_ranks(const PlantedRun& run) {
  Meetings meetings;
  for (;;) {
    std::vector<std::string> texts;
    Meetings latest;
    for (int rank = 0; rank < run.ranks; ++rank) {
      Writer writer(run, rank, meetings);
      texts.push_back(writer.take());
      const Meetings& own = writer.arrivals();
      latest.resize(std::max(latest.size(), own.size()), 0);
      for (std::size_t i = 0; i < own.size(); ++i) latest[i] = std::max(latest[i], own[i]);
    }
    if (run.ranks == 1 || latest == meetings) return texts;
    meetings = latest;
  }
}

}  // namespace

std::string kineto_of(const PlantedRun& run, int rank) { return played_ranks(run)[static_cast<std::size_t>(rank)]; }

OpenedTrace opened(const PlantedRun& run) {
  std::vector<OpenedTrace> traces;
  std::vector<std::string> places;
  for (const std::string& text : played_ranks(run)) {
    const auto source = memory_source(text);
    places.push_back(fmt::format("rank{}.json", traces.size()));
    auto trace = read_chrome_json(*source, places.back());
    if (trace) traces.push_back(std::move(*trace));
  }
  return traces.size() == 1 ? std::move(traces.front()) : join_ranks(std::move(traces), places);
}

}  // namespace foreshard::testing
