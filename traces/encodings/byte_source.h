// Bytes in a stream: a file, or what is packed in one (gzip, zstd), told apart by its first bytes.
//
// Memory stays at a few buffers however large the file is. A packed stream that breaks off gives what could be
// unpacked; `damage` then says so. Owner of its file; one thread at a time.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "core/result.h"

namespace foreshard {

class ByteSource {
 public:
  virtual ~ByteSource() = default;

  /// Up to `size` bytes to `data`; 0 at the end. Failures of the file system end the stream too and are told by
  /// damage().
  virtual std::size_t read(char* data, std::size_t size) = 0;

  /// Why the stream ended early; empty if it did not.
  virtual std::string damage() const = 0;

  /// Share of the underlying file that has been read, 0 to 1.
  virtual double fraction() const = 0;
};

/// NotFound for folders and files that cannot be read.
Result<std::unique_ptr<ByteSource>> open_file(const std::string& path);

/// Unpacks gzip (several members too) and zstd; anything else stays as it is.
std::unique_ptr<ByteSource> unpacked(std::unique_ptr<ByteSource> packed);

/// Of bytes that the caller keeps alive.
std::unique_ptr<ByteSource> memory_source(std::string_view bytes);

/// Reads ahead so that the first bytes can be looked at without losing them.
class PeekedSource : public ByteSource {
 public:
  PeekedSource(std::unique_ptr<ByteSource> source, std::size_t size);
  std::string_view head() const { return head_; }
  std::size_t read(char* data, std::size_t size) override;
  std::string damage() const override { return source_->damage(); }
  double fraction() const override { return source_->fraction(); }

 private:
  std::unique_ptr<ByteSource> source_;
  std::string head_;
  std::size_t at_ = 0;
};

/// All of it, up to `limit` bytes; more is an Error (TooLarge) that names `file`.
Result<std::string> read_all(ByteSource& source, std::size_t limit, const std::string& file);

}  // namespace foreshard
