// Runs ranges of a Model's operator program through LibTorch's dispatcher, with one autograd graph per range (segment).
//
// A segment's forward takes the values that cross into it as leaves of its own graph; its backward is given the
// gradients of what it handed on and returns those of what it took. So gradients cross boundaries by explicit edges,
// and each segment's saved tensors go with its own backward:
//
//   forward    values --> [segment 0] --> [segment 1] --> loss
//   backward   grads  <-- [graph 0]   <-- [graph 1]   <-- 1 / micro-batches
//
// The interpreter is immutable after create() and may be shared between threads; a SegmentFrame belongs to one stream.
// Parameters are whatever tensors the caller hands in: views into gathered storage, never copied here. Calls throw
// LibTorch's exceptions, with the operator's position and name in front.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "core/model/model.h"
#include "core/result.h"

namespace foreshard::exec {

/// The values and gradients that are alive between segments in one micro-batch. Both are indexed by ValueId.
struct SegmentFrame {
  std::vector<at::Tensor> values;
  std::vector<at::Tensor> grads;
};

struct BoundaryValue {
  ValueId id;
  at::Tensor tensor;
};
struct UsedParam {
  ParamId id;  // the storage's owner
  at::Tensor tensor;
};

/// One run of a segment's forward: all that its backward needs. Dropping it drops the saved tensors.
struct SegmentGraph {
  std::vector<BoundaryValue> taken;   // leaves that may receive a gradient
  std::vector<BoundaryValue> handed;  // results that later segments use, or the model's outputs, with their graph
  std::vector<UsedParam> params;      // with requires_grad
};

class OperatorInterpreter {
 public:
  using ParamTensors = std::function<at::Tensor(ParamId)>;             // by the storage's owner
  using GradSink = std::function<void(ParamId, at::Tensor gradient)>;  // a fresh tensor; several calls are to be added

  /// Looks every operator up. `model` must outlive the interpreter. Error: an operator that LibTorch does not have, or
  /// arguments that do not fit its schema.
  static Result<OperatorInterpreter> create(const Model& model);

  OperatorInterpreter(OperatorInterpreter&&) noexcept;
  OperatorInterpreter& operator=(OperatorInterpreter&&) noexcept;
  ~OperatorInterpreter();

  /// A frame with the model's inputs in it, in the order of Model::inputs.
  SegmentFrame begin(std::vector<at::Tensor> inputs) const;

  /// Runs ops [begin, end). `buffers` in the order of Model::buffers. Values that nobody uses later leave the frame.
  SegmentGraph forward(std::int32_t begin, std::int32_t end, SegmentFrame& frame, const ParamTensors& params,
                       std::span<const at::Tensor> buffers) const;

  /// Takes the gradients of what the segment handed on out of the frame, and adds those of what it took. The root of
  /// it all is put there by the caller: frame.grads[loss].
  void backward(SegmentGraph graph, SegmentFrame& frame, const GradSink& sink) const;

 private:
  struct Program;
  explicit OperatorInterpreter(std::unique_ptr<Program> program);
  std::unique_ptr<Program> program_;
};

}  // namespace foreshard::exec
