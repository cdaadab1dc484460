// The streams of a simulated device: the plan's letters, and behind them those that further roots have for themselves.
//
// A plan names streams by letter; where several roots take part, a letter means the stream of the unit's own root
// (FSDPCommContext.lazy_init: copy-in, all-gather and reduce-scatter of high priority, all-reduce of the usual one;
// fsdp1's _init_streams: unshard, post-backward and pre-unshard of one priority, all-reduce of the usual one).
// torch gives streams out round, 32 of each priority (c10/cuda/CUDAStream.cpp): from the eleventh root on they are
// another's. A Stream beyond kStreamCount is such a one; only what plays a plan meets it.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "core/job.h"
#include "core/model/model.h"
#include "core/plan.h"

namespace foreshard {

/// As many as a block can note users of (sim/device/allocator/blocks.h).
inline constexpr std::size_t kPlayedStreams = 64;

/// The stream by this letter of the n-th root that runs forward, counted from 0. The first has the letters themselves,
/// as all have of the streams that roots share.
Stream stream_of_root(Stream letter, std::size_t root);

/// "C", and "C2" of the second root; fsdp1: "U2".
std::string played_stream_name(Stream stream, Runtime runtime);

/// The plan with the streams of its units' roots, roots counted in the order in which they first use one; nullopt where
/// there is one root, or one set of streams for all.
std::optional<Plan> with_root_streams(const Plan& plan, const Model& model, const Job& job);

/// What is played: that plan, or the one given, which then must outlive this.
class RootStreams {
 public:
  RootStreams(const Plan& plan, const Model& model, const Job& job)
      : given_(plan), by_root_(with_root_streams(plan, model, job)) {}

  const Plan& plan() const { return by_root_ ? *by_root_ : given_; }
  /// How many a device has to have.
  std::size_t streams() const { return by_root_ ? kPlayedStreams : kStreamCount; }

 private:
  const Plan& given_;
  const std::optional<Plan> by_root_;
};

}  // namespace foreshard
