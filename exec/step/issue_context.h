// Where a plan's instructions go: a backend, with streams and communicators by the plan's letters.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "core/plan.h"
#include "exec/backend/backend.h"
#include "exec/step/plan_groups.h"

namespace foreshard::exec {

class IssueContext {
 public:
  /// Makes the plan's streams, D first; the plan outlives the context. Where the plan keeps something on the host there
  /// is a stream for that too: the issuer waits for each piece of its work, as for work of its own.
  IssueContext(Backend& backend, const Plan& plan, Communicators communicators);

  Backend& backend() const { return backend_; }
  /// Ranks that a collective meets, its own included.
  std::int32_t group_size(const Instruction& instruction) const { return std::max(plan_.group_size(instruction), 1); }
  bool has_host_stream() const { return has_host_stream_; }
  StreamIndex stream(Stream letter) const { return streams_[static_cast<std::size_t>(letter)]; }
  Issue on(Stream letter, InstructionId id, std::span<const Buffer> uses = {}) const {
    return {stream(letter), id, uses};
  }

  /// Memory of the letter's pool; that of the host is there when the call returns.
  Buffer allocate(Stream pool, InstructionId id, Bytes bytes, MemoryCategory category) const;
  void launch(const Instruction& instruction, InstructionId id, std::span<const Buffer> uses, Work work) const;
  /// In a group of one rank nothing is called, and `alone`, if any, is the work.
  void collective(const Instruction& instruction, InstructionId id, std::span<const Buffer> uses, CollectiveWork work,
                  Work alone = {}) const;
  /// The issuer waits for what was issued to the stream so far.
  Outcome<void> wait_for(Stream letter, InstructionId id) const;

  /// Where tensors over a pool's memory live.
  c10::Device device(Stream pool) const;
  /// Inside work: elements [offset, offset + numel of shape) of a buffer of the pool.
  at::Tensor tensor(const Buffer& buffer, Stream pool, Numel offset, c10::IntArrayRef shape, DType dtype) const;

 private:
  Backend& backend_;
  const Plan& plan_;
  Communicators communicators_;
  bool has_host_stream_ = false;
  std::array<StreamIndex, kStreamCount> streams_{};
};

/// The category that a plan's buffer counts in, as `simulate` counts it.
MemoryCategory category_of(BufferWhat what);

}  // namespace foreshard::exec
