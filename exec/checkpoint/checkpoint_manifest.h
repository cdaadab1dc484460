// The manifest of a checkpoint: checkpoint.json, written last. A plain value and its text form; what it means is in
// docs/formats/checkpoint.md. Reading takes any bytes: the answer is a manifest whose numbers fit together, or an
// Error.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "core/model/model.h"
#include "core/result.h"
#include "exec/checkpoint/checkpoint.h"
#include "exec/checkpoint/checkpoint_files.h"
#include "exec/checkpoint/checkpoint_pieces.h"
#include "exec/checkpoint/train_state.h"

namespace foreshard::exec {

inline constexpr std::string_view kManifestName = "checkpoint.json";

/// What one file holds of one tensor: the elements of `runs`, one after another from byte `begin` of the file.
struct CheckpointPart {
  std::int32_t file = 0;
  Bytes begin = 0;
  std::vector<PieceRun> runs;
  bool operator==(const CheckpointPart&) const = default;
};

struct CheckpointTensor {
  std::string fqn, slot;  // as in TrainState
  DType dtype = DType::Float32;
  Shape shape;
  bool persistent = true;  // false: a buffer that state dicts leave out
  std::vector<CheckpointPart> parts;
  bool operator==(const CheckpointTensor&) const = default;
};

struct CheckpointFile {
  std::string name;
  WrittenFile written;
  Extent rng;  // bytes of the rank's generator state in it; none if empty
  bool operator==(const CheckpointFile&) const = default;
};

struct CheckpointManifest {
  std::string model;         // for people: a model may be called otherwise when a run goes on
  std::string architecture;  // empty: unknown; another one than the resuming model's is refused
  TrainProgress progress;
  std::int64_t optimizer_steps = 0;
  std::optional<ScalerState> scaler;  // of a run with train.grad_scaler
  int world_size = 1;
  std::vector<CheckpointFile> files;  // one a rank, by rank
  std::vector<CheckpointTensor> tensors;
  std::map<std::string, std::string> shared;     // later names of shared parameters: name -> owner
  std::map<std::string, WrittenFile> documents;  // small files beside
  bool operator==(const CheckpointManifest&) const = default;

  const CheckpointTensor* find(std::string_view fqn, std::string_view slot) const;
};

/// What the file of `rank` says of the checkpoint in its own header, so that a manifest alone cannot claim another:
/// every field of the manifest that does not say what lies where. "shapes" are those of parameters and buffers;
/// "documents" only rank 0's file knows.
std::map<std::string, std::string> manifest_marks(const CheckpointManifest& manifest, int rank);

std::string manifest_text(const CheckpointManifest& manifest);
/// `file` only names the source in errors.
Result<CheckpointManifest> parse_manifest(std::string_view text, const std::string& file);

/// The manifest of a folder, every file it names there with its size. Errors say "incomplete" where the manifest or a
/// file is missing.
Result<CheckpointManifest> read_manifest(const std::string& folder);

/// "step-0000000050"
std::string checkpoint_folder_name(std::int64_t step);
std::string rank_file_name(int rank, int world_size);

/// Folders of DIR that are named as checkpoints, newest step first; partial ones are not among them.
std::vector<std::string> checkpoint_folders(const std::string& dir);

/// The folder itself if it is a checkpoint, else the newest complete one in it.
Result<std::string> locate_checkpoint(const std::string& path);

}  // namespace foreshard::exec
