#include "exec/launch/rendezvous.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>

#include "core/text/utf8.h"

namespace foreshard::exec {
namespace {

using std::chrono::milliseconds;

const char* const kFailureKey = "failure";
const char* const kStoppedKey = "stopped";
const char* const kEndedKey = "ended";

Error meeting_error(const RendezvousOptions& options, std::string_view text) {
  Error error;
  error.message = fmt::format("rank {} of {} did not meet the others: {}", options.rank, options.size, text);
  error.place = fmt::format("{}:{}", options.host, options.port);
  error.expected = fmt::format("{} ranks within {} s", options.size, options.timeout.count() / 1000);
  error.hint = "is the port free, and were all ranks started with the same address and world size?";
  return error;
}

/// The address of the interface by which `host` is reached. Nothing is sent: connecting a datagram socket only chooses.
std::string address_towards(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return "127.0.0.1";
  std::string address = "127.0.0.1";
  for (const addrinfo* info = found; info != nullptr; info = info->ai_next) {
    const int socket = ::socket(info->ai_family, info->ai_socktype, info->ai_protocol);
    if (socket < 0) continue;
    sockaddr_storage own{};
    socklen_t length = sizeof own;
    char text[NI_MAXHOST] = {};
    const bool known =
        ::connect(socket, info->ai_addr, info->ai_addrlen) == 0 &&
        ::getsockname(socket, reinterpret_cast<sockaddr*>(&own), &length) == 0 &&
        ::getnameinfo(reinterpret_cast<sockaddr*>(&own), length, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0;
    ::close(socket);
    if (!known) continue;
    address = text;
    break;
  }
  freeaddrinfo(found);
  return address;
}

/// Somebody else's, that ends our waiting.
struct FailureWord : std::runtime_error {
  using std::runtime_error::runtime_error;
};

constexpr milliseconds kLongestPause{50};  // between two looks for what has not come

class TcpRendezvous final : public Rendezvous {
 public:
  TcpRendezvous(RendezvousOptions options, c10::intrusive_ptr<c10d::TCPStore> store, bool holds_store)
      : options_(std::move(options)),
        store_(std::move(store)),
        holds_store_(holds_store),
        own_address_(address_towards(options_.host, options_.port)) {}

  int rank() const override { return options_.rank; }
  int size() const override { return options_.size; }
  int port() const override { return options_.port; }
  const std::string& own_address() const override { return own_address_; }

  void set(const std::string& key, const Content& content) override {
    call([&] { store_->set(full(key), content); });
  }

  Content get(const std::string& key, milliseconds timeout) override {
    Content content;
    call([&] {
      store_->wait({full(key)}, timeout);
      content = store_->get(full(key));
    });
    return content;
  }

  std::optional<Content> look(const std::string& key) override {
    std::optional<Content> content;
    call([&] {
      if (store_->check({full(key)})) content = store_->get(full(key));
    });
    return content;
  }

  Content expect(const std::string& key, milliseconds timeout) override {
    const auto end = std::chrono::steady_clock::now() + timeout;
    bool there = false;
    for (milliseconds pause(1); !there; pause = std::min(2 * pause, kLongestPause)) {
      call([&] { there = store_->check({full(key)}); });
      if (there) break;
      if (const auto word = reported_failure(milliseconds::zero())) throw FailureWord(*word);
      if (left(kEndedKey)) throw FailureWord(std::string(kEndedBySignal));
      if (std::chrono::steady_clock::now() >= end) break;  // get() says what is missing
      std::this_thread::sleep_for(pause);
    }
    return get(key, there ? timeout : milliseconds(1));
  }

  void report_failure(std::string_view text) noexcept override {
    if (given_up()) return;
    try {
      store_->compareSet(full(kFailureKey), {}, content_of(text));
    } catch (const std::exception&) {
    }
  }

  std::optional<std::string> reported_failure(milliseconds patience) noexcept override {
    if (auto word = given_up()) return word;
    try {
      if (patience > milliseconds::zero()) store_->wait({full(kFailureKey)}, patience);
      if (!store_->check({full(kFailureKey)})) return std::nullopt;
      std::string text = text_of(store_->get(full(kFailureKey)));
      if (rank() >= 0 && !holds_store_) store_->set(full(read_key(rank())), content_of("read"));
      return text;
    } catch (const std::exception&) {
      return std::nullopt;
    }
  }

  void leave_account(std::string_view text) noexcept override { leave(account_key(rank()), text); }

  std::optional<std::string> account_of(int rank) noexcept override { return left(account_key(rank)); }

  void note_stopped(std::string_view text) noexcept override { leave(kStoppedKey, text); }

  std::string noted_stopped() noexcept override { return left(kStoppedKey).value_or(""); }

  void note_ended() noexcept override { leave(kEndedKey, "ended"); }

  void let_others_read(milliseconds patience) noexcept override {
    if (!holds_store_) return;
    try {
      std::vector<std::string> keys;
      for (int rank = 0; rank < size(); ++rank) {
        if (rank != options_.rank) keys.push_back(full(read_key(rank)));
      }
      if (!keys.empty()) store_->wait(keys, patience);
    } catch (const std::exception&) {
    }
  }

  bool held_by_rank_0() const override { return !options_.hosted_elsewhere && options_.rank >= 0; }

  std::unique_ptr<Rendezvous> second_connection() const override {
    c10d::TCPStoreOptions tcp;
    tcp.port = static_cast<std::uint16_t>(options_.port);
    tcp.waitWorkers = false;
    tcp.timeout = options_.timeout;
    RendezvousOptions options = options_;
    options.rank = -1;  // what it reads, nobody has read
    std::unique_ptr<Rendezvous> second;
    call([&] {
      auto store = c10::make_intrusive<c10d::TCPStore>(options.host, tcp);
      second = std::make_unique<TcpRendezvous>(std::move(options), std::move(store), /*holds_store=*/false);
    });
    return second;
  }

  void give_up(std::string_view word) noexcept override {
    const std::lock_guard lock(given_up_mutex_);
    if (!given_up_) given_up_ = std::string(word);
  }

  /// Everybody says what it was started as, so that two runs on one port find out.
  void greet() {
    set(fmt::format("world_size/{}", rank()), content_of(std::to_string(size())));
    for (int other = 0; other < size(); ++other) {
      const std::string theirs = size_told_by(other);
      if (theirs == std::to_string(size())) continue;
      throw std::runtime_error(
          fmt::format("rank {} was started as one of {} ranks, rank {} as one of {}", other, theirs, rank(), size()));
    }
  }

 private:
  void leave(const std::string& key, std::string_view text) noexcept {
    if (given_up()) return;
    try {
      store_->set(full(key), content_of(text));
    } catch (const std::exception&) {
    }
  }
  std::optional<std::string> left(const std::string& key) noexcept {
    if (given_up()) return std::nullopt;
    try {
      if (!store_->check({full(key)})) return std::nullopt;
      return text_of(store_->get(full(key)));
    } catch (const std::exception&) {
      return std::nullopt;
    }
  }
  std::string full(const std::string& key) const { return "foreshard/" + options_.prefix + key; }
  std::string size_told_by(int other) {
    try {
      return text_of(expect(fmt::format("world_size/{}", other), options_.timeout));
    } catch (const FailureWord&) {
      throw;
    } catch (const std::exception& error) {
      if (const auto word = reported_failure(milliseconds::zero())) throw FailureWord(*word);
      throw std::runtime_error(
          fmt::format("rank {} did not come within {} ms ({})", other, options_.timeout.count(), error.what()));
    }
  }
  static std::string account_key(int rank) { return fmt::format("account/{}", rank); }
  static std::string read_key(int rank) { return fmt::format("failure_read/{}", rank); }

  std::optional<std::string> given_up() const noexcept {
    const std::lock_guard lock(given_up_mutex_);
    return given_up_;
  }

  template <class F>
  void call(F body) const {
    if (const auto word = given_up()) throw std::runtime_error(*word);
    try {
      body();
    } catch (const std::exception& error) {
      throw std::runtime_error(first_line(error.what()));
    }
  }

  RendezvousOptions options_;
  c10::intrusive_ptr<c10d::TCPStore> store_;
  bool holds_store_;
  std::string own_address_;
  mutable std::mutex given_up_mutex_;
  std::optional<std::string> given_up_;
};

}  // namespace

Result<std::unique_ptr<Rendezvous>> Rendezvous::meet(const RendezvousOptions& options) {
  const bool holds_store = options.rank == 0 && !options.hosted_elsewhere;
  try {
    c10d::TCPStoreOptions tcp;
    tcp.port = static_cast<std::uint16_t>(options.port);
    tcp.isServer = holds_store;
    tcp.waitWorkers = false;  // greet() waits, and knows who is missing
    tcp.timeout = options.timeout;
    auto store = c10::make_intrusive<c10d::TCPStore>(options.host, tcp);
    auto meeting = std::make_unique<TcpRendezvous>(options, std::move(store), holds_store);
    meeting->greet();
    return meeting;
  } catch (const FailureWord& word) {
    Error error = meeting_error(options, "another one failed before");
    error.got = word.what();
    return fail(std::move(error));
  } catch (const std::exception& error) {
    return fail(meeting_error(options, first_line(error.what())));
  }
}

Result<std::unique_ptr<Rendezvous>> Rendezvous::host(const std::string& address, int size) {
  RendezvousOptions options;
  options.host = address;
  options.port = 0;
  options.rank = -1;
  options.size = size;
  try {
    c10d::TCPStoreOptions tcp;
    tcp.port = 0;  // a free one
    tcp.isServer = true;
    tcp.waitWorkers = false;
    auto store = c10::make_intrusive<c10d::TCPStore>(options.host, tcp);
    options.port = store->getPort();
    return std::make_unique<TcpRendezvous>(options, std::move(store), true);
  } catch (const std::exception& error) {
    return fail(meeting_error(options, first_line(error.what())));
  }
}

}  // namespace foreshard::exec
