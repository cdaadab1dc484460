#include "exec/data/token_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

namespace foreshard::exec {
namespace {

Error file_error(ErrorCode code, const std::string& path, std::string message) {
  Error error;
  error.code = code;
  error.file = path;
  error.place = "train.data.file";
  error.message = std::move(message);
  error.expected = "a file of token ids, u16 or u32";
  return error;
}

class Descriptor {
 public:
  explicit Descriptor(const std::string& path) : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

}  // namespace

TokenWidth token_width(const std::string& path, std::int64_t vocabulary) {
  if (path.ends_with(".u16")) return TokenWidth::U16;
  if (path.ends_with(".u32")) return TokenWidth::U32;
  return vocabulary > 65536 ? TokenWidth::U32 : TokenWidth::U16;
}

Result<TokenFile> TokenFile::open(const std::string& path, TokenWidth width) {
  const Descriptor file(path);
  struct stat about {};
  if (file.get() < 0 || ::fstat(file.get(), &about) != 0) {
    return fail(file_error(ErrorCode::NotFound, path, std::strerror(errno)));
  }
  if (!S_ISREG(about.st_mode)) return fail(file_error(ErrorCode::NotFound, path, "this is no regular file"));
  const auto bytes = static_cast<std::size_t>(about.st_size);
  const auto step = static_cast<std::size_t>(width);
  if (bytes == 0 || bytes % step != 0) {
    Error error = file_error(ErrorCode::BadSyntax, path, "the file does not hold whole token ids");
    error.expected = fmt::format("a multiple of {} bytes", step);
    error.got = fmt::format("{} bytes", bytes);
    error.hint = "ids are u16 or u32 by the ending .u16 or .u32; else the model's vocabulary decides";
    return fail(std::move(error));
  }
  void* memory = ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (memory == MAP_FAILED) return fail(file_error(ErrorCode::NotFound, path, std::strerror(errno)));
  TokenFile tokens;
  tokens.path_ = path;
  tokens.width_ = width;
  tokens.count_ = static_cast<std::int64_t>(bytes / step);
  tokens.memory_ = std::shared_ptr<const unsigned char>(
      static_cast<const unsigned char*>(memory),
      [bytes](const unsigned char* start) { ::munmap(const_cast<unsigned char*>(start), bytes); });
  return tokens;
}

void TokenFile::read(std::int64_t begin, std::span<std::int64_t> ids) const {
  const auto step = static_cast<std::size_t>(width_);
  const unsigned char* from = memory_.get() + static_cast<std::size_t>(begin) * step;
  for (std::int64_t& id : ids) {
    std::uint32_t value = 0;
    for (std::size_t byte = 0; byte < step; ++byte) value |= std::uint32_t{from[byte]} << (8 * byte);
    id = value;
    from += step;
  }
}

}  // namespace foreshard::exec
