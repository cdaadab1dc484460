// Whether the other ranks of a run still live, where no launcher of ours looks after them (torchrun, Slurm, mpirun): a
// rank that is stopped, or whose machine is gone without a word, closes no connection.
//
//   rank r    every beat: "I live" into the store; reads the beat of rank r + 1, and whether somebody left a word
//   lost      rank r + 1 after `missed` beats of ours without one of its own; rank 0, if it holds the store, when the
//             store has not answered for as long, or is gone
//
// Beats are counted, not seconds: a rank that was stopped itself and goes on blames nobody for the time that it slept.
// Whoever finds a rank lost leaves the word for all; each rank then tells its own process once, on a thread of this
// object. Two threads, asleep but for a moment a beat.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "exec/launch/rendezvous.h"

namespace foreshard::exec {

struct HeartbeatOptions {
  std::chrono::milliseconds beat{1000};
  int missed = 10;       // beats in a row; as long as the launcher's patience with a stopped rank
  int after_a_word = 3;  // beats that a rank has to end by itself once another one's failure is known
};

class Heartbeat {
 public:
  /// `word` begins with "lost rank N" or is the word that somebody left; `ours`: it was this rank that found it.
  using Lost = std::function<void(const std::string& word, bool ours)>;

  /// `meeting` outlives the object.
  Heartbeat(Rendezvous& meeting, const HeartbeatOptions& options, Lost lost);
  /// The neighbour is told that we leave. Never waits for a store that does not answer: the thread that asks it is then
  /// left behind. Waits for `lost` if it is being called.
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;  // with the thread that may be left behind
};

}  // namespace foreshard::exec
