// The recordings' own model: a stack of linear layers, `mlp` of tools/fakegpu/record.py. It is no published family, so
// core does not build it.
#pragma once

#include "core/model/families/config_model.h"
#include "core/model/model.h"
#include "tests/oracle/oracle.h"

namespace foreshard::oracle {

/// `config` holds layers, dim, hidden and, optionally, bias. The batch is float32 and cast by FSDP where it computes in
/// another dtype; the loss is the sum of the outputs. Throws where a key is missing.
Model build_mlp(const Json& config, const ModelOptions& options, const ProgramOptions& program);

}  // namespace foreshard::oracle
