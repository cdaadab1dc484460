#include "core/output_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace foreshard {
namespace {

constexpr int kMostLinks = 40;  // as the kernel's own limit

/// Written to where they lead, also if that is a regular file: somebody holds it open.
bool is_descriptor_path(std::string_view path) {
  return path.starts_with("/dev/fd/") || path.starts_with("/dev/std") || path.starts_with("/proc/");
}

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::string name_of(const std::string& path) { return path.substr(path.rfind('/') + 1); }

/// The file that a path names, also if it is not there yet.
Result<std::string> without_links(const std::string& path) {
  std::string at = path;
  for (int links = 0; links < kMostLinks; ++links) {
    char target[PATH_MAX];
    const ssize_t size = ::readlink(at.c_str(), target, sizeof target);
    if (size < 0) return at;
    const std::string next(target, static_cast<std::size_t>(size));
    at = next.starts_with('/') ? next : folder_of(at) + "/" + next;
  }
  return fail(output_error(path, ELOOP));
}

Result<void> wrong(const std::string& path) { return fail(output_error(path, errno)); }

/// The open file is the one of that name, and locked: its writer is alive, or is us.
bool lock_named(int handle, const std::string& name) {
  struct stat ours {
  }, theirs{};
  return ::flock(handle, LOCK_EX | LOCK_NB) == 0 && ::fstat(handle, &ours) == 0 && ::stat(name.c_str(), &theirs) == 0 &&
         ours.st_ino == theirs.st_ino && ours.st_dev == theirs.st_dev;
}

/// What a killed writer left. Whoever writes holds the lock; we hold it until the name is gone.
void remove_abandoned(const std::string& name) {
  const int handle = ::open(name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (handle < 0) return;
  if (lock_named(handle, name)) ::unlink(name.c_str());
  ::close(handle);
}

/// The temporary names, the second for when another process writes the same file.
std::array<std::string, 2> names_beside(const std::string& target) {
  const std::string start = folder_of(target) + "/." + name_of(target);
  return {start + ".partial", fmt::format("{}.{}.{}.partial", start, ::getpid(), ::gettid())};
}

void sync_folder_of(const std::string& path) {
  const int handle = ::open(folder_of(path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (handle < 0) return;
  ::fsync(handle);  // some file systems cannot, and then there is nothing to be had
  ::close(handle);
}

}  // namespace

Error output_error(const std::string& path, int number) {
  Error error;
  error.code = ErrorCode::NotFound;
  error.file = path;
  error.got = std::strerror(number);
  switch (number) {
    case ENOSPC:
    case EDQUOT:
      error.message = number == ENOSPC ? "the disk is full" : "the disk quota is used up";
      error.expected = "room for the whole file";
      error.hint = "make room, or name a file on another disk; what stood there before is untouched";
      break;
    case EFBIG:
      error.message = "the file is larger than files may be here";
      error.expected = "a file below the limit of the shell or the file system";
      error.hint = "`ulimit -f unlimited` lifts the shell's; what stood there before is untouched";
      break;
    case EPIPE:
      error.message = "nobody reads it any more";
      error.expected = "a reader until the end";
      break;
    default:
      error.message = "the file cannot be written";
      error.expected = "a file that can be made or replaced, in a folder that is there";
      error.hint = "does its folder exist, and may you write there?";
  }
  return error;
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)),
      target_(std::move(other.target_)),
      beside_(std::exchange(other.beside_, {})),
      handle_(std::exchange(other.handle_, -1)),
      direct_(other.direct_) {}

OutputFile& OutputFile::operator=(OutputFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(target_, other.target_);
  std::swap(beside_, other.beside_);
  std::swap(handle_, other.handle_);
  std::swap(direct_, other.direct_);
  return *this;
}

OutputFile::~OutputFile() { forget(); }

void OutputFile::forget() noexcept {
  if (handle_ >= 0) ::close(std::exchange(handle_, -1));
  if (!beside_.empty()) ::unlink(beside_.c_str());
  beside_.clear();
}

Result<OutputFile> OutputFile::create(const std::string& path) {
  OutputFile file;
  file.path_ = path;
  auto target = without_links(path);
  if (!target) return fail(target.error());
  file.target_ = std::move(*target);
  struct stat facts {};
  const bool there = ::stat(path.c_str(), &facts) == 0;
  if (there && S_ISDIR(facts.st_mode)) return fail(output_error(path, EISDIR));
  if (path.empty() || path.back() == '/') return fail(output_error(path, there ? EISDIR : ENOENT));
  file.direct_ = is_descriptor_path(path) || (there && !S_ISREG(facts.st_mode));
  if (file.direct_) {
    file.handle_ = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
    if (file.handle_ < 0) return fail(output_error(path, errno));
    return file;
  }
  // A rename would replace a file that may not be written.
  if (there && ::access(path.c_str(), W_OK) != 0) return fail(output_error(path, errno));
  if (auto opened = file.open_beside(); !opened) return fail(opened.error());
  if (there) ::fchmod(file.handle_, facts.st_mode & 07777);
  return file;
}

Result<void> OutputFile::open_beside() {
  handle_ = ::open(folder_of(target_).c_str(), O_WRONLY | O_TMPFILE | O_CLOEXEC, 0666);
  if (handle_ >= 0) {
    // Only /proc gives such a file its name.
    if (::access(fmt::format("/proc/self/fd/{}", handle_).c_str(), F_OK) == 0) {
      ::flock(handle_, LOCK_EX | LOCK_NB);  // its name will say whether we live
      return {};
    }
    ::close(std::exchange(handle_, -1));
    return open_named();
  }
  const bool no_unnamed_files = errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL;
  return no_unnamed_files ? open_named() : wrong(path_);
}

Result<void> OutputFile::open_named() {
  for (const std::string& name : names_beside(target_)) {
    remove_abandoned(name);
    handle_ = ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (handle_ < 0 && errno == EEXIST) continue;
    if (handle_ < 0) return wrong(path_);
    if (lock_named(handle_, name)) {
      beside_ = name;
      return {};
    }
    ::close(std::exchange(handle_, -1));  // somebody took it for abandoned
  }
  return fail(output_error(path_, EEXIST));
}

Result<void> OutputFile::write(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(handle_, bytes.data(), std::min(bytes.size(), std::size_t{1} << 30));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return wrong(path_);
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
  return {};
}

Result<void> OutputFile::give_name() {
  if (!beside_.empty()) return {};
  const std::string own = fmt::format("/proc/self/fd/{}", handle_);
  const auto link_to = [&](const std::string& name) {
    return ::linkat(AT_FDCWD, own.c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) == 0;
  };
  for (const std::string& name : names_beside(target_)) {
    bool linked = link_to(name);
    if (!linked && errno == EEXIST) {
      remove_abandoned(name);
      linked = link_to(name);
    }
    if (!linked && errno == EEXIST) continue;
    if (!linked) return wrong(path_);
    beside_ = name;
    return {};
  }
  return fail(output_error(path_, EEXIST));
}

Result<void> OutputFile::commit() {
  const bool reached = ::fsync(handle_) == 0 || errno == EINVAL || errno == ENOTSUP || errno == EROFS;
  if (!reached) return wrong(path_);
  if (!direct_) {
    if (auto named = give_name(); !named) return named;
    if (::rename(beside_.c_str(), target_.c_str()) != 0) return wrong(path_);
    beside_.clear();
    sync_folder_of(target_);
  }
  if (::close(std::exchange(handle_, -1)) != 0) return wrong(path_);
  return {};
}

Result<void> write_whole_file(const std::string& path, std::string_view text) {
  auto file = OutputFile::create(path);
  if (!file) return fail(file.error());
  if (auto written = file->write(text); !written) return written;
  return file->commit();
}

Result<void> try_outputs(std::initializer_list<std::string> paths) {
  for (const std::string& path : paths) {
    if (path.empty()) continue;
    struct stat facts {};
    const bool special = ::stat(path.c_str(), &facts) == 0 && !S_ISREG(facts.st_mode) && !S_ISDIR(facts.st_mode);
    if (special || is_descriptor_path(path)) {  // to open a pipe is to wait for its reader
      if (::access(path.c_str(), W_OK) != 0) return wrong(path);
    } else if (const auto file = OutputFile::create(path); !file) {
      return fail(file.error());
    }
  }
  return {};
}

Result<void> try_output_folder(const std::string& folder) {
  if (folder.empty()) return {};
  std::string at = folder;
  struct stat facts {};
  while (::stat(at.c_str(), &facts) != 0) {
    if (errno != ENOENT || at == "." || at == "/") return wrong(folder);
    at = folder_of(at);
  }
  if (!S_ISDIR(facts.st_mode)) return fail(output_error(folder, ENOTDIR));
  if (const auto file = OutputFile::create(at + "/.writable"); !file) {
    Error error = file.error();
    error.file = folder;
    return fail(std::move(error));
  }
  return {};
}

void write_errors_as_errors() {
  for (const int signal : {SIGPIPE, SIGXFSZ}) std::signal(signal, SIG_IGN);
  for (int handle = 0; handle <= STDERR_FILENO; ++handle) {
    // For the other way only: what is written to a descriptor that was closed is still an error.
    if (::fcntl(handle, F_GETFD) < 0)
      static_cast<void>(::open("/dev/null", handle == STDIN_FILENO ? O_WRONLY : O_RDONLY));
  }
}

}  // namespace foreshard
