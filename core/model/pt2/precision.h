// Mixed precision on an exported program: an archive written in one dtype, read as FSDP would run it with parameters
// cast to another.
//
// Parameters and floating inputs take the low dtype, every result follows by promotion. Casts need thought, because an
// archive holds constants: `x.float()` and `x.to(y.dtype)` are both written as a cast to the archive's dtype. A cast of
// a low tensor is a widening; a cast of a wide tensor that meets low tensors is the way back (RMSNorm's last cast,
// rotary tables). Where a matrix product, attention or norm would still be given two dtypes, which PyTorch refuses, the
// wide operand is cast: the module must have done so in a way that the archive does not show.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/model/pt2/program.h"

namespace foreshard {

/// The program with its dtypes rewritten. `buffer`: what floating buffers are cast to; nullopt = as created. Unchanged
/// where no floating parameter has another dtype than `low`. `casts`, if given, names the operators whose operands had
/// to be cast.
Pt2Program with_mixed_precision(const Pt2Program& program, DType low, std::optional<DType> buffer,
                                std::vector<std::string>* casts = nullptr);

}  // namespace foreshard
