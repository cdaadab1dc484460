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

/// core/input_file.h: a regular file, or standard input for "-"; NotFound for anything else.
Result<std::unique_ptr<ByteSource>> open_file(const std::string& path);

/// Unpacks gzip (several members too) and zstd; anything else stays as it is. What unpacks to more than 256 MiB and
/// 200 times its packed bytes is no recording but a trap: the stream ends there, and damage() says so.
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

/// Bytes that grow in place: never twice in memory, as a string is while it grows.
class ByteBuffer {
 public:
  ByteBuffer() = default;
  ByteBuffer(const ByteBuffer&) = delete;
  ByteBuffer& operator=(const ByteBuffer&) = delete;
  ByteBuffer(ByteBuffer&& other) noexcept;
  ByteBuffer& operator=(ByteBuffer&& other) noexcept;
  ~ByteBuffer();

  /// Room for `size` bytes behind those that are there; nullptr if there is no memory.
  char* extend(std::size_t size);
  void keep(std::size_t size) { size_ += size; }  // of the room
  std::string_view view() const { return {data_, size_}; }

 private:
  char* data_ = nullptr;
  std::size_t size_ = 0, room_ = 0;
};

/// All of it, up to `limit` bytes; more, no memory for it, or a trap (see unpacked) is an Error that names `file`.
Result<ByteBuffer> read_all(ByteSource& source, std::size_t limit, const std::string& file);

}  // namespace foreshard
