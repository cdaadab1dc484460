#include "traces/encodings/tar_entries.h"

#include <algorithm>
#include <array>

namespace foreshard {
namespace {

constexpr std::size_t kBlock = 512;
constexpr std::size_t kSizeAt = 124, kSizeLength = 12, kSumAt = 148, kSumLength = 8, kTypeAt = 156, kNameLength = 100;

/// Octal text, or GNU's big-endian binary (first bit set).
std::uint64_t number_in(std::string_view field) {
  std::uint64_t value = 0;
  if ((static_cast<unsigned char>(field[0]) & 0x80U) != 0) {
    for (std::size_t i = field.size() - 8; i < field.size(); ++i)
      value = value << 8U | static_cast<unsigned char>(field[i]);
    return value;
  }
  for (const char c : field) {
    if (c >= '0' && c <= '7') value = value * 8 + static_cast<std::uint64_t>(c - '0');
  }
  return value;
}

}  // namespace

/// Bytes of one entry, out of the archive's stream.
class TarContent : public ByteSource {
 public:
  explicit TarContent(TarEntries& entries) : entries_(entries) {}
  std::size_t read(char* data, std::size_t size) override {
    const std::size_t part = static_cast<std::size_t>(std::min<std::uint64_t>(size, entries_.left_));
    const std::size_t got = part > 0 ? entries_.archive_.read(data, part) : 0;
    if (part > 0 && got == 0 && entries_.left_ > 0) entries_.damage_ = "the archive breaks off inside a file";
    entries_.left_ -= got;
    return got;
  }
  std::string damage() const override { return entries_.damage_; }
  double fraction() const override { return entries_.archive_.fraction(); }

 private:
  TarEntries& entries_;
};

bool is_tar_header(std::string_view head) {
  if (head.size() < kBlock || head[0] == '\0') return false;
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < kBlock; ++i) {
    const bool own = i >= kSumAt && i < kSumAt + kSumLength;
    sum += own ? static_cast<unsigned char>(' ') : static_cast<unsigned char>(head[i]);
  }
  return sum == number_in(head.substr(kSumAt, kSumLength));
}

bool TarEntries::skip(std::uint64_t bytes) {
  std::array<char, 1U << 14U> waste;
  while (bytes > 0) {
    const std::size_t got =
        archive_.read(waste.data(), static_cast<std::size_t>(std::min<std::uint64_t>(bytes, waste.size())));
    if (got == 0) return false;
    bytes -= got;
  }
  return true;
}

bool TarEntries::next() {
  for (;;) {
    if (!damage_.empty()) return false;
    if (!skip(left_ + padding_)) {
      damage_ = "the archive breaks off inside a file";
      return false;
    }
    left_ = padding_ = 0;
    std::array<char, kBlock> block;
    std::size_t have = 0;
    for (std::size_t got = 1; got > 0 && have < kBlock; have += got)
      got = archive_.read(block.data() + have, kBlock - have);
    const std::string_view header(block.data(), have);
    if (have == 0 || (have == kBlock && header.find_first_not_of('\0') == std::string_view::npos)) return false;
    if (!is_tar_header(header)) {
      damage_ = "the archive is damaged: no header where a file should begin";
      return false;
    }
    left_ = number_in(header.substr(kSizeAt, kSizeLength));
    padding_ = (kBlock - left_ % kBlock) % kBlock;
    name_ = std::string(header.substr(0, std::min(kNameLength, header.find('\0'))));
    const char type = header[kTypeAt];
    const bool hidden = name_.find("/._") != std::string::npos || name_.starts_with("._");  // macOS' attributes
    if ((type == '0' || type == '\0') && !hidden && !name_.ends_with('/')) return true;
  }
}

std::unique_ptr<ByteSource> TarEntries::content() { return std::make_unique<TarContent>(*this); }

}  // namespace foreshard
