#include "traces/encodings/byte_source.h"

#include <fmt/core.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "core/input_file.h"
#include "traces/encodings/byte_file.h"

namespace foreshard {
namespace {

constexpr std::size_t kBufferBytes = 1U << 18U;
constexpr std::uint64_t kHarmlessBytes = 256ULL << 20U;
constexpr std::uint64_t kMostExpansion = 200;  // recordings pack to a tenth or a thirtieth, zeros to a thousandth
constexpr std::string_view kTrapWords = "the packed stream expands as no recording does";

class FileSource : public ByteSource {
 public:
  explicit FileSource(InputFile file) : file_(std::move(file)) {}

  std::size_t read(char* data, std::size_t size) override {
    const auto got = file_.read(data, size);
    if (!got) damage_ = fmt::format("{}: {}", got.error().message, got.error().got);
    done_ += got ? *got : 0;
    return got ? *got : 0;
  }
  std::string damage() const override { return damage_; }
  double fraction() const override {
    const double size = static_cast<double>(file_.size().value_or(0));
    return size == 0 ? 1.0 : std::min(1.0, static_cast<double>(done_) / size);
  }

 private:
  InputFile file_;
  std::uint64_t done_ = 0;
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
  std::size_t refill() {
    const std::size_t got = packed_->read(buffer_.data(), buffer_.size());
    packed_bytes_ += got;
    return got;
  }
  /// Called with what was unpacked. True at a trap.
  bool is_trap(std::size_t unpacked) {
    unpacked_bytes_ += unpacked;
    if (unpacked_bytes_ <= kHarmlessBytes || unpacked_bytes_ / kMostExpansion <= packed_bytes_) return false;
    damage_ =
        fmt::format("{}: {} packed bytes make more than {} MiB", kTrapWords, packed_bytes_, unpacked_bytes_ >> 20U);
    ended_ = true;
    return true;
  }

  std::unique_ptr<ByteSource> packed_;
  std::vector<char> buffer_;
  std::string damage_;
  std::uint64_t packed_bytes_ = 0, unpacked_bytes_ = 0;
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
    const std::size_t unpacked = wanted - state_.avail_out;
    return is_trap(unpacked) ? 0 : unpacked;
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
    return is_trap(out.pos) ? 0 : out.pos;
  }

 private:
  std::unique_ptr<ZSTD_DStream, std::size_t (*)(ZSTD_DStream*)> state_;
  ZSTD_inBuffer in_{nullptr, 0, 0};
  bool inside_ = false;
};

}  // namespace

Result<std::unique_ptr<ByteSource>> open_file(const std::string& path) {
  auto file = InputFile::open(path);
  if (!file) return fail(file.error());
  return std::make_unique<FileSource>(std::move(*file));
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

ByteBuffer::ByteBuffer(ByteBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      room_(std::exchange(other.room_, 0)) {}

ByteBuffer& ByteBuffer::operator=(ByteBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(room_, other.room_);
  return *this;
}

ByteBuffer::~ByteBuffer() { std::free(data_); }

char* ByteBuffer::extend(std::size_t size) {
  if (room_ - size_ < size) {
    // Large blocks are pages that realloc moves without copying. A quarter more: what returns 4 bytes had 5.
    const std::size_t room = size_ + std::max(size, size_ / 4);
    void* grown = std::realloc(data_, room);
    if (grown == nullptr) return nullptr;
    data_ = static_cast<char*>(grown);
    room_ = room;
  }
  return data_ + size_;
}

Result<ByteBuffer> read_all(ByteSource& source, std::size_t limit, const std::string& file) {
  const auto too_large = [&](std::string message, std::string got) {
    Error error = file_error(ErrorCode::TooLarge, file, std::move(message), std::move(got), "");
    error.expected = fmt::format("at most {} bytes", limit);
    return fail(std::move(error));
  };
  ByteBuffer bytes;
  for (;;) {
    char* room = bytes.extend(kBufferBytes * 4);
    if (room == nullptr)
      return too_large("there is no memory for the file", fmt::format("more than {} bytes", bytes.view().size()));
    const std::size_t got = source.read(room, kBufferBytes * 4);
    bytes.keep(got);
    if (bytes.view().size() > limit) return too_large("the file is larger than its reader's limit", "more");
    if (got > 0) continue;
    if (source.damage().starts_with(kTrapWords)) return too_large(source.damage(), "a packed stream without end");
    return bytes;
  }
}

}  // namespace foreshard
