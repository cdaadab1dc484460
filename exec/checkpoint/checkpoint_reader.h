// Reads pieces of whole tensors out of a checkpoint's files: only the blocks that hold them, each checked. One thread.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>

#include "core/result.h"
#include "exec/checkpoint/checkpoint_files.h"
#include "exec/checkpoint/checkpoint_manifest.h"
#include "exec/checkpoint/train_state.h"

namespace foreshard::exec {

class CheckpointReader {
 public:
  /// `manifest` outlives the reader.
  CheckpointReader(const CheckpointManifest& manifest, std::string folder)
      : manifest_(manifest), folder_(std::move(folder)) {}

  /// Fills the pieces of `into` (of the same shape; other floating element types are converted).
  Result<void> read(const CheckpointTensor& saved, StateTensor& into);
  /// The whole tensor, in the element type saved.
  Result<at::Tensor> read_whole(const CheckpointTensor& saved);
  Result<void> bytes(int file, Bytes offset, std::span<std::byte> into);
  /// Whether the manifest says of every file what its own header says; whoever reads a file asks it first.
  Result<void> check_headers();
  Bytes bytes_read() const;

 private:
  Result<void> check_header(int file, BlockReader& reader) const;
  Result<void> read_piece(int file, Bytes begin, const CheckpointTensor& saved, StateTensor& into, Numel local,
                          Numel numel);

  const CheckpointManifest& manifest_;
  std::string folder_;
  std::map<int, BlockReader> files_;  // opened when first asked for
};

}  // namespace foreshard::exec
