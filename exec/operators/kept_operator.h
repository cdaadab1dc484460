// An operator inside a checkpointed region whose results are kept: the region runs again around it (selective
// checkpointing by operator).
//
// PyTorch's recomputation hands out the kept result where the operator's kernel would run, and autograd records the
// operator around it. Here the operator keeps the graph of its first run, whose saved inputs have no memory in between:
// they lie on storages that are pointed at the inputs while they are there, and at the recomputed ones afterwards.
//
//   first run   inputs --> [operator's own graph] --> results, kept
//   again       inputs --> [node] --> the kept results       node's backward: the own graph's, on recomputed inputs
//
// Of one stream, as the frame that holds it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <torch/csrc/autograd/edge.h>

#include <memory>
#include <vector>

#include "core/model/model.h"

namespace foreshard::exec {

struct OperatorCall;

/// Whether the results of such an operator can outlive its inputs: no views, nothing written in place.
bool can_keep(const OperatorCall& call);

class KeptOperator : public std::enable_shared_from_this<KeptOperator> {
 public:
  // ---------------------------------------------------------------- the first run, with gradients enabled

  /// The input as the operator is to see it. `differentiable`: its gradient is wanted.
  at::Tensor lend(ValueId id, const at::Tensor& input, bool differentiable);
  /// A parameter that the operator reads.
  void reads(const at::Tensor& param);
  /// Keeps what the operator has made; returns it without a graph. Inputs may go.
  std::vector<at::Tensor> keep(const std::vector<at::Tensor>& results);

  // ---------------------------------------------------------------- again

  void give(ValueId id, const at::Tensor& input);
  /// The kept results as parts of the inputs' graph. Once.
  std::vector<at::Tensor> bring_back();

 private:
  friend struct KeptNode;
  struct Input {
    ValueId id;
    c10::Storage storage;
    at::Tensor alias;            // until the operator has run
    torch::autograd::Edge edge;  // of the own graph; none: no gradient is wanted
    at::Tensor again;            // the recomputed one
  };
  struct Param {
    at::Tensor tensor;
    torch::autograd::Edge edge;
  };

  std::vector<Input> inputs_;
  std::vector<Param> params_;
  std::vector<at::Tensor> results_;
  std::vector<torch::autograd::Edge> roots_;  // parallel to results_
};

}  // namespace foreshard::exec
