#include "exec/gloo_communicator.h"

#include <fmt/format.h>
#include <gloo/allgatherv.h>
#include <gloo/alltoallv.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/prefix_store.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>

#include <cstddef>
#include <exception>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>
#include <vector>

#include "exec/reduce_parts.h"

namespace foreshard::exec {
namespace {

/// Gloo's words for LibTorch's store.
class TcpStore final : public gloo::rendezvous::Store {
 public:
  explicit TcpStore(c10::intrusive_ptr<c10d::TCPStore> store) : store_(std::move(store)) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    store_->set(key, std::vector<std::uint8_t>(data.begin(), data.end()));
  }
  std::vector<char> get(const std::string& key) override {
    const std::vector<std::uint8_t> data = store_->get(key);
    return {data.begin(), data.end()};
  }
  void wait(const std::vector<std::string>& keys) override { store_->wait(keys); }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override {
    store_->wait(keys, timeout);
  }

 private:
  c10::intrusive_ptr<c10d::TCPStore> store_;
};

class GlooCommunicator final : public Communicator {
 public:
  GlooCommunicator(std::string name, std::shared_ptr<gloo::rendezvous::Context> context)
      : name_(std::move(name)), context_(std::move(context)) {}

  int rank() const override { return context_->rank; }
  int size() const override { return context_->size; }

  void all_gather(void* output, const void* input, Numel numel, DType dtype) override {
    all_gather_uneven(output, input, even(numel), dtype);
  }

  void all_gather_uneven(void* output, const void* input, std::span<const Numel> counts, DType dtype) override {
    call("all_gather", [&] { gather_bytes(static_cast<char*>(output), input, bytes_of(counts, dtype)); });
  }

  void reduce_scatter(void* output, const void* input, Numel numel, DType dtype, ReduceOp op) override {
    reduce_scatter_uneven(output, input, even(numel), dtype, op);
  }

  void reduce_scatter_uneven(void* output, const void* input, std::span<const Numel> counts, DType dtype,
                             ReduceOp op) override {
    call("reduce_scatter", [&] { scatter_sums(static_cast<std::byte*>(output), input, counts, dtype, op); });
  }

  void all_reduce(void* data, Numel numel, DType dtype, ReduceOp op) override {
    std::vector<Numel> counts = even(numel / size());
    for (int r = 0; r < numel % size(); ++r) ++counts[index(r)];
    call("all_reduce", [&] {
      const Bytes own_bytes = counts[index(rank())] * itemsize(dtype);
      std::vector<std::byte> own(static_cast<std::size_t>(own_bytes));
      scatter_sums(own.data(), data, counts, dtype, op);
      gather_bytes(static_cast<char*>(data), own.data(), bytes_of(counts, dtype));
    });
  }

  void broadcast(void* data, Numel numel, DType dtype, int root) override {
    call("broadcast", [&] {
      gloo::BroadcastOptions options(context_);
      options.setOutput(static_cast<char*>(data), static_cast<std::size_t>(numel * itemsize(dtype)));
      options.setRoot(root);
      options.setTag(next_tag());
      gloo::broadcast(options);
    });
  }

  void barrier() override {
    call("barrier", [&] {
      gloo::BarrierOptions options(context_);
      options.setTag(next_tag());
      gloo::barrier(options);
    });
  }

  void abort(std::string_view why) override {
    {
      std::lock_guard lock(mutex_);
      if (aborted_.empty()) aborted_ = fmt::format("rank {} gave up: {}", rank(), why);
    }
    context_->closeConnections();  // the peers' calls end with Gloo's own words
  }

 private:
  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }
  std::uint32_t next_tag() { return tag_++; }
  std::vector<Numel> even(Numel numel) const { return std::vector<Numel>(index(size()), numel); }

  static std::vector<std::int64_t> bytes_of(std::span<const Numel> counts, DType dtype) {
    std::vector<std::int64_t> bytes;
    for (const Numel count : counts) bytes.push_back(count * itemsize(dtype));
    return bytes;
  }

  void gather_bytes(char* output, const void* input, const std::vector<std::int64_t>& bytes) {
    gloo::AllgathervOptions options(context_);
    char* own = const_cast<char*>(static_cast<const char*>(input));  // Gloo only reads it
    options.setInput(own, static_cast<std::size_t>(bytes[index(rank())]));
    options.setOutput(output, std::vector<std::size_t>(bytes.begin(), bytes.end()));
    options.setTag(next_tag());
    gloo::allgatherv(options);
  }

  /// Everybody's part for this rank, one after another, then their sum.
  void scatter_sums(std::byte* output, const void* input, std::span<const Numel> counts, DType dtype, ReduceOp op) {
    const Numel numel = counts[index(rank())];
    const std::int64_t part_bytes = numel * itemsize(dtype);
    std::vector<std::byte> parts(static_cast<std::size_t>(part_bytes) * index(size()));
    gloo::AlltoallvOptions options(context_);
    options.setInput(const_cast<char*>(static_cast<const char*>(input)), bytes_of(counts, dtype));
    options.setOutput(reinterpret_cast<char*>(parts.data()), std::vector<std::int64_t>(index(size()), part_bytes));
    options.setTag(next_tag());
    gloo::alltoallv(options);
    std::vector<const std::byte*> starts;
    for (int r = 0; r < size(); ++r) starts.push_back(parts.data() + r * part_bytes);
    reduce_parts(output, starts, numel, dtype, op);
  }

  /// What Gloo throws, with the name of the call in front; an abort's own words where that is the reason.
  template <class F>
  void call(const char* doing, F body) {
    throw_if_aborted();
    try {
      body();
    } catch (const std::exception& error) {
      throw_if_aborted();
      throw std::runtime_error(fmt::format("rank {}: {} on {}: {}", rank(), doing, name_, error.what()));
    }
  }

  void throw_if_aborted() {
    std::lock_guard lock(mutex_);
    if (!aborted_.empty()) throw std::runtime_error(aborted_);
  }

  std::string name_;
  std::shared_ptr<gloo::rendezvous::Context> context_;
  std::uint32_t tag_ = 0;
  std::mutex mutex_;
  std::string aborted_;
};

Error meeting_error(const RendezvousOptions& options, std::string_view text) {
  Error error;
  error.message = fmt::format("rank {} of {} did not meet the others: {}", options.rank, options.size, text);
  error.place = fmt::format("{}:{}", options.host, options.port);
  error.hint = "is the port free, and were all ranks started with the same address and world size?";
  return error;
}

class GlooRendezvous final : public ProcessRendezvous {
 public:
  GlooRendezvous(RendezvousOptions options, c10::intrusive_ptr<c10d::TCPStore> tcp)
      : options_(std::move(options)), store_(std::move(tcp)) {}

  Result<std::shared_ptr<Communicator>> communicator(std::string_view name,
                                                     std::chrono::milliseconds timeout) override {
    try {
      gloo::transport::tcp::attr attributes;
      attributes.iface = options_.interface;
      std::shared_ptr<gloo::transport::Device> device = gloo::transport::tcp::CreateDevice(attributes);
      auto context = std::make_shared<gloo::rendezvous::Context>(options_.rank, options_.size);
      context->setTimeout(options_.timeout);  // of the connections
      gloo::rendezvous::PrefixStore store("foreshard/" + std::string(name), store_);
      context->connectFullMesh(store, device);
      context->setTimeout(timeout);
      return std::make_shared<GlooCommunicator>(std::string(name), std::move(context));
    } catch (const std::exception& error) {
      return fail(meeting_error(options_, error.what()));
    }
  }

 private:
  RendezvousOptions options_;
  TcpStore store_;
};

}  // namespace

Result<std::unique_ptr<ProcessRendezvous>> ProcessRendezvous::meet(const RendezvousOptions& options) {
  try {
    c10d::TCPStoreOptions tcp;
    tcp.port = static_cast<std::uint16_t>(options.port);
    tcp.isServer = options.rank == 0;
    tcp.numWorkers = static_cast<std::size_t>(options.size);
    tcp.timeout = options.timeout;
    return std::make_unique<GlooRendezvous>(options, c10::make_intrusive<c10d::TCPStore>(options.host, tcp));
  } catch (const std::exception& error) {
    return fail(meeting_error(options, error.what()));
  }
}

}  // namespace foreshard::exec
