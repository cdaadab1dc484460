// What the writer and the reader of .fst share. Private to both.
//
// [Note: fst layout] header (32 bytes), then blocks (20 bytes of header + payload) back to back. Numbers are
// little-endian. A block holds up to kRowsPerBlock values of one column of one table. See docs/formats/fst.md.
#pragma once

#include <zlib.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace foreshard::fst {

inline constexpr std::array<unsigned char, 8> kMagic{0x89, 'F', 'S', 'T', '\r', '\n', 0x1a, '\n'};
inline constexpr std::size_t kHeaderBytes = 32;
inline constexpr std::size_t kBlockHeaderBytes = 20;
inline constexpr std::size_t kRowsPerBlock = 65536;
inline constexpr std::size_t kMaxRawBytes = 10 * kRowsPerBlock;  // ten bytes is the longest varint
inline constexpr std::size_t kMaxTextBytes = 1U << 20U;
inline constexpr std::uint64_t kMaxRowsFactor =
    512;  // rows per byte of file: a small file cannot ask for a large memory
inline constexpr std::uint64_t kMinRows = 1U << 20U;

enum class Table : std::uint8_t {
  Provenance,
  Names,
  Units,
  Lanes,
  Spans,
  Flows,
  Counters,
  Samples,
  Marks,
  ArgumentTexts,
  Arguments
};
inline constexpr std::size_t kTableCount = 11;
inline constexpr std::array<const char*, kTableCount> kTableNames{"provenance", "names",          "units",    "lanes",
                                                                  "spans",      "flows",          "counters", "samples",
                                                                  "marks",      "argument texts", "arguments"};
inline constexpr std::array<std::size_t, kTableCount> kColumnCounts{2, 1, 1, 4, 12, 2, 3, 3, 3, 1, 4};

enum class Encoding : std::uint8_t { Plain, Delta, Constant, Text };
enum class Codec : std::uint8_t { Stored, Zstd };

constexpr std::uint64_t zigzag(std::uint64_t value) { return (value << 1U) ^ (0 - (value >> 63U)); }
constexpr std::uint64_t unzigzag(std::uint64_t value) { return (value >> 1U) ^ (0 - (value & 1U)); }

inline std::uint32_t checksum(std::string_view a, std::string_view b = {}) {
  uLong crc = crc32(0, reinterpret_cast<const Bytef*>(a.data()), static_cast<uInt>(a.size()));
  if (!b.empty()) crc = crc32(crc, reinterpret_cast<const Bytef*>(b.data()), static_cast<uInt>(b.size()));
  return static_cast<std::uint32_t>(crc);
}

}  // namespace foreshard::fst
