// What playing a plan asks of it again and again and no simulation changes: which instructions do anything, where in
// the loop they stand, which number a buffer has. Made once for all simulations of a plan. Sizes in bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/model/model.h"
#include "core/plan.h"
#include "sim/play/loop_phase.h"

namespace foreshard {

/// One number for all names of a plan's buffer.
class BufferNumbers {
 public:
  BufferNumbers(const Plan& plan, const Model& model);

  std::size_t of(const BufferName& buffer) const {
    const std::size_t of = buffer.param.valid()  ? of_param(buffer.param)
                           : buffer.unit.valid() ? buffer.unit.index()
                                                 : width_;
    return static_cast<std::size_t>(buffer.what) * width_ + (of < width_ ? of : width_ - 1);
  }
  /// Those of a kind follow each other.
  std::size_t width() const { return width_; }
  std::size_t count() const;

 private:
  std::size_t of_param(ParamId param) const {
    return param.index() < of_param_.size() ? of_param_[param.index()] : units_ + param.index();
  }

  std::size_t units_;
  std::size_t width_;  // names of one kind
  // By parameter of the model, behind the units. A parameter has one buffer of a kind, whichever unit the instruction
  // names with it, and by whichever of its names: a unit may know a shared one by another than the operators.
  std::vector<std::size_t> of_param_;
};

/// An instruction that allocates or frees a buffer of the compute stream.
struct BufferStep {
  std::size_t index = 0;   // BufferNumbers
  Bytes bytes = 0;         // 0: it frees one
  std::int32_t group = 1;  // so many follow each other from this one on, of one unit in one phase
  bool frees = false;
};

/// An instruction that is played: all but marks with which nothing of the loop begins.
struct PlayedStep {
  std::int32_t position = 0;  // in the iteration
  std::int32_t buffer = -1;   // in PlayList::buffers
  LoopPhase phase = LoopPhase::None;
  bool stays = false;  // where the loop stands does not change with it
};

/// Of one iteration.
struct PlayList {
  std::vector<PlayedStep> steps;
  std::vector<BufferStep> buffers;
  bool owns_inputs = false;  // the batch is a buffer of the plan's
};

struct PreparedPlan {
  /// `model`: the plan's, or one of the same parameters.
  PreparedPlan(const Plan& plan, const Model& model);

  BufferNumbers numbers;
  std::vector<std::shared_ptr<const PlayList>> lists;  // by iteration
  bool owns_inputs = false;                            // one of them does
};

}  // namespace foreshard
