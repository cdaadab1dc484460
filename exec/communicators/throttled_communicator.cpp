#include "exec/communicators/throttled_communicator.h"

#include <numeric>
#include <thread>
#include <utility>

namespace foreshard::exec {
namespace {

Numel sum(std::span<const Numel> counts) { return std::accumulate(counts.begin(), counts.end(), Numel{0}); }

class ThrottledCommunicator final : public Communicator {
 public:
  ThrottledCommunicator(std::shared_ptr<Communicator> inner, LinkLimit limit)
      : inner_(std::move(inner)), limit_(limit) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  bool orders_streams() const override { return inner_->orders_streams(); }

  void all_gather(void* output, const void* input, Numel numel, DType dtype) override {
    inner_->all_gather(output, input, numel, dtype);
    wait(numel * size() * itemsize(dtype));
  }
  void all_gather_uneven(void* output, const void* input, std::span<const Numel> counts, DType dtype) override {
    inner_->all_gather_uneven(output, input, counts, dtype);
    wait(sum(counts) * itemsize(dtype));
  }
  void reduce_scatter(void* output, const void* input, Numel numel, DType dtype, ReduceOp op) override {
    inner_->reduce_scatter(output, input, numel, dtype, op);
    wait(numel * size() * itemsize(dtype));
  }
  void reduce_scatter_uneven(void* output, const void* input, std::span<const Numel> counts, DType dtype,
                             ReduceOp op) override {
    inner_->reduce_scatter_uneven(output, input, counts, dtype, op);
    wait(sum(counts) * itemsize(dtype));
  }
  void all_reduce(void* data, Numel numel, DType dtype, ReduceOp op) override {
    inner_->all_reduce(data, numel, dtype, op);
    wait(numel * itemsize(dtype), true);
  }
  void all_to_all(void* output, const void* input, std::span<const Numel> send, std::span<const Numel> receive,
                  DType dtype) override {
    inner_->all_to_all(output, input, send, receive, dtype);
    wait(sum(send) * itemsize(dtype));
  }
  void broadcast(void* data, Numel numel, DType dtype, int root) override {
    inner_->broadcast(data, numel, dtype, root);
    wait(numel * itemsize(dtype));
  }
  void barrier() override { inner_->barrier(); }
  void abort(std::string_view why) override { inner_->abort(why); }
  std::string asynchronous_error() const override { return inner_->asynchronous_error(); }

 private:
  void wait(Bytes bytes, bool both_ways = false) const {
    std::this_thread::sleep_for(link_time(limit_, bytes, size(), both_ways));
  }

  std::shared_ptr<Communicator> inner_;
  LinkLimit limit_;
};

}  // namespace

std::chrono::nanoseconds link_time(const LinkLimit& limit, Bytes bytes, int ranks, bool both_ways) {
  if (ranks < 2) return std::chrono::nanoseconds{0};
  std::chrono::nanoseconds time = limit.latency;
  if (limit.bytes_per_second > 0) {
    const double sent = static_cast<double>(bytes) * (ranks - 1) / ranks * (both_ways ? 2 : 1);
    time += std::chrono::nanoseconds(static_cast<std::int64_t>(sent / limit.bytes_per_second * 1e9));
  }
  return time;
}

std::shared_ptr<Communicator> throttled(std::shared_ptr<Communicator> inner, const LinkLimit& limit) {
  if (!limit.any() || inner == nullptr) return inner;
  return std::make_shared<ThrottledCommunicator>(std::move(inner), limit);
}

}  // namespace foreshard::exec
