#include "exec/checkpoint/checkpoint_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "core/output_file.h"

namespace foreshard::exec {
namespace {

Error file_error(ErrorCode code, const std::string& path, std::string message, std::string got, std::string hint) {
  Error error;
  error.code = code;
  error.file = path;
  error.message = std::move(message);
  error.expected = "a checkpoint's file as it was written";
  error.got = std::move(got);
  error.hint = std::move(hint);
  return error;
}

Error system_error(const std::string& path, std::string message) {
  return file_error(ErrorCode::NotFound, path, std::move(message), std::strerror(errno), "check the path");
}

}  // namespace

std::uint32_t crc32_of(std::span<const std::byte> bytes, std::uint32_t before) {
  return static_cast<std::uint32_t>(crc32_z(before, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

struct DurableFile::State {
  OutputFile file;
  WrittenFile written;

  void sum(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const Bytes in_block = written.bytes % kBlockBytes;
      if (in_block == 0) written.sums.push_back(0);
      const auto part = bytes.first(std::min(bytes.size(), static_cast<std::size_t>(kBlockBytes - in_block)));
      written.sums.back() = crc32_of(part, written.sums.back());
      written.bytes += static_cast<Bytes>(part.size());
      bytes = bytes.subspan(part.size());
    }
  }
};

DurableFile::DurableFile(std::unique_ptr<State> state) : state_(std::move(state)) {}
DurableFile::DurableFile(DurableFile&&) noexcept = default;
DurableFile& DurableFile::operator=(DurableFile&&) noexcept = default;
DurableFile::~DurableFile() = default;

Result<DurableFile> DurableFile::create(const std::string& path) {
  auto file = OutputFile::create(path);
  if (!file) return fail(file.error());
  return DurableFile(std::make_unique<State>(State{std::move(*file), {}}));
}

Result<void> DurableFile::write(std::span<const std::byte> bytes) {
  state_->sum(bytes);
  return state_->file.write({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

Result<WrittenFile> DurableFile::close() {
  if (const auto whole = state_->file.commit(); !whole) return fail(whole.error());
  return std::move(state_->written);
}

Result<WrittenFile> write_file_durably(const std::string& path, std::string_view text) {
  auto file = DurableFile::create(path);
  if (!file) return fail(file.error());
  if (const auto written = file->write(text); !written) return fail(written.error());
  return file->close();
}

Result<void> sync_folder(const std::string& path) {
  const int handle = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (handle < 0) return fail(system_error(path, "the folder cannot be opened"));
  // Some file systems cannot sync folders and say so: nothing is to be had there.
  const bool failed = ::fsync(handle) != 0 && errno != EINVAL && errno != ENOTSUP;
  Result<void> outcome;
  if (failed) outcome = fail(system_error(path, "the folder did not reach the disk"));
  ::close(handle);
  return outcome;
}

Result<void> make_folder(const std::string& path) {
  std::error_code code;
  std::filesystem::create_directories(path, code);
  if (!code && std::filesystem::is_directory(path, code)) return {};
  return fail(file_error(ErrorCode::NotFound, path, "the folder cannot be made",
                         code ? code.message() : std::string("a file of that name"), "check the path"));
}

struct BlockReader::State {
  std::string path;
  int handle = -1;
  WrittenFile expected;
  std::vector<std::byte> block;
  Bytes block_index = -1;
  Bytes bytes_read = 0;

  ~State() {
    if (handle >= 0) ::close(handle);
  }

  Result<void> load(Bytes index) {
    if (index == block_index) return {};
    block_index = -1;
    const Bytes begin = index * kBlockBytes;
    block.resize(static_cast<std::size_t>(std::min(kBlockBytes, expected.bytes - begin)));
    std::size_t done = 0;
    while (done < block.size()) {
      const ssize_t count = ::pread(handle, block.data() + done, block.size() - done, begin + static_cast<Bytes>(done));
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return fail(system_error(path, "reading stopped"));
      if (count == 0) return fail(damaged(begin, "the file became shorter"));
      done += static_cast<std::size_t>(count);
    }
    bytes_read += static_cast<Bytes>(done);
    const std::uint32_t sum = crc32_of(block);
    const std::uint32_t wanted = expected.sums[static_cast<std::size_t>(index)];
    if (sum != wanted) {
      return fail(damaged(begin, fmt::format("checksum {:08x} where the manifest has {:08x}", sum, wanted)));
    }
    block_index = index;
    return {};
  }

  Error damaged(Bytes begin, std::string got) const {
    Error error =
        file_error(ErrorCode::Inconsistent, path, "the file is damaged", std::move(got), "use an older checkpoint");
    error.place = fmt::format("byte {}", begin);
    return error;
  }
};

BlockReader::BlockReader(std::unique_ptr<State> state) : state_(std::move(state)) {}
BlockReader::BlockReader(BlockReader&&) noexcept = default;
BlockReader& BlockReader::operator=(BlockReader&&) noexcept = default;
BlockReader::~BlockReader() = default;

Result<BlockReader> BlockReader::open(const std::string& path, WrittenFile expected) {
  auto state = std::make_unique<State>();
  state->path = path;
  state->handle = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (state->handle < 0) return fail(system_error(path, "the file cannot be read"));
  struct stat facts {};
  if (::fstat(state->handle, &facts) != 0) return fail(system_error(path, "the file cannot be read"));
  if (facts.st_size != expected.bytes) {
    Error error = file_error(ErrorCode::Inconsistent, path, "the file has not the size that was written",
                             fmt::format("{} bytes", facts.st_size), "use an older checkpoint");
    error.expected = fmt::format("{} bytes", expected.bytes);
    return fail(std::move(error));
  }
  state->expected = std::move(expected);
  return BlockReader(std::move(state));
}

Result<void> BlockReader::read(Bytes offset, std::span<std::byte> into) {
  while (!into.empty()) {
    const Bytes index = offset / kBlockBytes;
    if (const auto loaded = state_->load(index); !loaded) return loaded;
    const auto begin = static_cast<std::size_t>(offset - index * kBlockBytes);
    const std::size_t count = std::min(into.size(), state_->block.size() - begin);
    std::memcpy(into.data(), state_->block.data() + begin, count);
    into = into.subspan(count);
    offset += static_cast<Bytes>(count);
  }
  return {};
}

Bytes BlockReader::bytes_read() const { return state_->bytes_read; }

}  // namespace foreshard::exec
