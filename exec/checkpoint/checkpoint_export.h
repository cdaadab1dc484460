// Whole tensors out of checkpoints and into them: safetensors files with the model's own names, as Transformers reads
// and writes them, and what `foreshard checkpoint export|import|show` prints. One process, no communicator, no pickle;
// at most one tensor is in memory.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/model/model.h"
#include "core/result.h"
#include "core/units.h"
#include "exec/checkpoint/train_state.h"

namespace foreshard::exec {

struct ExportOptions {
  Bytes max_shard_size = 5'000'000'000;  // Transformers' 5GB; above it: model-00001-of-0000N.safetensors and an index
  std::optional<DType> dtype;            // floating parameters are converted; nullopt: as they are
  bool optimizer = false;                // exp_avg, ... too, as optimizer.safetensors: "NAME.exp_avg"
};

struct ExportedFiles {
  std::vector<std::string> files;  // in the order of their tensors
  std::int64_t tensors = 0;
  Bytes bytes = 0;  // of tensors
};

/// A checkpoint folder, or a folder of checkpoints (then its newest complete one). `out` is a folder; config.json is
/// written beside the weights where the checkpoint has one. Non-persistent buffers and later names of shared parameters
/// are left out, as save_pretrained does. A run that trained adapters gives PEFT's two files, adapter_model.safetensors
/// and adapter_config.json, whatever max_shard_size says.
Result<ExportedFiles> export_checkpoint(const std::string& checkpoint, const std::string& out,
                                        const ExportOptions& options = {});

/// Fills the parameters and persistent buffers of `state` from a safetensors file, a folder with one or with
/// model.safetensors.index.json, each rank its own pieces. Shared parameters may stand under any of their names;
/// a base model's prefix ("model.", "transformer.") may be absent or extra. Optimizer slots are left alone. Returns
/// notes (converted element types, names not used). Errors: missing weights (all names listed), other shapes.
Result<std::vector<std::string>> import_weights(const std::string& source, const Model& model, TrainState& state);

/// Weights become a checkpoint at step 0, for a run to start from (the optimizer's state starts at zero). Buffers that
/// the weights lack are left out. Returns the folder.
Result<std::string> import_checkpoint(const std::string& source, const Model& model, const std::string& dir);

/// For people: progress, ranks, files with sizes, tensors with shapes and where their pieces lie. `verify` reads and
/// checks every byte. `json`: the manifest without its sums.
Result<std::string> describe_checkpoint(const std::string& checkpoint, bool verify, bool json);

}  // namespace foreshard::exec
