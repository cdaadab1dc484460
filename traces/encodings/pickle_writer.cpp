#include "traces/encodings/pickle_writer.h"

#include <limits>

namespace foreshard {

void PickleWriter::little_endian(std::uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out_ += static_cast<char>(value >> (8 * i) & 0xff);
}

void PickleWriter::integer(std::int64_t value) {
  const auto bits = static_cast<std::uint64_t>(value);
  if (value >= 0 && value <= 0xff) {
    out_ += 'K';
    little_endian(bits, 1);
  } else if (value >= std::numeric_limits<std::int32_t>::min() && value <= std::numeric_limits<std::int32_t>::max()) {
    out_ += 'J';
    little_endian(bits, 4);
  } else {
    out_ += "\x8a\x08";
    little_endian(bits, 8);
  }
}

void PickleWriter::text(std::string_view value) {
  const auto [known, is_new] = texts_.emplace(value, 0);
  if (!is_new) {
    recall(known->second);
    return;
  }
  out_ += 'X';
  little_endian(value.size(), 4);
  out_ += value;
  known->second = remember();
}

void PickleWriter::pair(std::int64_t first, std::int64_t second) {
  integer(first);
  integer(second);
  out_ += '\x86';
}

std::uint32_t PickleWriter::remember() {
  out_ += 'r';
  little_endian(remembered_, 4);
  return remembered_++;
}

void PickleWriter::recall(std::uint32_t remembered) {
  out_ += 'j';
  little_endian(remembered, 4);
}

}  // namespace foreshard
