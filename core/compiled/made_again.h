// What a compiled backward makes again instead of finding it saved, as Inductor's partitioner cuts
// (torch/_functorch/partitioners.py of PyTorch 2.11): results of pointwise kernels, where all they are made of is
// there, unless a product or an attention of backward reads them. Such a reader wants them in memory, so that making
// them again spares no traffic (config.ban_recompute_materialized_backward). Products, random numbers, what nobody can
// look into, and reductions to less than a quarter are never run twice.
//
// Where a result cannot be made again because something is gone, that is saved in its place if it is smaller (what a
// norm is given in 16 bits for its cast to 32, logits for a softmax).
//
// An approximation: each result is decided by itself, and among equals the one is saved that eager autograd saves;
// products of another segment are not seen; indexing counts as a product.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "core/lowering/lowering.h"

namespace foreshard {

/// Whether Inductor would make it a part of a kernel of its own: pointwise, reductions, copies.
bool is_fusible(const Kernel& kernel);

/// Of one program; borrows the model.
class MadeAgain {
 public:
  /// `trainable`: by parameter, as it was lowered.
  MadeAgain(const Model& model, const std::vector<bool>& trainable);

  /// Slots of a template.
  struct Cut {
    std::vector<std::int32_t> again;                             // made again, rising
    std::vector<std::pair<std::int32_t, std::int32_t>> instead;  // what is saved, and for which of `again`
  };
  /// Of the template of these operators. What backward finds was made by the forward, or by the recomputation of a
  /// checkpointed one.
  Cut cut(const SegmentRange& range, const SegmentTemplate& segment) const;

 private:
  struct Memory;
  struct Walk;
  struct Made;
  void read(Walk& walk, std::size_t at, std::size_t op, const Made& made) const;
  void note_imports(Walk& walk, const KernelList& list, std::size_t begin, std::size_t count) const;
  Cut decide(Walk& walk, const std::vector<Slot>& slots) const;
  bool is_there(const Walk& walk, std::size_t number) const;
  bool save_instead(Walk& walk, const Memory& memory, const std::vector<Slot>& slots, Cut& cut) const;
  Bytes price(Walk& walk, std::size_t number, int far, std::vector<Memory*>& saved) const;

  const Model& model_;
  std::vector<std::size_t> memory_;              // by value: a number that views and writes in place have in common
  std::vector<std::vector<std::size_t>> reads_;  // by operator: memories of its arguments, in their order
  std::vector<std::vector<std::size_t>> kept_;   // by operator: of these, those that autograd keeps
  std::vector<bool> once_;                       // by operator: never run twice, whatever its kernels are
  std::vector<bool> given_;                      // by memory: the model's own inputs
  std::vector<Bytes> bytes_;                     // by memory: of the largest value in it
};

}  // namespace foreshard
