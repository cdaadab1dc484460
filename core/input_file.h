// Files that are read: regular ones, and standard input where "-" is named. A pipe or a device of another name would
// block or never end: it is refused. Owner of one descriptor; one thread at a time.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "core/result.h"
#include "core/units.h"

namespace foreshard {

class InputFile {
 public:
  /// NotFound: nothing there, no right to read it, a folder, a pipe, a device. Does not block.
  static Result<InputFile> open(const std::string& path);

  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&& other) noexcept;
  ~InputFile();

  /// Up to `size` bytes; 0 at the end.
  Result<std::size_t> read(char* data, std::size_t size);
  /// In bytes; nullopt for standard input.
  std::optional<Bytes> size() const { return size_; }

 private:
  InputFile(std::string path, int handle) : path_(std::move(path)), handle_(handle) {}

  std::string path_;
  int handle_;
  std::optional<Bytes> size_;
};

/// The whole file in as much memory; TooLarge beyond `limit`, told before anything is read where the size is known.
Result<std::string> read_whole_file(const std::string& path, Bytes limit);

/// The first bytes, to see what a file is; empty where it cannot be read. Never of standard input.
std::string beginning_of_file(const std::string& path, std::size_t bytes);

}  // namespace foreshard
