// Writes safetensors files: a header with every tensor's place, then their bytes in that order. Streaming: a tensor is
// needed only while it is written. Durable (exec/checkpoint/checkpoint_files.h). One thread.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "core/model/model.h"
#include "core/result.h"
#include "exec/checkpoint/checkpoint_files.h"

namespace foreshard::exec {

/// "F32", "BF16", ...: the format's words for element types.
std::string_view safetensors_dtype(DType dtype);

struct SafetensorsEntry {
  std::string name;
  DType dtype = DType::Float32;
  Shape shape;
  Bytes bytes() const { return numel_of(shape) * itemsize(dtype); }
};

/// The length and the header, padded to a multiple of 8 bytes; data follow in the order of `entries`.
std::string safetensors_header(std::span<const SafetensorsEntry> entries,
                               const std::map<std::string, std::string>& metadata);

class SafetensorsWriter {
 public:
  /// Names are distinct. `metadata` {{"format", "pt"}} is what Transformers asks for.
  static Result<SafetensorsWriter> create(const std::string& path, std::vector<SafetensorsEntry> entries,
                                          const std::map<std::string, std::string>& metadata);

  Bytes begin_of(std::size_t entry) const { return begins_[entry]; }  // in the file

  /// The next bytes of the data; in all exactly those of the entries.
  Result<void> write(std::span<const std::byte> bytes);
  /// REQUIRES that every byte was written.
  Result<WrittenFile> close();

 private:
  SafetensorsWriter(DurableFile file, std::vector<Bytes> begins, Bytes left)
      : file_(std::move(file)), begins_(std::move(begins)), left_(left) {}

  DurableFile file_;
  std::vector<Bytes> begins_;
  Bytes left_;
};

}  // namespace foreshard::exec
