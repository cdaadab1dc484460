// Sums of the gradients of a parameter that is used several times. Under FSDP1 the engine adds on the stream of the
// node that takes the sum: where the views of the flat parameter were made (R26). Part of one PlanPlayer.
#pragma once

#include <map>

#include "sim/play/instructions/play_context.h"
#include "sim/play/segments/run_recorder.h"
#include "sim/play/segments/segment_storages.h"
#include "sim/play/segments/template_times.h"

namespace foreshard {

/// A kernel that is played, where it stands.
struct PlayedKernel {
  const TimedKernel& timed;
  const Kernel& kernel;
  const KernelList& list;
  const SegmentTemplate& segment;
  std::int32_t instance;
};

class GradientSums {
 public:
  GradientSums(PlayContext& context, SegmentStorages& storages, RunRecorder& recorder);

  /// Whether a kernel adds on the compute stream as long as none has left it.
  static bool stays(const PlayedKernel& played) { return !played.timed.sums || gradient_of(played) == nullptr; }
  bool none_left() const { return sums_.empty(); }
  /// On which stream a kernel with TimedKernel::sums adds.
  Stream stream_of(const PlayedKernel& played);
  /// Plays one that does not add on the compute stream. False: out of memory.
  bool play(const PlayedKernel& played, Stream views, const ActivitySpan& what);

 private:
  static const Slot* gradient_of(const PlayedKernel& played);
  Stream views_stream(const BufferName& gradient) const;

  PlayContext& context_;
  SegmentStorages& storages_;
  RunRecorder& recorder_;
  std::int32_t add_in_place_ = -1;  // index into LoweredProgram::op_names
  std::map<Bytes, Stream> sums_;    // by their size: the stream on which terms are added
};

}  // namespace foreshard
