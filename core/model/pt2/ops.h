// The operators of a .pt2 program, as eager PyTorch runs them.
#pragma once

#include <string>

#include "core/model/families/config_model.h"
#include "core/model/model.h"
#include "core/model/pt2/program.h"
#include "core/model/pt2/tree.h"
#include "core/result.h"

namespace foreshard {

/// Appends inputs, values, operators and outputs to a model whose tree is built. `symbols` binds the symbolic sizes.
/// `written`: the program as it was before mixed precision, whose floating inputs the batch has; FSDP's root casts
/// them.
Result<void> write_pt2_ops(const Pt2Program& program, const Pt2Program& written, const std::string& file,
                           const Pt2Tree& tree, const SymbolValues& symbols, const ProgramOptions& options,
                           Model& model);

}  // namespace foreshard
