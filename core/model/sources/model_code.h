// Models that only their own Python code can describe: a config.json of no family that is built here, a function of the
// user's, a timm model. The core starts no programs: who runs that code is set from above (cli/session/code_runner.h).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "core/dtype.h"
#include "core/result.h"

namespace foreshard {

/// What a model's own code is run with: one micro-batch, and the casts of FSDP's mixed precision.
struct ModelCode {
  std::string source;  // a config.json, FILE.py:FUNCTION or timm:NAME
  std::int64_t batch = 1;
  std::int64_t seq = 0;                              // 0 = the model's longest, at most 2,048
  std::int64_t target_seq = 0;                       // of an encoder and decoder; 0 = seq
  std::optional<DType> dtype;                        // of the parameters as created; nullopt = the configuration's
  std::optional<DType> compute_dtype, buffer_dtype;  // nullopt = no cast
  bool eager_attention = false;                      // else scaled_dot_product_attention where the model has it
  bool operator==(const ModelCode&) const = default;
};

/// Returns the text of the model.json (docs/formats/model.md) that the code was captured into. Called by several
/// threads.
using CodeRunner = std::function<Result<std::string>(const ModelCode&)>;

/// To be set before models are read; without one such sources are refused with what to do by hand.
void set_code_runner(CodeRunner runner);
const CodeRunner& code_runner();

}  // namespace foreshard
