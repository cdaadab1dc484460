// The reduction of plain data parallelism: gradients are copied into buckets as they become ready, each full bucket is
// all-reduced beside backward, and the means are copied back at the end, as DistributedDataParallel does.
//
// A pass over one iteration's instructions: the walk that made them knows nothing of buckets. Bytes are those of the
// gradients; the all-reduce runs on stream H.
#pragma once

#include <cstdint>
#include <vector>

#include "core/model/model.h"
#include "core/plan.h"

namespace foreshard::unsharded {

inline constexpr Bytes kFirstBucketBytes = 1 * kMiB;
inline constexpr Bytes kBucketBytes = 25 * kMiB;

/// Parameters in the order given, cut into buckets: one is full once it has reached its limit; dtypes never mix.
std::vector<std::vector<ParamId>> cut_buckets(const Model& model, const std::vector<ParamId>& params);

class BucketReducer {
 public:
  /// Before the first backward buckets follow the parameters in registration order, the last ones first.
  BucketReducer(const Model& model, const std::vector<bool>& trainable, std::int32_t world_size, Plan& plan);

  /// Adds the buckets' work to the iteration. `reduces[k]`: the k-th backward of the iteration synchronises.
  void apply(PlanIteration& iteration, const std::vector<bool>& reduces);

  std::int32_t next_event() const { return next_event_; }

 private:
  struct Kernel {
    NameId scale, copy, bucket;
  };
  void allocate(std::vector<Instruction>& out);
  void release(std::vector<Instruction>& out);
  void take(const Instruction& grad, std::vector<Instruction>& out);
  void launch_full(std::vector<Instruction>& out);
  void finish(std::vector<Instruction>& out);
  Bytes bucket_bytes(std::size_t bucket) const;
  Instruction base(InstructionKind kind, Stream stream) const;

  const Model& model_;
  std::int32_t world_size_;
  std::int32_t next_event_ = 1;
  Kernel names_;
  CommunicatorId replicas_;
  std::vector<std::vector<ParamId>> buckets_;
  std::vector<std::int32_t> bucket_of_;  // by ParamId; -1: none
  std::vector<std::size_t> missing_;     // by bucket: gradients still to come
  std::vector<EventId> reduced_;         // by bucket, in this backward
  std::vector<ParamId> ready_order_;
  std::size_t next_bucket_ = 0;  // buckets are reduced in order
  bool allocated_ = false;
  bool rebuilt_ = false;
};

}  // namespace foreshard::unsharded
