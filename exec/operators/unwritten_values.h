// Values of a program that are read before anything has written them: capture writes down that a tensor was brought
// from the host or carried by a module, not what stood in it.
#pragma once

#include <optional>
#include <span>

#include "core/ids.h"
#include "exec/operators/operator_call.h"

namespace foreshard::exec {

struct UnwrittenRead {
  std::size_t op = 0;     // that reads, index into `calls`
  std::size_t maker = 0;  // that made the memory
};

/// The first operator that reads memory which was only allocated (aten.empty and its like), through views or not.
/// `calls` in the order of Model::ops.
std::optional<UnwrittenRead> first_unwritten_read(std::span<const OperatorCall> calls);

}  // namespace foreshard::exec
