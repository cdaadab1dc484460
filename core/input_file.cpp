#include "core/input_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace foreshard {
namespace {

constexpr std::size_t kPart = 1U << 20U;  // of a file whose size is not known

Error input_error(const std::string& path, std::string message, std::string got) {
  return {.code = ErrorCode::NotFound,
          .message = std::move(message),
          .file = path,
          .place = {},
          .expected = "a regular file that can be read, or - for standard input",
          .got = std::move(got),
          .hint = "check the path"};
}

std::string kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  return S_ISSOCK(mode) ? "a socket" : "something else";
}

Error too_large(const std::string& path, Bytes limit, std::string got) {
  return {.code = ErrorCode::TooLarge,
          .message = "the file is larger than its reader's limit",
          .file = path,
          .place = {},
          .expected = fmt::format("at most {} bytes", limit),
          .got = std::move(got),
          .hint = "`foreshard help` lists the limits"};
}

}  // namespace

Result<InputFile> InputFile::open(const std::string& path) {
  if (path == "-") return InputFile("standard input", ::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0));
  InputFile file(path, ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // a pipe is opened without its writer
  struct stat facts {};
  if (file.handle_ < 0 || ::fstat(file.handle_, &facts) != 0) {
    const int number = errno;
    return fail(input_error(path, number == ENOENT ? "there is no such file" : "the file cannot be read",
                            std::strerror(number)));
  }
  if (!S_ISREG(facts.st_mode)) {
    const std::string kind = kind_of(facts.st_mode);
    return fail(input_error(path, "this is " + kind + ", not a file", kind));
  }
  file.size_ = facts.st_size;
  return file;
}

InputFile::InputFile(InputFile&& other) noexcept
    : path_(std::move(other.path_)), handle_(std::exchange(other.handle_, -1)), size_(other.size_) {}

InputFile& InputFile::operator=(InputFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(handle_, other.handle_);
  std::swap(size_, other.size_);
  return *this;
}

InputFile::~InputFile() {
  if (handle_ >= 0) ::close(handle_);
}

Result<std::size_t> InputFile::read(char* data, std::size_t size) {
  for (;;) {
    const ssize_t got = ::read(handle_, data, size);
    if (got >= 0) return static_cast<std::size_t>(got);
    if (errno == EINTR) continue;
    return fail(input_error(path_, "reading stopped", std::strerror(errno)));
  }
}

Result<std::string> read_whole_file(const std::string& path, Bytes limit) {
  auto file = InputFile::open(path);
  if (!file) return fail(file.error());
  const Bytes known = file->size().value_or(0);
  if (known > limit) return fail(too_large(path, limit, fmt::format("{} bytes", known)));
  std::string text;
  text.reserve(static_cast<std::size_t>(known) + 1);  // one more than there is tells the end
  for (;;) {
    const std::size_t before = text.size(), room = std::max(text.capacity() - before, known > 0 ? 1 : kPart);
    text.resize(before + room);
    const auto got = file->read(text.data() + before, room);
    if (!got) return fail(got.error());
    text.resize(before + *got);
    if (*got == 0) return text;
    if (static_cast<Bytes>(text.size()) > limit) return fail(too_large(path, limit, "more"));
  }
}

std::string beginning_of_file(const std::string& path, std::size_t bytes) {
  if (path == "-") return {};
  auto file = InputFile::open(path);
  std::string head(file ? bytes : 0, '\0');
  std::size_t have = 0;
  while (have < head.size()) {
    const auto got = file->read(head.data() + have, head.size() - have);
    if (!got || *got == 0) break;
    have += *got;
  }
  head.resize(have);
  return head;
}

}  // namespace foreshard
