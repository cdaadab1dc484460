// NVTX ranges for profilers: "forward layers.0", "post_backward layers.1", ... around what the issuer does for a unit
// in a phase. Without a tool attached a call is a look at a null pointer.
//
// Issuer's thread alone, where ranges are kept in a stack; one range is open at a time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/ids.h"
#include "core/plan.h"

namespace foreshard::exec {

/// By instruction, of all iterations of a plan one after another: the range that it belongs to.
struct UnitRangeNames {
  std::vector<std::string> names;
  std::vector<std::int32_t> of_instruction;  // -1: none
};
UnitRangeNames unit_range_names(const Plan& plan);

class UnitRanges {
 public:
  explicit UnitRanges(const Plan& plan) : names_(unit_range_names(plan)) {}
  ~UnitRanges();
  UnitRanges(const UnitRanges&) = delete;
  UnitRanges& operator=(const UnitRanges&) = delete;

  /// The issuer turns to an instruction; an invalid or unknown one closes the range.
  void at_instruction(InstructionId instruction);

 private:
  UnitRangeNames names_;
  std::int32_t open_ = -1;
};

}  // namespace foreshard::exec
