// Files of bytes: written plain or gzipped, read whole up to a limit. Errors of the file system become an Error with
// its text.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "core/result.h"
#include "core/units.h"

namespace foreshard {

/// Owner of one file that is being written. Not closed = not finished: close() tells whether everything reached the
/// disk.
class OutputFile {
 public:
  /// gzip is chosen by the name: ".gz".
  static Result<OutputFile> create(const std::string& path);

  OutputFile(OutputFile&&) noexcept;
  OutputFile& operator=(OutputFile&&) noexcept;
  ~OutputFile();

  Result<void> write(std::string_view bytes);
  Result<void> close();

 private:
  struct Impl;
  explicit OutputFile(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// What is wrong with a file, for every reader and writer of this room.
Error file_error(ErrorCode code, const std::string& path, std::string message, std::string got, std::string hint);

/// The whole file. Larger than `limit` is an Error, found before anything is read where the size is known.
Result<std::string> read_bytes(const std::string& path, Bytes limit);

}  // namespace foreshard
