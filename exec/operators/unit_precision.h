// What units with a precision of their own do to the values that cross their borders (M8, F2-27): floating inputs are
// cast to the unit's type, outputs to another, and inside the unit the program runs in its type.
//
// The program is written in one type, that of fsdp.mixed_precision. Inside a unit of another type whose inputs are
// cast, operators that name the program's type (a norm that goes back to the type of its input) name the unit's
// instead. That can be done where the program's type is the low one: a program in float32 has left such casts out.
#pragma once

#include <optional>
#include <vector>

#include "core/dtype.h"
#include "core/job.h"
#include "core/model/model.h"
#include "core/plan/units/units.h"
#include "core/result.h"

namespace foreshard::exec {

/// One call of a unit's module: its operators [begin, end).
struct CallPrecision {
  std::int32_t begin = 0;
  std::int32_t end = 0;
  std::optional<DType> inputs;   // floating values that come from outside are cast to it
  std::optional<DType> outputs;  // floating values that are used outside are cast to it
};

struct ProgramPrecision {
  std::optional<DType> written;      // the type that the program is written in
  std::vector<CallPrecision> calls;  // outer before inner; empty where every unit is of the program's type
};

/// Calls of the same module that follow one another are taken for one. Errors: a unit of a lower type inside a program
/// of a higher one.
Result<ProgramPrecision> program_precision(const Model& model, const Job& job, const UnitTable& table);

/// What the root casts the model's floating inputs to; nullopt: it leaves them alone.
std::optional<DType> model_input_dtype(const Job& job, const UnitTable& table);

}  // namespace foreshard::exec
