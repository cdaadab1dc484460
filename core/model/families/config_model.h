// From a published config.json to a Model: module tree, parameters and the operators of one training step's forward.
//
// The tree and the operators are those of the Transformers library in training mode (dropout as configured, no cache,
// no mask given), as PyTorch's eager mode runs them on the chosen device. Families: known_model_types().
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/job.h"
#include "core/model/model.h"
#include "core/result.h"

namespace foreshard {

/// Where the operators run: decides the kernel of attention, whether dropout is fused, and where the host waits.
enum class ProgramDevice : std::uint8_t { Cuda, Cpu, Meta };

struct ProgramOptions {
  std::optional<DType> compute_dtype;  // what parameters are cast to; nullopt = as created
  std::optional<DType> buffer_dtype;   // FSDP1's buffer_dtype (M9); nullopt = as created
  ProgramDevice device = ProgramDevice::Cuda;
  bool cudnn =
      true;  // false: a card without cuDNN, where convolutions, batch norms and recurrent layers are ATen's own
  // As recorded on tensors without data: dropout falls apart as off the GPU, and the host never reads a value back
  // (a real forward asks once whether the rows are packed). Only comparisons with recordings want this.
  bool recorded = false;
  // False: the forward does not ask whether rows are packed (the recordings of memory were made without the question).
  bool asks_for_packed_rows = true;
  bool masked_labels = false;       // part of the labels carries no loss: they are a tensor of their own beside the ids
  std::int64_t sequence_parts = 1;  // ModelOptions::seq is one of so many pieces of a sequence
  std::optional<DType> autocast;    // torch.autocast around the forward
  bool gathers_float8 = false;      // FSDP2 gathers the matrices of float8 layers in 8 bits ...
  std::int64_t even_shards = 1;     // ... whose rows so many ranks divide
  // A mask that is given hides nothing, which the host finds out and drops it (recordings of full batches).
  bool full_mask = false;
};

/// `path` names the config.json. The options' `source` is not looked at.
Result<Model> model_from_config(const std::string& path, const ModelOptions& options,
                                const ProgramOptions& program = {});

/// Same, of a document already parsed; `file` only names it in errors.
Result<Model> model_from_config_json(const nlohmann::json& config, const std::string& file, const ModelOptions& options,
                                     const ProgramOptions& program = {});

/// The values of "model_type" that are known, sorted.
std::vector<std::string_view> known_model_types();

}  // namespace foreshard
