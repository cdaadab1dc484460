// Files that survive: written once from front to back, checked by a CRC-32 per block, on the disk when close() says so;
// and read back block by block, so that no damaged byte is taken for a number. Errors are the system's words.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.h"
#include "core/units.h"

namespace foreshard::exec {

inline constexpr Bytes kBlockBytes = kMiB;

/// The checksum of zlib and gzip.
std::uint32_t crc32_of(std::span<const std::byte> bytes, std::uint32_t before = 0);

struct WrittenFile {
  Bytes bytes = 0;
  std::vector<std::uint32_t> sums;  // one per kBlockBytes, the last block may be shorter
  bool operator==(const WrittenFile&) const = default;
};

/// A file of core/output_file.h with its sums: without close() nothing of it is left.
class DurableFile {
 public:
  static Result<DurableFile> create(const std::string& path);
  DurableFile(DurableFile&&) noexcept;
  DurableFile& operator=(DurableFile&&) noexcept;
  ~DurableFile();

  Result<void> write(std::span<const std::byte> bytes);
  Result<void> write(std::string_view text) { return write(std::as_bytes(std::span(text))); }
  /// It is on the disk, under its name.
  Result<WrittenFile> close();

 private:
  struct State;
  explicit DurableFile(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// create, write, close.
Result<WrittenFile> write_file_durably(const std::string& path, std::string_view text);

/// fsync of a folder: its entries (names) are on the disk.
Result<void> sync_folder(const std::string& path);
Result<void> make_folder(const std::string& path);  // with those above it

/// Reads any ranges of a file whose block sums are known. One block is kept: reads in rising order read each byte once.
class BlockReader {
 public:
  /// Errors: not there, another size than `expected.bytes`.
  static Result<BlockReader> open(const std::string& path, WrittenFile expected);
  BlockReader(BlockReader&&) noexcept;
  BlockReader& operator=(BlockReader&&) noexcept;
  ~BlockReader();

  /// REQUIRES offset and size within the file. Errors: a block whose sum is wrong.
  Result<void> read(Bytes offset, std::span<std::byte> into);
  Bytes bytes_read() const;  // from the file, so far

 private:
  struct State;
  explicit BlockReader(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace foreshard::exec
