// Checkpoints: a folder per training step with one safetensors file a rank and a manifest, docs/formats/checkpoint.md.
//
//   DIR/step-0000000050.partial/   rank files are written and synced, then the manifest, then the folder is renamed
//   DIR/step-0000000050/           rank-00000-of-00002.safetensors ... checkpoint.json
//
// A folder without a whole manifest is no checkpoint, whatever ended the writer. A checkpoint knows nothing of runtime
// or strategy: it holds pieces of whole tensors, so that any number of ranks with any layout reads just its own bytes.
// All ranks call save and resume together, with a communicator of the whole world that nothing else uses meanwhile; a
// rank that fails makes all of them return its error. Blocking; called from the thread that issues, between steps.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/model/model.h"
#include "core/result.h"
#include "exec/checkpoint/train_state.h"
#include "exec/communicators/communicator.h"

namespace foreshard::exec {

/// Where a run is, beside its tensors.
struct TrainProgress {
  std::int64_t step = 0;     // training steps done
  std::int64_t samples = 0;  // data position: sequences that all ranks together have consumed
  std::int64_t seed = 0;     // of the run: data order and dropout follow from it
  std::string data;          // what identifies the data, compared by whoever resumes; free text
  bool operator==(const TrainProgress&) const = default;
};

struct CheckpointContents {
  const Model& model;             // names, shared names, persistence of buffers; outlives the call
  TrainProgress progress;         // the same on every rank
  std::vector<std::uint8_t> rng;  // this rank's generator state; empty: none
  std::map<std::string, std::string> documents =
      {};  // small files kept in the folder: "config.json", "job.toml" (rank 0's)
};

/// Writes `state` as DIR/step-N and returns that folder. `world` null: one rank. An existing checkpoint of the same
/// step is replaced in one rename. keep > 0: afterwards the oldest complete ones beyond `keep` go, and whatever partial
/// folders older writers left. Errors: elements that no rank holds, the disk (full, not writable), a peer.
Result<std::string> save_checkpoint(const std::string& dir, const TrainState& state, const CheckpointContents& contents,
                                    Communicator* world, std::int64_t keep = 0);

struct LoadedCheckpoint {
  std::string folder;
  TrainProgress progress;
  std::vector<std::uint8_t> rng;  // of this rank; empty if saved without, or by another number of ranks
  int saved_world_size = 1;
  std::vector<std::string> notes;  // checkpoints skipped and why, slots that were missing, element types converted
};

/// Fills state.tensors[*].local and state.optimizer_steps from one folder; every rank for itself. Optimizer slots that
/// the checkpoint lacks become zero (K6); a parameter that it lacks, has in another shape or beyond this model's is an
/// error: it is another model's. Errors also: no manifest, damaged manifest, missing, truncated or changed files.
/// After an error, `state` is partly overwritten unless the error came from open (manifest, files, names, shapes).
Result<LoadedCheckpoint> load_checkpoint(const std::string& folder, const Model& model, TrainState& state, int rank,
                                         int world_size);

/// The newest checkpoint in DIR that all ranks can read in full; incomplete and damaged ones are skipped with a note.
/// NotFound if none is left (the notes are in the message); another model's checkpoint is an error, not skipped.
/// `world` null: one rank.
Result<LoadedCheckpoint> resume_checkpoint(const std::string& dir, const Model& model, TrainState& state,
                                           Communicator* world);

/// True if DIR holds a checkpoint, whole or damaged; what a save has not finished is none.
bool has_checkpoints(const std::string& dir);

/// Folders of DIR that a save has begun and not finished: without a manifest. The next save that is finished removes
/// them.
std::vector<std::string> partial_checkpoints(const std::string& dir);

/// Makes DIR and tries whether a file can be written in it.
Result<void> try_checkpoint_folder(const std::string& dir);

}  // namespace foreshard::exec
