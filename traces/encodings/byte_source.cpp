#include "traces/encodings/byte_source.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "traces/encodings/byte_file.h"

namespace foreshard {
namespace {

constexpr std::size_t kBufferBytes = 1U << 18U;
constexpr int kGzipWindow = 15 + 16;  // zlib's spelling of "gzip header, largest window"

class FileSource : public ByteSource {
 public:
  FileSource(int file, std::uint64_t size) : file_(file), size_(size) {}
  ~FileSource() override { ::close(file_); }
  FileSource(const FileSource&) = delete;
  FileSource& operator=(const FileSource&) = delete;

  std::size_t read(char* data, std::size_t size) override {
    for (;;) {
      const ssize_t got = ::read(file_, data, size);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) damage_ = fmt::format("reading stopped: {}", std::strerror(errno));
      done_ += got > 0 ? static_cast<std::uint64_t>(got) : 0;
      return got > 0 ? static_cast<std::size_t>(got) : 0;
    }
  }
  std::string damage() const override { return damage_; }
  double fraction() const override {
    return size_ == 0 ? 1.0 : std::min(1.0, static_cast<double>(done_) / static_cast<double>(size_));
  }

 private:
  int file_;
  std::uint64_t size_, done_ = 0;
  std::string damage_;
};

class MemorySource : public ByteSource {
 public:
  explicit MemorySource(std::string_view bytes) : bytes_(bytes) {}
  std::size_t read(char* data, std::size_t size) override {
    const std::size_t part = std::min(size, bytes_.size() - at_);
    if (part > 0) std::memcpy(data, bytes_.data() + at_, part);
    at_ += part;
    return part;
  }
  std::string damage() const override { return {}; }
  double fraction() const override {
    return bytes_.empty() ? 1.0 : static_cast<double>(at_) / static_cast<double>(bytes_.size());
  }

 private:
  std::string_view bytes_;
  std::size_t at_ = 0;
};

/// What both packers share: a buffer of packed bytes that is filled as it empties.
class Unpacker : public ByteSource {
 public:
  explicit Unpacker(std::unique_ptr<ByteSource> packed) : packed_(std::move(packed)), buffer_(kBufferBytes) {}
  std::string damage() const override { return damage_.empty() ? packed_->damage() : damage_; }
  double fraction() const override { return packed_->fraction(); }

 protected:
  std::size_t refill() { return packed_->read(buffer_.data(), buffer_.size()); }

  std::unique_ptr<ByteSource> packed_;
  std::vector<char> buffer_;
  std::string damage_;
  bool ended_ = false;
};

class GzipSource : public Unpacker {
 public:
  explicit GzipSource(std::unique_ptr<ByteSource> packed) : Unpacker(std::move(packed)) {
    ended_ = inflateInit2(&state_, kGzipWindow) != Z_OK;
  }
  ~GzipSource() override { inflateEnd(&state_); }
  GzipSource(const GzipSource&) = delete;
  GzipSource& operator=(const GzipSource&) = delete;

  std::size_t read(char* data, std::size_t size) override {
    state_.next_out = reinterpret_cast<Bytef*>(data);
    state_.avail_out = static_cast<uInt>(std::min<std::size_t>(size, 1U << 30U));
    const uInt wanted = state_.avail_out;
    while (!ended_ && state_.avail_out > 0) {
      if (state_.avail_in == 0) {
        state_.next_in = reinterpret_cast<Bytef*>(buffer_.data());
        state_.avail_in = static_cast<uInt>(refill());
        if (state_.avail_in == 0) {
          if (inside_) damage_ = "the gzip stream breaks off: the file is truncated";
          ended_ = true;
          break;
        }
      }
      step();
    }
    return wanted - state_.avail_out;
  }

 private:
  void step() {
    if (!inside_ && members_ > 0 && inflateReset(&state_) != Z_OK) ended_ = true;
    const bool first_of_member = !inside_;
    inside_ = true;
    const int code = inflate(&state_, Z_NO_FLUSH);
    if (code == Z_STREAM_END) {
      ++members_;
      inside_ = false;
    } else if (code != Z_OK && code != Z_BUF_ERROR) {
      // Bytes behind the last member (padding of an archive) are not ours to judge.
      if (!(first_of_member && members_ > 0))
        damage_ = fmt::format("the gzip stream is damaged: {}", state_.msg != nullptr ? state_.msg : "no valid data");
      ended_ = true;
    }
  }

  z_stream state_{};
  bool inside_ = false;
  int members_ = 0;
};

class ZstdSource : public Unpacker {
 public:
  explicit ZstdSource(std::unique_ptr<ByteSource> packed)
      : Unpacker(std::move(packed)), state_(ZSTD_createDStream(), &ZSTD_freeDStream) {}

  std::size_t read(char* data, std::size_t size) override {
    ZSTD_outBuffer out{data, size, 0};
    while (!ended_ && out.pos < out.size) {
      if (in_.pos == in_.size) {
        in_ = {buffer_.data(), refill(), 0};
        if (in_.size == 0) {
          if (inside_) damage_ = "the zstd stream breaks off: the file is truncated";
          ended_ = true;
          break;
        }
      }
      const std::size_t code = ZSTD_decompressStream(state_.get(), &out, &in_);
      if (ZSTD_isError(code) != 0) {
        damage_ = fmt::format("the zstd stream is damaged: {}", ZSTD_getErrorName(code));
        ended_ = true;
      }
      inside_ = code != 0;
    }
    return out.pos;
  }

 private:
  std::unique_ptr<ZSTD_DStream, std::size_t (*)(ZSTD_DStream*)> state_;
  ZSTD_inBuffer in_{nullptr, 0, 0};
  bool inside_ = false;
};

}  // namespace

Result<std::unique_ptr<ByteSource>> open_file(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0)
    return fail(
        file_error(ErrorCode::NotFound, path, "the file cannot be read", std::strerror(errno), "check the path"));
  struct stat about {};
  const bool known = ::fstat(file, &about) == 0;
  auto source = std::make_unique<FileSource>(file, known ? static_cast<std::uint64_t>(about.st_size) : 0);
  if (known && S_ISDIR(about.st_mode))
    return fail(file_error(ErrorCode::NotFound, path, "a folder stands where a file was asked for", "a folder",
                           "name the files in it"));
  return source;
}

std::unique_ptr<ByteSource> unpacked(std::unique_ptr<ByteSource> packed) {
  auto peeked = std::make_unique<PeekedSource>(std::move(packed), 4);
  const std::string_view head = peeked->head();
  if (head.starts_with("\x1f\x8b")) return std::make_unique<GzipSource>(std::move(peeked));
  if (head == "\x28\xb5\x2f\xfd") return std::make_unique<ZstdSource>(std::move(peeked));
  return peeked;
}

std::unique_ptr<ByteSource> memory_source(std::string_view bytes) { return std::make_unique<MemorySource>(bytes); }

PeekedSource::PeekedSource(std::unique_ptr<ByteSource> source, std::size_t size)
    : source_(std::move(source)), head_(size, '\0') {
  std::size_t have = 0;
  for (std::size_t got = 1; got > 0 && have < size; have += got) got = source_->read(head_.data() + have, size - have);
  head_.resize(have);
}

std::size_t PeekedSource::read(char* data, std::size_t size) {
  if (at_ == head_.size()) return source_->read(data, size);
  const std::size_t part = std::min(size, head_.size() - at_);
  std::memcpy(data, head_.data() + at_, part);
  at_ += part;
  return part;
}

Result<std::string> read_all(ByteSource& source, std::size_t limit, const std::string& file) {
  std::string bytes;
  for (;;) {
    const std::size_t before = bytes.size();
    bytes.resize(before + kBufferBytes * 4);
    const std::size_t got = source.read(bytes.data() + before, bytes.size() - before);
    bytes.resize(before + got);
    if (bytes.size() > limit) {
      Error error = file_error(ErrorCode::TooLarge, file, "the file is larger than the reader's limit", "more", "");
      error.expected = fmt::format("at most {} bytes", limit);
      return fail(std::move(error));
    }
    if (got == 0) return bytes;
  }
}

}  // namespace foreshard
