#include "exec/launch/heartbeat.h"

#include <fmt/format.h>

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

namespace foreshard::exec {
namespace {

using std::chrono::milliseconds;

constexpr std::string_view kLeft = "left";

std::string key_of(int rank) { return fmt::format("beat/{}", rank); }

}  // namespace

struct Heartbeat::Shared {
  Shared(Rendezvous& rendezvous, const HeartbeatOptions& given, Lost tell)
      : meeting(rendezvous),
        options(given),
        lost(std::move(tell)),
        rank(rendezvous.rank()),
        next((rank + 1) % rendezvous.size()),
        rank_0_holds(rendezvous.held_by_rank_0()) {}

  Rendezvous& meeting;  // of the watching thread only, which is never left behind
  const HeartbeatOptions options;
  const Lost lost;
  const int rank, next;
  const bool rank_0_holds;

  std::mutex mutex;  // of what follows
  std::condition_variable changed;
  bool closing = false, asker_ended = false;
  std::uint64_t answers = 0;         // rounds in which the store answered
  std::optional<std::string> found;  // a word for this process
  bool ours = false;

  std::thread asker, watcher;

  /// False: the object goes.
  bool sleep(milliseconds time) {
    std::unique_lock lock(mutex);
    return !changed.wait_for(lock, time, [this] { return closing; });
  }

  void find(std::string word, bool by_us) {
    const std::lock_guard lock(mutex);
    if (found) return;
    found = std::move(word);
    ours = by_us;
    changed.notify_all();
  }

  std::string seconds() const {
    return fmt::format("{:g} s", static_cast<double>((options.beat * options.missed).count()) / 1000);
  }

  /// A thread of its own: the store's calls have no limit once its process is stopped.
  void ask() {
    try {
      const auto store = meeting.second_connection();
      ask_on(*store);
    } catch (const std::exception&) {
      const std::lock_guard lock(mutex);
      if (!closing && rank_0_holds && rank != 0) {
        found = found.value_or("lost rank 0: its process is gone, and the store that the ranks met in with it");
        ours = rank == 1;
        changed.notify_all();
      }
    }
    const std::lock_guard lock(mutex);
    asker_ended = true;
    changed.notify_all();
  }

  void ask_on(Rendezvous& store) {
    std::string seen;
    int missed = 0, since_word = 0;
    bool left = false;
    for (std::uint64_t beat = 1; sleep(options.beat); ++beat) {
      store.set(key_of(rank), content_of(std::to_string(beat)));
      if (!left) {
        const std::string now = beat_of_next(store);
        missed = now == seen ? missed + 1 : 0;
        seen = now;
        left = now == kLeft;
        if (missed >= options.missed) {
          const std::string word =
              fmt::format("lost rank {}: its process has given no sign of life for {}", next, seconds());
          store.report_failure(word);
          find(store.reported_failure(milliseconds::zero()).value_or(word), true);
        }
      }
      if (const auto word = store.reported_failure(milliseconds::zero())) {
        if (word->starts_with("lost rank ") || ++since_word > options.after_a_word) find(*word, false);
      }
      const std::lock_guard lock(mutex);
      ++answers;
      if (found) return;
    }
    store.set(key_of(rank), content_of(kLeft));
  }

  /// Empty: it has not come to its first one.
  std::string beat_of_next(Rendezvous& store) const {
    const auto beat = store.look(key_of(next));
    return beat ? text_of(*beat) : "";
  }

  void watch() {
    std::uint64_t before = 0;
    int silent = 0;
    std::unique_lock lock(mutex);
    while (!closing && !found) {
      changed.wait_for(lock, options.beat, [this] { return closing || found.has_value(); });
      if (closing || found) break;
      silent = answers == before ? silent + 1 : 0;
      before = answers;
      if (rank_0_holds && rank != 0 && silent > options.missed) {
        found = fmt::format("lost rank 0: the store that it holds has not answered for {}", seconds());
        ours = rank == 1;
      }
    }
    if (closing) return;
    const std::string word = *found;
    const bool by_us = ours;
    lock.unlock();
    meeting.give_up(word);
    lost(word, by_us);
  }
};

Heartbeat::Heartbeat(Rendezvous& meeting, const HeartbeatOptions& options, Lost lost)
    : shared_(std::make_shared<Shared>(meeting, options, std::move(lost))) {
  shared_->asker = std::thread([shared = shared_] { shared->ask(); });
  shared_->watcher = std::thread([shared = shared_.get()] { shared->watch(); });
}

Heartbeat::~Heartbeat() {
  bool ended = false;
  {
    std::unique_lock lock(shared_->mutex);
    shared_->closing = true;
    shared_->changed.notify_all();
    ended = shared_->changed.wait_for(lock, milliseconds(500), [this] { return shared_->asker_ended; });
  }
  if (ended)
    shared_->asker.join();
  else
    shared_->asker.detach();
  shared_->watcher.join();
}

}  // namespace foreshard::exec
