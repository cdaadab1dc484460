// A simulation's order of issue without its memory: what the host paid, what was put on which stream for how long, who
// waited for whom. Played again with other durations it gives the times of a job in which a unit got faster or slower,
// in a small part of a simulation's time.
//
// Kernels of one stream that follow each other are one entry: the effect of a run of kernels on (host, stream tail) is
// h' = h + H, t' = max(t + D, h + C), whatever h and t are. So is that of a collective and of a wait, so that all are
// played by one formula (Word); a record is the tail that was there, and nothing to play. What memory does (addresses,
// retries, host time of driver calls) is kept as it was recorded: a change that alters what is allocated needs a
// simulation. Model clock only. Owned by one simulation while it is recorded; a plain value afterwards.
#pragma once

#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "core/plan.h"
#include "core/units.h"

namespace foreshard {

/// What a collective is to a host's cores, as calibration measured it (sim/play/core_sharing.h).
struct HostLoad {
  double beside = 1;  // its time while the rank computes, over its time alone
  double taken = 0;   // of the compute's speed meanwhile
  double busy = 0;    // cores that it keeps busy while it runs alone
};

class IssueTape {
 public:
  enum class Kind : std::uint8_t { Run, Collective, Record, StreamWait, HostWait, StreamSync, Iteration };
  struct Entry {
    Kind kind = Kind::Run;
    std::uint8_t stream = 0;
    std::int32_t unit = -1;     // whose work it is
    std::int32_t event = -1;    // Record, StreamWait, HostWait; Collective: the CommunicatorId
    SimDuration host = 0;       // Run: H; else what the host pays before
    SimDuration device = 0;     // Run: D; Collective: duration
    SimDuration behind = 0;     // Run: C
    std::uint32_t kernels = 0;  // Run: its first in kernels()
    HostLoad load = {};         // Collective
  };
  struct Kernel {
    SimDuration host = 0, device = 0;
  };

  /// What retime() plays. Places are those of words whose ends they mean; the first word ends at 0.
  ///     host = max(host + before, end[hold]);  end = max(max(end[tail], end[other]) + device, host + behind);  host +=
  ///     within
  struct Word {
    std::int32_t unit = -1;
    std::int32_t tail = 0;      // what came before it on its stream
    std::int32_t other = 0;     // what its stream waits for, or its communicator's last collective
    std::int32_t hold = 0;      // what the host waits for
    SimDuration before = 0;     // Run: none, its kernels have it
    SimDuration device = 0;     // D
    SimDuration behind = 0;     // C
    SimDuration within = 0;     // Run: H
    std::uint32_t kernels = 0;  // Run: its first in kernels(); they end where the next word's begin
    Kind kind = Kind::Run;
  };
  /// Of an iteration: how many words, and each stream's last.
  struct Iteration {
    std::size_t words = 0;
    std::vector<std::int32_t> tails;
  };

  /// What runs now belongs to this unit.
  void set_unit(std::int32_t unit) { unit_ = unit; }
  /// What the next collective is to a host's cores.
  void set_load(const HostLoad& load) { load_ = load; }
  void host_cost(SimDuration duration) {
    pending_host_ += duration;
    word_host_ += duration;
  }
  void run(int stream, SimDuration duration) {
    const bool joins = !entries_.empty() && entries_.back().kind == Kind::Run && entries_.back().stream == stream &&
                       entries_.back().unit == unit_;
    if (!joins) {
      entries_.push_back({Kind::Run, static_cast<std::uint8_t>(stream), unit_, -1, 0, 0, 0,
                          static_cast<std::uint32_t>(kernels_.size())});
      word_on(stream, Kind::Run);
      words_.back().before = word_host_ - pending_host_;  // of records, for whose entries the kernels do not pay
    }
    kernels_.push_back({pending_host_, duration});
    Entry& entry = entries_.back();
    entry.host += pending_host_;
    entry.device += duration;
    // Behind all that came before it on the stream, and behind the host's last word.
    entry.behind = (entry.behind > entry.host ? entry.behind : entry.host) + duration;
    Word& word = words_.back();
    word.device = entry.device;
    word.behind = entry.behind;
    word.within = entry.host;
    pending_host_ = word_host_ = 0;
  }
  void collective(int stream, std::int32_t communicator, SimDuration duration) {
    const auto place = static_cast<std::size_t>(communicator);
    if (place >= last_of_.size()) last_of_.resize(place + 1, 0);
    Word& word = word_on(stream, Kind::Collective);
    word.before = std::exchange(word_host_, 0);
    word.other = std::exchange(last_of_[place], tail(stream));
    word.device = word.behind = duration;
    add({Kind::Collective, static_cast<std::uint8_t>(stream), unit_, communicator, 0, duration, 0, 0, load_});
  }
  std::int32_t record(int stream) {
    add({Kind::Record, static_cast<std::uint8_t>(stream), unit_, events(), 0, 0, 0, 0});
    recorded_.push_back(tail(stream));
    return events() - 1;
  }
  void stream_wait(int stream, std::int32_t event) {
    word_on(stream, Kind::StreamWait).other = recorded_[static_cast<std::size_t>(event)];
    words_.back().before = std::exchange(word_host_, 0);
    add({Kind::StreamWait, static_cast<std::uint8_t>(stream), unit_, event, 0, 0, 0, 0});
  }
  void host_wait(std::int32_t event) {
    hold(recorded_[static_cast<std::size_t>(event)]);
    add({Kind::HostWait, 0, unit_, event, 0, 0, 0, 0});
  }
  void stream_synchronize(int stream) {
    hold(tail(stream));
    add({Kind::StreamSync, static_cast<std::uint8_t>(stream), unit_, -1, 0, 0, 0, 0});
  }
  /// An iteration has ended.
  void end_iteration() {
    iterations_.push_back({words_.size(), tails_});
    add({Kind::Iteration, 0, -1, -1, 0, 0, 0, 0});
  }

  const std::vector<Entry>& entries() const { return entries_; }
  /// Of all runs, one after the other.
  const std::vector<Kernel>& kernels() const { return kernels_; }
  std::int32_t events() const { return static_cast<std::int32_t>(recorded_.size()); }
  std::int32_t communicators() const { return static_cast<std::int32_t>(last_of_.size()); }
  const std::vector<Word>& words() const { return words_; }
  const std::vector<Iteration>& iterations() const { return iterations_; }

 private:
  void add(Entry entry) {
    entry.host = pending_host_;
    entry.kernels = static_cast<std::uint32_t>(kernels_.size());
    pending_host_ = 0;
    entries_.push_back(entry);
  }
  Word& add_word(Kind kind) {
    Word& word = words_.emplace_back();
    word.kind = kind;
    word.unit = unit_;
    word.behind = kNoHost;
    word.kernels = static_cast<std::uint32_t>(kernels_.size());
    return word;
  }
  std::int32_t& tail(int stream) {
    const auto place = static_cast<std::size_t>(stream);
    if (place >= tails_.size()) tails_.resize(place + 1, 0);
    return tails_[place];
  }
  /// The next on a stream.
  Word& word_on(int stream, Kind kind) {
    Word& word = add_word(kind);
    word.tail = std::exchange(tail(stream), static_cast<std::int32_t>(words_.size()) - 1);
    return word;
  }
  void hold(std::int32_t place) {
    Word& word = add_word(Kind::HostWait);
    word.before = std::exchange(word_host_, 0);
    word.hold = place;
  }

  static constexpr SimDuration kNoHost =
      std::numeric_limits<SimDuration>::min() / 2;  // a wait of a stream is over without it

  std::vector<Entry> entries_;
  std::vector<Kernel> kernels_;
  std::vector<Word> words_ = std::vector<Word>(1);
  std::vector<Iteration> iterations_;
  std::vector<std::int32_t> recorded_;            // by event: the word that it is the end of
  std::vector<std::int32_t> last_of_;             // by communicator
  std::vector<std::int32_t> tails_;               // by stream
  SimDuration pending_host_ = 0, word_host_ = 0;  // since the last entry, since the last word
  std::int32_t unit_ = -1;
  HostLoad load_;
};

/// Durations of one unit are multiplied by these.
struct UnitChange {
  std::int32_t unit = -1;
  double compute = 1.0;        // kernels
  double communication = 1.0;  // collectives
};

/// When each iteration of the tape ends, from the end of wrapping. With no change the simulation's own times, to the
/// nanosecond.
std::vector<SimTime> retime(const IssueTape& tape, const std::vector<UnitChange>& changes);

}  // namespace foreshard
