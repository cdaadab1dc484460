// Where the ranks of a run meet: LibTorch's TCPStore, so that torchrun's MASTER_ADDR and MASTER_PORT work as they are.
//
// A small store of keys and bytes that all ranks see, and the place where a rank leaves word of why it ends: whoever
// loses a connection asks here for the reason. The store lives in rank 0's process, or in the launcher's (torchrun's
// agent, `foreshard run --nproc`), where it outlives any rank. Usable from any thread; calls block up to their timeout.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.h"

namespace foreshard::exec {

struct RendezvousOptions {
  std::string host = "127.0.0.1";  // MASTER_ADDR
  int port = 29500;                // MASTER_PORT
  int rank = 0;
  int size = 1;
  bool hosted_elsewhere = false;  // the launcher keeps the store: rank 0 comes to it as the others do
  std::string prefix = "";        // of all keys: tells restarts apart that share a launcher's store
  std::chrono::milliseconds timeout = std::chrono::minutes(5);  // of the meeting
};

class Rendezvous {
 public:
  using Content = std::vector<std::uint8_t>;

  static constexpr std::string_view kEndedBySignal = "a signal ended a rank before all of them were connected";

  virtual ~Rendezvous() = default;

  /// Rank 0 opens the port (unless hosted_elsewhere), the others come to it; returns once all are there. Errors: a port
  /// that is taken, ranks that do not come in time, another world size; the word of failure that another one left
  /// meanwhile, or kEndedBySignal, which is what the error "got".
  static Result<std::unique_ptr<Rendezvous>> meet(const RendezvousOptions& options);

  /// The launcher's side: opens a store on a free port for ranks that are told `hosted_elsewhere`. Its rank is -1.
  static Result<std::unique_ptr<Rendezvous>> host(const std::string& address, int size);

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual int port() const = 0;
  /// This machine's address as the other ranks reach it: that of the interface that leads to the store.
  virtual const std::string& own_address() const = 0;

  // These throw std::runtime_error where the store is gone or a key does not come in time.
  virtual void set(const std::string& key, const Content& content) = 0;
  virtual Content get(const std::string& key, std::chrono::milliseconds timeout) = 0;
  /// What stands there now; nullopt if nothing does.
  virtual std::optional<Content> look(const std::string& key) = 0;
  /// What comes of a rank that is still to come: throws the word of failure of whoever left one, or that a signal has
  /// ended one, instead of waiting on.
  virtual Content expect(const std::string& key, std::chrono::milliseconds timeout) = 0;

  /// Leaves word for all ranks; only the first word of a run is kept. Never throws: a store that is gone tells nobody.
  virtual void report_failure(std::string_view text) noexcept = 0;
  /// The word that somebody left, waited for up to `patience`; nullopt if there is none, or no store any more.
  virtual std::optional<std::string> reported_failure(std::chrono::milliseconds patience) noexcept = 0;
  /// What a rank that failed knows of it, beside the first word: where it was itself. For whoever tells the run's end.
  virtual void leave_account(std::string_view text) noexcept = 0;
  virtual std::optional<std::string> account_of(int rank) noexcept = 0;
  /// The launcher's: which rank of its own is stopped now; "" where none is. Never throws.
  virtual void note_stopped(std::string_view text) noexcept = 0;
  /// What it noted last; empty without such a launcher, too.
  virtual std::string noted_stopped() noexcept = 0;
  /// The launcher's: that a signal has ended one of its ranks, with nothing failed. It may have met nobody whom it
  /// could tell; expect() ends where a key is not there yet.
  virtual void note_ended() noexcept = 0;
  /// Before a process with a failure ends: if it holds the store, gives the others up to `patience` to read the word.
  virtual void let_others_read(std::chrono::milliseconds patience) noexcept = 0;

  /// Whether rank 0 holds the store: it goes with that process.
  virtual bool held_by_rank_0() const = 0;
  /// A second connection to the same store, so that a long wait of one thread holds up no other. Its rank is -1: it
  /// speaks for nobody. Throws as set() does.
  virtual std::unique_ptr<Rendezvous> second_connection() const = 0;
  /// The store does not answer any more: from here on it is not asked, and `word` is the failure that was left. Calls
  /// that wait for it already go on waiting.
  virtual void give_up(std::string_view word) noexcept = 0;
};

inline std::string text_of(const Rendezvous::Content& content) { return {content.begin(), content.end()}; }
inline Rendezvous::Content content_of(std::string_view text) { return {text.begin(), text.end()}; }

}  // namespace foreshard::exec
