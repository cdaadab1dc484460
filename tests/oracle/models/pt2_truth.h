// Compares what the reader makes of a .pt2 archive with the truth recorded beside it.
#pragma once

#include <string>

#include "tests/oracle/oracle.h"

namespace foreshard::oracle {

/// Signature, parameters, buffers, constants, every operator with its module stack, inner graphs; sharing and the
/// Model.
RowResult compare_archive(const std::string& archive);

}  // namespace foreshard::oracle
