// Files that are written whole or not at all. Everything that a program of ours leaves behind goes through here.
//
// The bytes go into a file without a name in the folder of the target (O_TMPFILE), reach the disk, and take the
// target's name in one rename: an error or a kill leaves what stood there before, and nothing half-written. Where the
// file system has no unnamed files, ".NAME.partial" stands in for one; what a killed writer left of it goes with the
// next write. Symbolic links are followed, permissions kept. What is no regular file (a pipe, /dev/stdout) is written
// to directly. Owner of one descriptor; one thread at a time. SIGXFSZ must be ignored (`write_errors_as_errors`) for a
// file size limit to be an Error.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "core/result.h"

namespace foreshard {

class OutputFile {
 public:
  /// Errors: no such folder, no right to write there, a folder of that name.
  static Result<OutputFile> create(const std::string& path);

  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&& other) noexcept;
  /// Without commit() nothing of it is left.
  ~OutputFile();

  /// Errors: a full disk (said so), a file size limit, a reader that is gone.
  Result<void> write(std::string_view bytes);
  /// The bytes are on the disk, under the target's name.
  Result<void> commit();

  const std::string& path() const { return path_; }

 private:
  OutputFile() = default;
  Result<void> open_beside();
  Result<void> open_named();
  Result<void> give_name();
  void forget() noexcept;

  std::string path_;    // as the user named it
  std::string target_;  // links followed
  std::string beside_;  // the temporary name, empty while there is none
  int handle_ = -1;
  bool direct_ = false;  // no regular file: nothing to replace
};

/// create, write, commit.
Result<void> write_whole_file(const std::string& path, std::string_view text);

/// Whether these could be created now; leaves nothing. For outputs that are only written after long work. Empty names
/// are outputs that nobody wants.
Result<void> try_outputs(std::initializer_list<std::string> paths);

/// Whether files could be created now in this folder, or the folder itself where there is none yet; leaves nothing.
/// An empty name is a folder that nobody wants.
Result<void> try_output_folder(const std::string& folder);

/// Of a system call that failed with errno `number` while `path` was written.
Error output_error(const std::string& path, int number);

/// For main(): a closed pipe and a file size limit become errors of write() instead of signals that end the process;
/// descriptors 0 to 2 are open, so that no file of ours is taken for standard output.
void write_errors_as_errors();

}  // namespace foreshard
