// Runs ranges of a Model's operator program through LibTorch's dispatcher, with one autograd graph per range (segment).
//
// A segment's forward takes the values that cross into it as leaves of its own graph; its backward is given the
// gradients of what it handed on and returns those of what it took. So gradients cross boundaries by explicit edges,
// and each segment's saved tensors go with its own backward:
//
//   forward    values --> [segment 0] --> [segment 1] --> loss
//   backward   grads  <-- [graph 0]   <-- [graph 1]   <-- 1 / micro-batches
//
// A checkpointed segment runs without a graph first and keeps what it was given; recompute() runs it again, with one.
// Random operators draw from generators of their own, seeded by the frame's seed and their place in the program: the
// second run draws what the first one drew, and no generator's state has to be kept.
//
// The interpreter is immutable after create() and keep() and may be shared between threads; a SegmentFrame belongs to
// one stream. Parameters are whatever tensors the caller hands in: views into gathered storage, never copied here. A
// graph holds the tensors that autograd saved, nothing else. Calls throw LibTorch's exceptions, with the operator's
// position and name in front.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "core/model/model.h"
#include "core/result.h"
#include "exec/operators/mesh_operators.h"
#include "exec/operators/unit_precision.h"

namespace foreshard::exec {

/// Positions [begin, end) in Model::ops.
struct OpRange {
  std::int32_t begin = 0;
  std::int32_t end = 0;
};

struct BoundaryValue {
  ValueId id;
  at::Tensor tensor;
};

class KeptOperator;  // exec/operators/kept_operator.h

/// The values and gradients that are alive between segments in one micro-batch. Both are indexed by ValueId.
struct SegmentFrame {
  std::vector<at::Tensor> values;
  std::vector<at::Tensor> grads;
  std::uint64_t seed = 0;  // of the random operators; see exec/operators/random_numbers.h
  bool training = true;    // false: operators run as in eval mode
  std::map<std::int32_t, std::vector<BoundaryValue>> kept;  // by a checkpointed segment's first operator: its inputs
  std::vector<at::Tensor> local;                            // of the segment that runs; empty between segments
  std::map<std::int32_t, std::shared_ptr<KeptOperator>> kept_operators;  // by operator, between a region's two runs
  MeshGroups mesh;  // whom operators of a model cut over a mesh meet
};

class SegmentRun;  // operator_interpreter.cpp

/// One run of a segment's forward: all that its backward needs. Dropping it drops the saved tensors.
class SegmentGraph {
 public:
  bool valid() const { return edges_ != nullptr; }

 private:
  friend class OperatorInterpreter;
  friend class SegmentRun;
  struct Edges;
  std::shared_ptr<Edges> edges_;
};

class OperatorInterpreter {
 public:
  using ParamTensors = std::function<at::Tensor(ParamId)>;             // by the storage's owner
  using GradSink = std::function<void(ParamId, at::Tensor gradient)>;  // a fresh tensor; several calls are to be added

  /// Looks every operator up. `model` must outlive the interpreter. What the program makes from nothing is made on
  /// `device`. Error: an operator that LibTorch does not have, or arguments that do not fit its schema.
  static Result<OperatorInterpreter> create(const Model& model, c10::Device device = c10::kCPU,
                                            const ProgramPrecision& precision = {});

  OperatorInterpreter(OperatorInterpreter&&) noexcept;
  OperatorInterpreter& operator=(OperatorInterpreter&&) noexcept;
  ~OperatorInterpreter();

  /// By place in Model::ops: whose results a checkpointed region keeps when it runs again (selective checkpointing);
  /// views and what writes in place run again all the same. Before the first run.
  void keep(const std::vector<bool>& operators);

  /// Whether any operator draws random numbers while it trains.
  bool draws() const;

  /// A frame with the model's inputs in it, in the order of Model::inputs.
  SegmentFrame begin(std::vector<at::Tensor> inputs, std::uint64_t seed = 0) const;

  /// Runs ops [begin, end). `buffers` in the order of Model::buffers. Values that nobody uses later leave the frame.
  SegmentGraph forward(std::int32_t begin, std::int32_t end, SegmentFrame& frame, const ParamTensors& params,
                       std::span<const at::Tensor> buffers) const;

  /// The first run of a checkpointed segment: no graph, its inputs stay. `region`: the whole checkpointed call, where
  /// it has several segments (their common values are made again, not kept); empty = the segment alone.
  void forward_checkpointed(std::int32_t begin, std::int32_t end, SegmentFrame& frame, const ParamTensors& params,
                            std::span<const at::Tensor> buffers, OpRange region = {}) const;

  /// The second run, in the order of the first one within a region. Takes what was kept.
  SegmentGraph recompute(std::int32_t begin, std::int32_t end, SegmentFrame& frame, const ParamTensors& params,
                         std::span<const at::Tensor> buffers, OpRange region = {}) const;

  /// Takes the gradients of what the segment handed on out of the frame, and adds those of what it took. The root of
  /// it all is put there by the caller: frame.grads[loss].
  void backward(SegmentGraph graph, SegmentFrame& frame, const GradSink& sink) const;

 private:
  friend class SegmentRun;
  struct Program;
  explicit OperatorInterpreter(std::unique_ptr<Program> program);
  std::unique_ptr<Program> program_;
};

}  // namespace foreshard::exec
