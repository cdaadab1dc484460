#include "exec/communicators/emulated_communicator.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "exec/torch/torch_types.h"

namespace foreshard::exec {
namespace {

class EmulatedHost final : public EmulatedDevice {
 public:
  void copy(void* to, const void* from, Bytes bytes) override {
    if (bytes > 0) std::memmove(to, from, static_cast<std::size_t>(bytes));
  }
  void scale(void* data, Numel numel, DType dtype, double factor) override {
    tensor_over(data, {numel}, dtype).mul_(factor);
  }
  void begin() override { begin_ = std::chrono::steady_clock::now(); }
  void hold(std::int64_t duration) override {
    std::this_thread::sleep_until(begin_ + std::chrono::nanoseconds(duration));
  }

 private:
  std::chrono::steady_clock::time_point begin_;
};

class EmulatedCommunicator final : public Communicator {
 public:
  EmulatedCommunicator(int rank, int size, std::unique_ptr<EmulatedDevice> device, CollectiveDuration duration)
      : rank_(rank), size_(size), device_(std::move(device)), duration_(std::move(duration)) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  void all_gather(void* output, const void* input, Numel numel, DType dtype) override {
    const std::vector<Numel> counts(static_cast<std::size_t>(size_), numel);
    all_gather_uneven(output, input, counts, dtype);
  }

  void all_gather_uneven(void* output, const void* input, std::span<const Numel> counts, DType dtype) override {
    const Numel own = counts[static_cast<std::size_t>(rank_)];
    during(InstructionKind::AllGather, total(counts) * itemsize(dtype), [&] {
      // Our own slot first: where input lies in it, the other copies read from there.
      Bytes offset = 0;
      for (const Numel count : counts) {
        const Bytes bytes = std::min(count, own) * itemsize(dtype);
        auto* slot = static_cast<std::byte*>(output) + offset;
        if (slot != input) device_->copy(slot, input, bytes);
        offset += count * itemsize(dtype);
      }
    });
  }

  void reduce_scatter(void* output, const void* input, Numel numel, DType dtype, ReduceOp op) override {
    const std::vector<Numel> counts(static_cast<std::size_t>(size_), numel);
    reduce_scatter_uneven(output, input, counts, dtype, op);
  }

  void reduce_scatter_uneven(void* output, const void* input, std::span<const Numel> counts, DType dtype,
                             ReduceOp op) override {
    const auto rank = static_cast<std::size_t>(rank_);
    during(InstructionKind::ReduceScatter, total(counts) * itemsize(dtype), [&] {
      const auto* part = static_cast<const std::byte*>(input) + total(counts.first(rank)) * itemsize(dtype);
      device_->copy(output, part, counts[rank] * itemsize(dtype));
      reduce(output, counts[rank], dtype, op);
    });
  }

  void all_reduce(void* data, Numel numel, DType dtype, ReduceOp op) override {
    during(InstructionKind::AllReduce, numel * itemsize(dtype), [&] { reduce(data, numel, dtype, op); });
  }

  /// Every rank sends us what we send it, as far as it goes.
  void all_to_all(void* output, const void* input, std::span<const Numel> send, std::span<const Numel> receive,
                  DType dtype) override {
    during(InstructionKind::AllGather, total(receive) * itemsize(dtype), [&] {
      Bytes from = 0, to = 0;
      for (std::size_t r = 0; r < send.size(); ++r) {
        device_->copy(static_cast<std::byte*>(output) + to, static_cast<const std::byte*>(input) + from,
                      std::min(send[r], receive[r]) * itemsize(dtype));
        from += send[r] * itemsize(dtype);
        to += receive[r] * itemsize(dtype);
      }
    });
  }

  void broadcast(void*, Numel numel, DType dtype, int) override {
    during(InstructionKind::Broadcast, numel * itemsize(dtype), [] {});
  }

  void barrier() override { throw_if_aborted(); }

  void abort(std::string_view why) override {
    std::lock_guard lock(mutex_);
    why_ = why;
  }

 private:
  static Numel total(std::span<const Numel> counts) {
    Numel sum = 0;
    for (const Numel count : counts) sum += count;
    return sum;
  }

  /// All ranks' values are ours.
  void reduce(void* data, Numel numel, DType dtype, ReduceOp op) {
    const bool sums = op == ReduceOp::Sum || op == ReduceOp::PremulSum;
    if (sums && size_ > 1 && numel > 0) device_->scale(data, numel, dtype, size_);
  }

  template <class F>
  void during(InstructionKind kind, Bytes bytes, F&& work) {
    throw_if_aborted();
    device_->begin();
    work();
    device_->hold(duration_(kind, bytes));
  }

  void throw_if_aborted() {
    std::lock_guard lock(mutex_);
    if (!why_.empty()) throw std::runtime_error("the group was aborted: " + why_);
  }

  int rank_;
  int size_;
  std::unique_ptr<EmulatedDevice> device_;
  CollectiveDuration duration_;
  std::mutex mutex_;
  std::string why_;
};

}  // namespace

std::unique_ptr<EmulatedDevice> emulated_host() { return std::make_unique<EmulatedHost>(); }

std::shared_ptr<Communicator> emulated_communicator(int rank, int size, std::unique_ptr<EmulatedDevice> device,
                                                    CollectiveDuration duration) {
  return std::make_shared<EmulatedCommunicator>(rank, size, std::move(device), std::move(duration));
}

}  // namespace foreshard::exec
