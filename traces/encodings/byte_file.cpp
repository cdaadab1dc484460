#include "traces/encodings/byte_file.h"

#include <fmt/core.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

namespace foreshard {
namespace {

constexpr int kGzipLevel = 4;  // traces are large and repeat themselves: higher levels cost twice the time for 5 %
constexpr std::size_t kReadChunk = 1U << 20U;

bool ends_with(std::string_view text, std::string_view tail) {
  return text.size() >= tail.size() && text.substr(text.size() - tail.size()) == tail;
}

}  // namespace

Error file_error(ErrorCode code, const std::string& path, std::string message, std::string got, std::string hint) {
  Error error;
  error.code = code;
  error.message = std::move(message);
  error.file = path;
  error.got = std::move(got);
  error.hint = std::move(hint);
  return error;
}

struct OutputFile::Impl {
  std::string path;
  std::FILE* plain = nullptr;
  gzFile zipped = nullptr;

  ~Impl() {
    if (plain != nullptr) std::fclose(plain);
    if (zipped != nullptr) gzclose(zipped);
  }
};

OutputFile::OutputFile(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
OutputFile::OutputFile(OutputFile&&) noexcept = default;
OutputFile& OutputFile::operator=(OutputFile&&) noexcept = default;
OutputFile::~OutputFile() = default;

Result<OutputFile> OutputFile::create(const std::string& path) {
  auto impl = std::make_unique<Impl>();
  impl->path = path;
  errno = 0;
  if (ends_with(path, ".gz")) {
    impl->zipped = gzopen(path.c_str(), fmt::format("wb{}", kGzipLevel).c_str());
  } else {
    impl->plain = std::fopen(path.c_str(), "wb");
  }
  if (impl->plain == nullptr && impl->zipped == nullptr) {
    return fail(file_error(ErrorCode::NotFound, path, "the file cannot be written", std::strerror(errno),
                           "does its folder exist, and may you write there?"));
  }
  return OutputFile(std::move(impl));
}

Result<void> OutputFile::write(std::string_view bytes) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const std::size_t part = std::min(bytes.size() - done, std::size_t{1} << 30U);  // gzwrite counts in 32 bits
    const std::size_t written = impl_->plain != nullptr
                                    ? std::fwrite(bytes.data() + done, 1, part, impl_->plain)
                                    : static_cast<std::size_t>(std::max(
                                          0, gzwrite(impl_->zipped, bytes.data() + done, static_cast<unsigned>(part))));
    if (written == 0) {
      return fail(
          file_error(ErrorCode::NotFound, impl_->path, "writing stopped", std::strerror(errno), "is the disk full?"));
    }
    done += written;
  }
  return {};
}

Result<void> OutputFile::close() {
  errno = 0;
  bool ok = true;
  if (impl_->plain != nullptr) ok = std::fclose(std::exchange(impl_->plain, nullptr)) == 0;
  if (impl_->zipped != nullptr) ok = gzclose(std::exchange(impl_->zipped, nullptr)) == Z_OK;
  if (!ok) {
    return fail(file_error(ErrorCode::NotFound, impl_->path, "the file could not be finished", std::strerror(errno),
                           "is the disk full?"));
  }
  return {};
}

Result<std::string> read_bytes(const std::string& path, Bytes limit) {
  std::error_code code;
  if (std::filesystem::is_directory(path, code)) {
    return fail(
        file_error(ErrorCode::NotFound, path, "a folder stands where a file was asked for", "a folder", "name a file"));
  }
  std::FILE* file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) {
    return fail(
        file_error(ErrorCode::NotFound, path, "the file cannot be read", std::strerror(errno), "check the path"));
  }
  std::string bytes;
  std::size_t got = 0;
  do {
    const std::size_t before = bytes.size();
    bytes.resize(before + kReadChunk);
    got = std::fread(bytes.data() + before, 1, kReadChunk, file);
    bytes.resize(before + got);
  } while (got > 0 && static_cast<Bytes>(bytes.size()) <= limit);
  const bool failed = std::ferror(file) != 0;
  std::fclose(file);
  if (failed) return fail(file_error(ErrorCode::NotFound, path, "reading stopped", std::strerror(errno), ""));
  if (static_cast<Bytes>(bytes.size()) > limit) {
    Error error = file_error(ErrorCode::TooLarge, path, "the file is larger than the reader's limit",
                             fmt::format("more than {} bytes", limit), "");
    error.expected = fmt::format("at most {} bytes", limit);
    return fail(std::move(error));
  }
  return bytes;
}

}  // namespace foreshard
