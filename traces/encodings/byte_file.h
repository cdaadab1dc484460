// Files of bytes that are written, plain or gzipped. Errors of the file system become an Error with its text.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "core/result.h"
#include "core/units.h"

namespace foreshard {

/// zlib's spelling of "gzip header, largest window".
inline constexpr int kGzipWindow = 15 + 16;

/// A file of core/output_file.h whose bytes are gzipped on the way where its name ends in ".gz". Without close()
/// nothing of it is left.
class PackedOutput {
 public:
  static Result<PackedOutput> create(const std::string& path);

  PackedOutput(PackedOutput&&) noexcept;
  PackedOutput& operator=(PackedOutput&&) noexcept;
  ~PackedOutput();

  Result<void> write(std::string_view bytes);
  /// Everything is on the disk, under its name.
  Result<void> close();

 private:
  struct Impl;
  explicit PackedOutput(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// What is wrong with a file, for every reader and writer of this room.
Error file_error(ErrorCode code, const std::string& path, std::string message, std::string got, std::string hint);

}  // namespace foreshard
