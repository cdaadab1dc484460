#include "exec/communicators/gloo_communicator.h"

#include <fmt/format.h>
#include <gloo/allgatherv.h>
#include <gloo/alltoallv.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/address.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/address.h>
#include <gloo/transport/tcp/device.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "exec/communicators/reduce_parts.h"

namespace foreshard::exec {
namespace {

using std::chrono::milliseconds;

// The reason of a lost connection is on its way while we already see the loss: the launcher learns of a killed rank, a
// failing rank first closes its connections.
constexpr milliseconds kPatienceForTheReason{1500};

/// Gloo's words for the rendezvous.
class PrefixedStore final : public gloo::rendezvous::Store {
 public:
  PrefixedStore(Rendezvous& rendezvous, std::string prefix, milliseconds timeout)
      : rendezvous_(rendezvous), prefix_(std::move(prefix)), timeout_(timeout) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    rendezvous_.set(prefix_ + key, {data.begin(), data.end()});
  }
  std::vector<char> get(const std::string& key) override {
    const Rendezvous::Content data = rendezvous_.expect(prefix_ + key, timeout_);
    return {data.begin(), data.end()};
  }
  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }
  void wait(const std::vector<std::string>& keys, const milliseconds& timeout) override {
    for (const std::string& key : keys) rendezvous_.expect(prefix_ + key, timeout);
  }

 private:
  Rendezvous& rendezvous_;
  std::string prefix_;
  milliseconds timeout_;
};

/// Gloo's sentence without the place in Gloo's sources that it opens with.
std::string without_source(std::string text) {
  if (!text.empty() && text.front() == '[' && text.find("] ") != std::string::npos) text.erase(0, text.find("] ") + 2);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

/// The ranks of a group, and which of them stands behind a connection.
struct Peers {
  std::vector<int> ranks;             // of the world
  std::map<std::string, int> behind;  // remote address of a connection as Gloo prints it -> rank of the world

  /// Whom `self`, a rank of the world, lost by Gloo's sentence. Of two ranks it can only be the other, also where the
  /// sentence names no address.
  std::optional<int> named_in(const std::string& text, int self) const {
    for (const auto& [address, rank] : behind) {
      const auto at = text.find(address);
      if (at == std::string::npos) continue;
      const auto after = at + address.size();  // port 6542 is not 65426
      if (after == text.size() || text[after] < '0' || text[after] > '9') return rank;
    }
    if (ranks.size() == 2 && text.find("onnection") != std::string::npos)
      return ranks.front() == self ? ranks.back() : ranks.front();
    return std::nullopt;
  }
};

/// Ends the connections to these peers as their loss would: Gloo keeps its sockets to itself.
void shut_down(const Peers& peers) {
  std::error_code code;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", code)) {
    const int socket = std::atoi(entry.path().filename().c_str());
    sockaddr_storage remote{};
    socklen_t length = sizeof remote;
    if (::getpeername(socket, reinterpret_cast<sockaddr*>(&remote), &length) != 0) continue;
    if (remote.ss_family != AF_INET && remote.ss_family != AF_INET6) continue;
    if (peers.behind.contains(gloo::transport::tcp::Address(remote).str())) ::shutdown(socket, SHUT_RDWR);
  }
}

class GlooCommunicator final : public Communicator {
 public:
  GlooCommunicator(Rendezvous& rendezvous, std::string name, std::shared_ptr<gloo::rendezvous::Context> context,
                   Peers peers)
      : rendezvous_(rendezvous), name_(std::move(name)), context_(std::move(context)), peers_(std::move(peers)) {}

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
      const auto own = std::make_unique<std::byte[]>(static_cast<std::size_t>(own_bytes));
      scatter_sums(own.get(), data, counts, dtype, op);
      gather_bytes(static_cast<char*>(data), own.get(), bytes_of(counts, dtype));
    });
  }

  void all_to_all(void* output, const void* input, std::span<const Numel> send, std::span<const Numel> receive,
                  DType dtype) override {
    call("all_to_all", [&] {
      check_exchange(send, receive);
      exchange_bytes(output, input, bytes_of(send, dtype), bytes_of(receive, dtype));
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
      if (!aborted_.empty()) return;
      aborted_ = fmt::format("rank {} gave up: {}", world_rank(), why);
    }
    // The calls of both sides end; the peers ask the rendezvous why. Gloo's own closeConnections() would let a call of
    // ours go on waiting.
    shut_down(peers_);
  }

 private:
  int world_rank() const { return peers_.ranks[index(rank())]; }
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

  void exchange_bytes(void* output, const void* input, std::vector<std::int64_t> send,
                      std::vector<std::int64_t> receive) {
    gloo::AlltoallvOptions options(context_);
    options.setInput(const_cast<char*>(static_cast<const char*>(input)), std::move(send));  // Gloo only reads it
    options.setOutput(static_cast<char*>(output), std::move(receive));
    options.setTag(next_tag());
    gloo::alltoallv(options);
  }

  /// Gloo itself takes a message that is too short for a whole one.
  void check_exchange(std::span<const Numel> send, std::span<const Numel> receive) {
    std::vector<Numel> told(index(size()));
    const std::vector<std::int64_t> one(index(size()), sizeof(Numel));
    exchange_bytes(told.data(), send.data(), one, one);
    for (int r = 0; r < size(); ++r) {
      if (told[index(r)] == receive[index(r)]) continue;
      throw std::runtime_error(fmt::format("rank {} sends {} elements to rank {}, which expects {}",
                                           peers_.ranks[index(r)], told[index(r)], world_rank(), receive[index(r)]));
    }
  }

  /// Everybody's part for this rank, one after another, then their sum.
  void scatter_sums(std::byte* output, const void* input, std::span<const Numel> counts, DType dtype, ReduceOp op) {
    const Numel numel = counts[index(rank())];
    const std::int64_t part_bytes = numel * itemsize(dtype);
    std::byte* parts = scratch(static_cast<std::size_t>(part_bytes) * index(size()));
    exchange_bytes(parts, input, bytes_of(counts, dtype), std::vector<std::int64_t>(index(size()), part_bytes));
    std::vector<const std::byte*> starts;
    for (int r = 0; r < size(); ++r) starts.push_back(parts + r * part_bytes);
    reduce_parts(output, starts, numel, dtype, op);
  }

  /// Room for what the others send, kept for the next call: faulting its pages in again costs a tenth of the transfer.
  std::byte* scratch(std::size_t bytes) {
    if (scratch_bytes_ < bytes) {
      scratch_.reset(new std::byte[bytes]);
      scratch_bytes_ = bytes;
    }
    return scratch_.get();
  }

  /// What Gloo throws, with the call and who was lost in front; an abort's own words where that is the reason.
  template <class F>
  void call(const char* doing, F body) {
    throw_if_aborted();
    try {
      body();
    } catch (const std::exception& error) {
      throw_if_aborted();
      throw std::runtime_error(fmt::format("rank {}: {} on {}: {}", world_rank(), doing, name_, reason(error.what())));
    }
  }

  std::string reason(const std::string& thrown) {
    std::string text = without_source(thrown);
    auto lost = peers_.named_in(text, world_rank());
    if (!lost && text.find("imed out") != std::string::npos) lost = silent_peer();
    if (lost) text = fmt::format("lost rank {} ({})", *lost, text);
    if (const auto word = rendezvous_.reported_failure(kPatienceForTheReason)) text += "; " + *word;
    return text;
  }

  /// Who waits in vain says so; of the group's others, whoever does not is the one that is waited for.
  std::optional<int> silent_peer() try {
    const auto key = [](int rank) { return fmt::format("waits_in_vain/{}", rank); };
    rendezvous_.set(key(world_rank()), {1});
    const auto end = std::chrono::steady_clock::now() + kPatienceForTheReason;
    for (const int rank : peers_.ranks) {
      while (!rendezvous_.look(key(rank))) {
        if (std::chrono::steady_clock::now() >= end) return rank;
        std::this_thread::sleep_for(milliseconds(50));
      }
    }
    return std::nullopt;
  } catch (const std::exception&) {
    return std::nullopt;  // no store, no answer
  }

  void throw_if_aborted() {
    std::lock_guard lock(mutex_);
    if (!aborted_.empty()) throw std::runtime_error(aborted_);
  }

  Rendezvous& rendezvous_;
  std::string name_;
  std::shared_ptr<gloo::rendezvous::Context> context_;
  Peers peers_;
  std::uint32_t tag_ = 0;
  std::unique_ptr<std::byte[]> scratch_;
  std::size_t scratch_bytes_ = 0;
  std::mutex mutex_;
  std::string aborted_;
};

/// Everybody tells the others which address his end of each connection has: that is how Gloo names a lost peer. Where
/// the peer had connected before we asked for the connection, Gloo goes on naming the port on which the peer had
/// listened: one of the addresses, all of a size, that Gloo itself left in the store.
Peers exchange_addresses(gloo::rendezvous::Context& context, PrefixedStore& store, std::vector<int> ranks) {
  for (int other = 0; other < context.size; ++other) {
    if (other == context.rank) continue;
    const std::string own_end = context.getPair(other)->address().str();
    store.set(fmt::format("end/{}/{}", context.rank, other), {own_end.begin(), own_end.end()});
  }
  Peers peers{std::move(ranks), {}};
  for (int other = 0; other < context.size; ++other) {
    if (other == context.rank) continue;
    const std::vector<char> end = store.get(fmt::format("end/{}/{}", other, context.rank));
    const int rank = peers.ranks[static_cast<std::size_t>(other)];
    peers.behind[std::string(end.begin(), end.end())] = rank;
    const std::vector<char> listening = store.get(std::to_string(other));
    const auto size = static_cast<std::ptrdiff_t>(context.getPair(other)->address().bytes().size());
    for (auto from = listening.begin(); listening.end() - from >= size; from += size)
      peers.behind[gloo::transport::tcp::Address(std::vector<char>(from, from + size)).str()] = rank;
  }
  return peers;
}

/// Gloo writes to connections that a peer has closed; the signal of that would end this process before it could say
/// why.
void outlive_lost_peers() {
  struct sigaction now {};
  if (::sigaction(SIGPIPE, nullptr, &now) == 0 && now.sa_handler == SIG_DFL) std::signal(SIGPIPE, SIG_IGN);
}

}  // namespace

Result<std::shared_ptr<Communicator>> make_gloo_communicator(Rendezvous& rendezvous, const GlooGroup& group) {
  std::vector<int> ranks = group.ranks;
  if (ranks.empty()) {
    ranks.resize(static_cast<std::size_t>(rendezvous.size()));
    std::iota(ranks.begin(), ranks.end(), 0);
  }
  const auto own = std::find(ranks.begin(), ranks.end(), rendezvous.rank());
  outlive_lost_peers();
  FORESHARD_CHECK(own != ranks.end(), "a rank makes communicators of its own groups only");
  try {
    gloo::transport::tcp::attr attributes(rendezvous.own_address().c_str());
    std::shared_ptr<gloo::transport::Device> device = gloo::transport::tcp::CreateDevice(attributes);
    auto context = std::make_shared<gloo::rendezvous::Context>(static_cast<int>(own - ranks.begin()),
                                                               static_cast<int>(ranks.size()));
    context->setTimeout(group.timeout);
    PrefixedStore store(rendezvous, fmt::format("gloo/{}/", group.name), group.timeout);
    context->connectFullMesh(store, device);
    Peers peers = exchange_addresses(*context, store, std::move(ranks));
    return std::make_shared<GlooCommunicator>(rendezvous, group.name, std::move(context), std::move(peers));
  } catch (const std::exception& error) {
    Error failure;
    failure.message = fmt::format("rank {} could not connect to the others of group {}: {}", rendezvous.rank(),
                                  group.name, without_source(error.what()));
    failure.place = rendezvous.own_address();
    failure.expected = fmt::format("{} ranks within {} ms",
                                   group.ranks.empty() ? rendezvous.size() : static_cast<int>(group.ranks.size()),
                                   group.timeout.count());
    failure.hint = "did all ranks start, and can they reach each other's addresses?";
    return fail(std::move(failure));
  }
}

}  // namespace foreshard::exec
