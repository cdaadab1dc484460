// Copies of activation offload on their stream, and what that stream and the compute stream wait for (OffloadStep). The
// host's blocks are pinned as torch's allocator of pinned memory gives them: powers of two, kept for the next. Part of
// one PlanPlayer.
#pragma once

#include <map>
#include <vector>

#include "sim/play/instructions/play_context.h"
#include "sim/play/segments/template_times.h"

namespace foreshard {

class ActivationCopies {
 public:
  explicit ActivationCopies(PlayContext& context) : context_(context) {}

  /// REQUIRES kernel.offload != OffloadStep::None.
  void play(const Kernel& kernel, const TimedKernel& timed, ActivitySpan what);
  /// The graph is gone, and with it what it had on the host.
  void drop_all();

 private:
  void copy(const Kernel& kernel, SimDuration time, ActivitySpan& what);
  void pin(Bytes bytes);
  void unpin(Bytes bytes);

  PlayContext& context_;
  std::vector<EventStamp> copied_, used_;
  struct Blocks {
    std::int64_t used = 0, spare = 0;
  };
  std::map<Bytes, Blocks> pinned_;  // by their size
};

}  // namespace foreshard
