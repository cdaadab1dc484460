// Gradients of DTensors that no unit manages (tensor parallelism without FSDP; what FSDP ignores). They lie as backward
// left them: terms of a sum, or all rows of a table that ranks have parts of. Each operator of a step that reads them
// brings them to the parameter's own placement for itself (DTensor's redistribution of arguments), and lets go of that.
#pragma once

#include <vector>

#include "core/plan/fsdp2/run.h"

namespace foreshard::fsdp2 {

class LooseGradients {
 public:
  explicit LooseGradients(Run& run) : run_(run), out_(run.out) {}

  /// Norms read sums; what scales does so too, into copies that nobody keeps (trap 58). Rows are read as they lie.
  void begin_clip();
  /// What an optimizer reads, up to its last operator that does: all parameters at once, or one after the other.
  void before_step();
  /// Behind the operator that read them.
  void end();
  /// Whether parameters that are DTensors stand beside plain ones: no list operator takes both.
  bool mixes_with_plain() const;

 private:
  bool is_read(const ParamSlot& slot, MeshPart::Gradient kind) const;
  void place(const ParamSlot& slot, int time);

  struct Copy {
    BufferName name;
    Bytes bytes = 0;
    std::int32_t instance = 0;
  };
  Run& run_;
  InstructionWriter& out_;
  std::vector<Copy> copies_;
};

}  // namespace foreshard::fsdp2
