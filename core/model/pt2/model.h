// From a .pt2 archive (torch.export.save, PyTorch 2.5 to 2.11) to a Model, without LibTorch and without its weights.
//
// Modules, parameters and sharing come from the signature, the module stacks and the weights' configuration; operators
// in the order of the graph, regions of torch.no_grad and autocast spliced in place, composite operators written as
// eager PyTorch runs them on the chosen device where that is known, else whole. Symbolic sizes take model.batch (first
// dimension of the inputs) and model.seq (second), else the example's value.
#pragma once

#include <string>
#include <string_view>

#include "core/job.h"
#include "core/model/families/config_model.h"
#include "core/model/model.h"
#include "core/model/pt2/program.h"
#include "core/result.h"

namespace foreshard {

/// `path` names the archive.
Result<Model> model_from_pt2(const std::string& path, const ModelOptions& options, const ProgramOptions& program = {});

/// Same, of a program already read; `file` only names it in errors.
Result<Model> model_from_pt2_program(const Pt2Program& archive, const std::string& file, const ModelOptions& options,
                                     const ProgramOptions& program = {});

}  // namespace foreshard
