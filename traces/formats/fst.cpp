// One long file on purpose: the writer and the reader of one layout stand side by side.

#include "traces/formats/fst.h"

#include <fmt/core.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <map>

#include "core/input_file.h"
#include "traces/encodings/byte_file.h"

namespace foreshard {
namespace {

// [Note: fst layout] header (32 bytes), then blocks (20 bytes of header + payload) back to back. Numbers are
// little-endian. A block holds up to kRowsPerBlock values of one column of one table. See docs/formats/fst.md.
constexpr std::array<unsigned char, 8> kMagic{0x89, 'F', 'S', 'T', '\r', '\n', 0x1a, '\n'};
constexpr std::size_t kHeaderBytes = 32;
constexpr std::size_t kBlockHeaderBytes = 20;
constexpr std::size_t kRowsPerBlock = 65536;
constexpr std::size_t kMaxRawBytes = 10 * kRowsPerBlock;  // ten bytes is the longest varint
constexpr std::size_t kMaxTextBytes = 1U << 20U;
constexpr int kZstdLevel = 3;
constexpr std::uint64_t kMaxRowsFactor = 512;  // rows per byte of file: a small file cannot ask for a large memory
constexpr std::uint64_t kMinRows = 1U << 20U;

enum class Table : std::uint8_t { Provenance, Names, Units, Lanes, Spans, Flows, Counters, Samples, Marks };
constexpr std::size_t kTableCount = 9;
constexpr std::array<const char*, kTableCount> kTableNames{"provenance", "names",    "units",   "lanes", "spans",
                                                           "flows",      "counters", "samples", "marks"};
constexpr std::array<std::size_t, kTableCount> kColumnCounts{2, 1, 1, 4, 11, 2, 3, 3, 3};

enum class Encoding : std::uint8_t { Plain, Delta, Constant, Text };
enum class Codec : std::uint8_t { Stored, Zstd };

using Integers = std::vector<std::int64_t>;
using Texts = std::vector<std::string>;

// ---- writing ----

template <class T>
void put(std::string& out, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i)
    out.push_back(static_cast<char>(static_cast<std::uint64_t>(value) >> (8 * i)));
}

void put_varint(std::string& out, std::uint64_t value) {
  while (value >= 0x80) {
    out.push_back(static_cast<char>(value | 0x80));
    value >>= 7U;
  }
  out.push_back(static_cast<char>(value));
}

constexpr std::uint64_t zigzag(std::uint64_t value) { return (value << 1U) ^ (0 - (value >> 63U)); }
constexpr std::uint64_t unzigzag(std::uint64_t value) { return (value >> 1U) ^ (0 - (value & 1U)); }

std::uint32_t checksum(std::string_view a, std::string_view b = {}) {
  uLong crc = crc32(0, reinterpret_cast<const Bytef*>(a.data()), static_cast<uInt>(a.size()));
  if (!b.empty()) crc = crc32(crc, reinterpret_cast<const Bytef*>(b.data()), static_cast<uInt>(b.size()));
  return static_cast<std::uint32_t>(crc);
}

class Writer {
 public:
  void block(Table table, std::size_t column, Encoding encoding, std::size_t rows, const std::string& raw) {
    packed_.resize(ZSTD_compressBound(raw.size()));
    const std::size_t size = ZSTD_compress(packed_.data(), packed_.size(), raw.data(), raw.size(), kZstdLevel);
    const bool zstd = ZSTD_isError(size) == 0 && size < raw.size();
    const std::string_view payload = zstd ? std::string_view(packed_.data(), size) : std::string_view(raw);
    std::string header;
    put(header, static_cast<std::uint8_t>(table));
    put(header, static_cast<std::uint8_t>(column));
    put(header, static_cast<std::uint8_t>(encoding));
    put(header, static_cast<std::uint8_t>(zstd ? Codec::Zstd : Codec::Stored));
    put(header, static_cast<std::uint32_t>(rows));
    put(header, static_cast<std::uint32_t>(raw.size()));
    put(header, static_cast<std::uint32_t>(payload.size()));
    put(header, checksum(header, payload));
    body_ += header;
    body_ += payload;
    ++blocks_;
  }

  /// `get(i)` is the value of row i. Every kRowsPerBlock rows start anew, so that blocks decode alone.
  template <class Get>
  void integers(Table table, std::size_t column, std::size_t rows, bool delta, const Get& get) {
    std::string raw;
    for (std::size_t begin = 0; begin < rows; begin += kRowsPerBlock) {
      const std::size_t end = std::min(rows, begin + kRowsPerBlock);
      const auto first = static_cast<std::uint64_t>(get(begin));
      bool constant = true;
      for (std::size_t i = begin; i < end && constant; ++i) constant = static_cast<std::uint64_t>(get(i)) == first;
      raw.clear();
      std::uint64_t previous = 0;
      for (std::size_t i = begin; i < (constant ? begin + 1 : end); ++i) {
        const auto value = static_cast<std::uint64_t>(get(i));
        put_varint(raw, zigzag(delta && !constant ? value - previous : value));
        previous = value;
      }
      block(table, column, constant ? Encoding::Constant : (delta ? Encoding::Delta : Encoding::Plain), end - begin,
            raw);
    }
  }

  template <class Get>
  void texts(Table table, std::size_t column, std::size_t rows, const Get& get) {
    std::string raw;
    std::size_t count = 0;
    for (std::size_t i = 0; i < rows; ++i) {
      const std::string_view text = std::string_view(get(i)).substr(0, kMaxTextBytes / 2);
      if (count == kRowsPerBlock || raw.size() + text.size() + 10 > kMaxTextBytes) {
        block(table, column, Encoding::Text, count, raw);
        raw.clear();
        count = 0;
      }
      put_varint(raw, text.size());
      raw += text;
      ++count;
    }
    if (count > 0) block(table, column, Encoding::Text, count, raw);
  }

  std::string finish() {
    std::string file(reinterpret_cast<const char*>(kMagic.data()), kMagic.size());
    put(file, static_cast<std::uint16_t>(kFstMajor));
    put(file, static_cast<std::uint16_t>(kFstMinor));
    put(file, static_cast<std::uint32_t>(blocks_));
    put(file, static_cast<std::uint64_t>(kHeaderBytes + body_.size()));
    put(file, std::uint32_t{0});
    put(file, checksum(file));
    return file + body_;
  }

 private:
  std::string body_;
  std::string packed_;
  std::uint32_t blocks_ = 0;
};

void write_spans(Writer& writer, const std::vector<Span>& spans) {
  const auto column = [&](std::size_t index, bool delta, auto get) {
    writer.integers(Table::Spans, index, spans.size(), delta,
                    [&](std::size_t i) { return std::int64_t{get(spans[i])}; });
  };
  column(0, false, [](const Span& s) { return s.lane.value; });
  column(1, false, [](const Span& s) { return static_cast<int>(s.kind); });
  column(2, true, [](const Span& s) { return s.start; });
  column(3, false, [](const Span& s) { return s.duration; });
  column(4, false, [](const Span& s) { return s.name.value; });
  column(5, true, [](const Span& s) { return s.instruction.value; });
  column(6, true, [](const Span& s) { return s.op; });
  column(7, false, [](const Span& s) { return s.unit; });
  column(8, false, [](const Span& s) { return s.phase; });
  column(9, false, [](const Span& s) { return s.bytes; });
  const bool named = std::any_of(spans.begin(), spans.end(), [](const Span& s) { return s.communicator.valid(); });
  if (named) column(10, false, [](const Span& s) { return s.communicator.value; });
}

void write_rest(Writer& writer, const Timeline& t) {
  writer.integers(Table::Flows, 0, t.flows.size(), true, [&](std::size_t i) { return t.flows[i].from.value; });
  writer.integers(Table::Flows, 1, t.flows.size(), true, [&](std::size_t i) { return t.flows[i].to.value; });
  writer.integers(Table::Counters, 0, t.counters.size(), false, [&](std::size_t i) { return t.counters[i].rank; });
  writer.texts(Table::Counters, 1, t.counters.size(),
               [&](std::size_t i) { return std::string_view(t.counters[i].name); });
  writer.texts(Table::Counters, 2, t.counters.size(),
               [&](std::size_t i) { return std::string_view(t.counters[i].unit); });
  writer.integers(Table::Samples, 0, t.samples.size(), false,
                  [&](std::size_t i) { return t.samples[i].counter.value; });
  writer.integers(Table::Samples, 1, t.samples.size(), true, [&](std::size_t i) { return t.samples[i].time; });
  writer.integers(Table::Samples, 2, t.samples.size(), true, [&](std::size_t i) { return t.samples[i].value; });
  writer.integers(Table::Marks, 0, t.marks.size(), true, [&](std::size_t i) { return t.marks[i].time; });
  writer.integers(Table::Marks, 1, t.marks.size(), false, [&](std::size_t i) { return t.marks[i].rank; });
  writer.integers(Table::Marks, 2, t.marks.size(), false, [&](std::size_t i) { return t.marks[i].name.value; });
}

// ---- reading ----

struct Columns {
  std::array<std::vector<Integers>, kTableCount> integers;
  std::array<std::vector<Texts>, kTableCount> texts;
};

/// A block of integers that is decoded when its column's turn comes.
struct PackedBlock {
  std::size_t at = 0;  // behind it, for messages
  std::string_view payload;
  std::uint8_t codec = 0, encoding = 0;
  std::size_t raw = 0, rows = 0;
};

class Reader {
 public:
  Reader(std::string_view bytes, const std::string& file) : bytes_(bytes), file_(file) {}

  Result<Timeline> read() {
    auto header = read_header();
    if (!header) return fail(header.error());
    for (std::size_t table = 0; table < kTableCount; ++table) {
      columns_.integers[table].resize(kColumnCounts[table]);
      columns_.texts[table].resize(kColumnCounts[table]);
    }
    for (std::uint32_t i = 0; i < blocks_; ++i) {
      auto block = read_block();
      if (!block) return fail(block.error());
    }
    if (at_ != bytes_.size()) return broken("bytes stand behind the last block", "the end of the file", "more");
    return build();
  }

 private:
  tl::unexpected<Error> broken(std::string message, std::string expected, std::string got) const {
    Error error;
    error.code = ErrorCode::BadSyntax;
    error.message = std::move(message);
    error.file = file_;
    error.place = fmt::format("offset {}", at_);
    error.expected = std::move(expected);
    error.got = std::move(got);
    error.hint = "the file is damaged or was not written to its end: write it again";
    return fail(std::move(error));
  }

  template <class T>
  T take(std::size_t offset) const {
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      value |= static_cast<std::uint64_t>(static_cast<unsigned char>(bytes_[offset + i])) << (8 * i);
    }
    return static_cast<T>(value);
  }

  Result<void> read_header() {
    if (bytes_.size() < kHeaderBytes) {
      return broken("no .fst file: too short for a header", fmt::format("{} bytes", kHeaderBytes),
                    fmt::format("{}", bytes_.size()));
    }
    if (std::memcmp(bytes_.data(), kMagic.data(), kMagic.size()) != 0) {
      return broken("no .fst file: the first eight bytes are not its signature", "89 46 53 54 0d 0a 1a 0a",
                    "other bytes");
    }
    if (take<std::uint32_t>(28) != checksum(bytes_.substr(0, 28))) {
      return broken("the header's checksum does not hold", fmt::format("{:08x}", checksum(bytes_.substr(0, 28))),
                    fmt::format("{:08x}", take<std::uint32_t>(28)));
    }
    if (take<std::uint16_t>(8) != kFstMajor) {
      auto error = broken("the file has a newer or older layout", fmt::format("version {}", kFstMajor),
                          fmt::format("version {}", take<std::uint16_t>(8)));
      error.value().code = ErrorCode::Unsupported;
      error.value().hint = "read it with the release that wrote it";
      return error;
    }
    if (take<std::uint64_t>(16) != bytes_.size()) {
      return broken("the file is cut off or has grown", fmt::format("{} bytes", take<std::uint64_t>(16)),
                    fmt::format("{} bytes", bytes_.size()));
    }
    blocks_ = take<std::uint32_t>(12);
    rows_left_ = kMinRows + kMaxRowsFactor * bytes_.size();
    at_ = kHeaderBytes;
    return {};
  }

  Result<void> read_block() {
    if (bytes_.size() - at_ < kBlockHeaderBytes) return broken("a block's header is cut off", "20 bytes", "fewer");
    const std::size_t start = at_;
    const auto table = take<std::uint8_t>(at_), column = take<std::uint8_t>(at_ + 1);
    const auto encoding = take<std::uint8_t>(at_ + 2), codec = take<std::uint8_t>(at_ + 3);
    const std::size_t rows = take<std::uint32_t>(at_ + 4), raw = take<std::uint32_t>(at_ + 8);
    const std::size_t stored = take<std::uint32_t>(at_ + 12);
    if (stored > bytes_.size() - at_ - kBlockHeaderBytes) {
      return broken("a block is cut off", fmt::format("{} bytes", stored),
                    fmt::format("{}", bytes_.size() - at_ - kBlockHeaderBytes));
    }
    const std::string_view payload = bytes_.substr(at_ + kBlockHeaderBytes, stored);
    if (take<std::uint32_t>(at_ + 16) != checksum(bytes_.substr(at_, 16), payload)) {
      return broken("a block's checksum does not hold",
                    fmt::format("{:08x}", checksum(bytes_.substr(at_, 16), payload)),
                    fmt::format("{:08x}", take<std::uint32_t>(at_ + 16)));
    }
    if (rows == 0 || rows > kRowsPerBlock || raw > std::max(kMaxRawBytes, kMaxTextBytes) || rows > rows_left_) {
      return broken("a block is larger than the format allows", fmt::format("1 to {} rows", kRowsPerBlock),
                    fmt::format("{} rows", rows));
    }
    rows_left_ -= rows;
    at_ = start + kBlockHeaderBytes + stored;
    if (table >= kTableCount || column >= kColumnCounts[table]) return {};  // written by a later minor version
    // Spans are most of a file: all their columns side by side would be as large as what they become.
    if (table == static_cast<std::size_t>(Table::Spans)) {
      span_blocks_[column].push_back({at_, payload, codec, encoding, raw, rows});
      return {};
    }
    auto content = unpack(payload, codec, raw);
    if (!content) return fail(content.error());
    if (encoding == static_cast<std::uint8_t>(Encoding::Text))
      return decode_texts(*content, rows, columns_.texts[table][column]);
    return decode_integers(*content, rows, encoding, columns_.integers[table][column]);
  }

  Result<std::string_view> unpack(std::string_view payload, std::uint8_t codec, std::size_t raw) {
    if (codec == static_cast<std::uint8_t>(Codec::Stored)) {
      if (payload.size() != raw)
        return broken("a stored block has another size than it says", fmt::format("{}", raw),
                      fmt::format("{}", payload.size()));
      return payload;
    }
    if (codec != static_cast<std::uint8_t>(Codec::Zstd))
      return broken("unknown compression", "0 or 1", fmt::format("{}", codec));
    unpacked_.resize(raw);
    const std::size_t size = ZSTD_decompress(unpacked_.data(), raw, payload.data(), payload.size());
    if (ZSTD_isError(size) != 0)
      return broken("a block cannot be decompressed", "a zstd frame", ZSTD_getErrorName(size));
    if (size != raw)
      return broken("a block decompresses to another size than it says", fmt::format("{}", raw),
                    fmt::format("{}", size));
    return std::string_view(unpacked_);
  }

  static bool take_varint(std::string_view content, std::size_t& at, std::uint64_t& value) {
    value = 0;
    for (unsigned shift = 0; shift < 64 && at < content.size(); shift += 7) {
      const auto byte = static_cast<unsigned char>(content[at++]);
      value |= static_cast<std::uint64_t>(byte & 0x7fU) << shift;
      if (byte < 0x80) return true;
    }
    return false;
  }

  Result<void> decode_integers(std::string_view content, std::size_t rows, std::uint8_t encoding, Integers& out) {
    if (encoding > static_cast<std::uint8_t>(Encoding::Constant))
      return broken("unknown encoding", "0 to 3", fmt::format("{}", encoding));
    const bool constant = encoding == static_cast<std::uint8_t>(Encoding::Constant);
    const bool delta = encoding == static_cast<std::uint8_t>(Encoding::Delta);
    std::size_t at = 0;
    std::uint64_t value = 0, previous = 0;
    for (std::size_t i = 0; i < (constant ? 1 : rows); ++i) {
      if (!take_varint(content, at, value))
        return broken("a column ends too early", fmt::format("{} numbers", rows), fmt::format("{}", i));
      value = unzigzag(value);
      if (delta) value += previous;
      previous = value;
      out.push_back(static_cast<std::int64_t>(value));
    }
    if (at != content.size())
      return broken("a column has more bytes than numbers", fmt::format("{}", at), fmt::format("{}", content.size()));
    if (constant) out.insert(out.end(), rows - 1, static_cast<std::int64_t>(value));
    return {};
  }

  Result<void> decode_texts(std::string_view content, std::size_t rows, Texts& out) {
    std::size_t at = 0;
    for (std::size_t i = 0; i < rows; ++i) {
      std::uint64_t size = 0;
      if (!take_varint(content, at, size) || size > content.size() - at) {
        return broken("a text is cut off", fmt::format("{} texts", rows), fmt::format("{}", i));
      }
      out.emplace_back(content.substr(at, size));
      at += size;
    }
    if (at != content.size())
      return broken("a column has more bytes than texts", fmt::format("{}", at), fmt::format("{}", content.size()));
    return {};
  }

  // A column's numbers, checked: each is in [low, high].
  Result<const Integers*> numbers(Table table, std::size_t column, std::size_t rows, std::int64_t low,
                                  std::int64_t high) const {
    return checked(columns_.integers[static_cast<std::size_t>(table)][column], table, column, rows, low, high);
  }

  /// The same of a column of spans, decoded now.
  Result<Integers> span_numbers(std::size_t column, std::size_t rows, std::int64_t low, std::int64_t high) {
    Integers values;
    values.reserve(rows);
    for (const PackedBlock& block : span_blocks_[column]) {
      at_ = block.at;
      auto content = unpack(block.payload, block.codec, block.raw);
      if (!content) return fail(content.error());
      if (auto decoded = decode_integers(*content, block.rows, block.encoding, values); !decoded)
        return fail(decoded.error());
    }
    if (auto fits = checked(values, Table::Spans, column, rows, low, high); !fits) return fail(fits.error());
    return values;
  }

  std::size_t span_rows(std::size_t column) const {
    std::size_t rows = 0;
    for (const PackedBlock& block : span_blocks_[column]) rows += block.rows;
    return rows;
  }

  Result<const Integers*> checked(const Integers& values, Table table, std::size_t column, std::size_t rows,
                                  std::int64_t low, std::int64_t high) const {
    const char* name = kTableNames[static_cast<std::size_t>(table)];
    if (values.size() != rows) {
      return broken(fmt::format("table {}, column {} has another number of rows than its table", name, column),
                    fmt::format("{}", rows), fmt::format("{}", values.size()));
    }
    for (const std::int64_t value : values) {
      if (value < low || value > high) {
        return broken(fmt::format("table {}, column {} holds a number that cannot be", name, column),
                      fmt::format("{} to {}", low, high), fmt::format("{}", value));
      }
    }
    return &values;
  }

  std::size_t rows_of(Table table) const {
    const auto& integers = columns_.integers[static_cast<std::size_t>(table)];
    const auto& texts = columns_.texts[static_cast<std::size_t>(table)];
    return std::max(integers.front().size(), texts.front().size());
  }

  Result<Timeline> build();
  Result<void> build_lanes(Timeline& t);
  Result<void> build_spans(Timeline& t);
  Result<void> build_counters(Timeline& t);
  Result<void> build_marks(Timeline& t);
  Result<void> build_provenance(Provenance& p);

  std::string_view bytes_;
  std::string file_;
  std::size_t at_ = 0;
  std::uint32_t blocks_ = 0;
  std::uint64_t rows_left_ = 0;
  std::string unpacked_;
  Columns columns_;
  std::array<std::vector<PackedBlock>, kColumnCounts[static_cast<std::size_t>(Table::Spans)]> span_blocks_;
};

constexpr std::int64_t kInt32Min = std::numeric_limits<std::int32_t>::min();
constexpr std::int64_t kInt32Max = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kInt64Min = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kInt64Max = std::numeric_limits<std::int64_t>::max();

std::int32_t narrow(std::int64_t value) { return static_cast<std::int32_t>(value); }
std::int64_t last(std::size_t count) { return static_cast<std::int64_t>(count) - 1; }

Result<void> Reader::build_lanes(Timeline& t) {
  const std::size_t rows = rows_of(Table::Lanes);
  const auto rank = numbers(Table::Lanes, 0, rows, kInt32Min, kInt32Max);
  const auto priority = numbers(Table::Lanes, 2, rows, kInt32Min, kInt32Max);
  if (!rank) return fail(rank.error());
  if (!priority) return fail(priority.error());
  Texts& stream = columns_.texts[static_cast<std::size_t>(Table::Lanes)][1];
  if (stream.size() != rows)
    return broken("table lanes has lanes without a stream", fmt::format("{}", rows), fmt::format("{}", stream.size()));
  Texts& label = columns_.texts[static_cast<std::size_t>(Table::Lanes)][3];
  label.resize(label.empty() ? rows : label.size());  // absent in version 1.0, and where no lane has one
  if (label.size() != rows)
    return broken("table lanes has lanes without a label", fmt::format("{}", rows), fmt::format("{}", label.size()));
  for (std::size_t i = 0; i < rows; ++i)
    t.lanes.push_back({narrow((**rank)[i]), std::move(stream[i]), narrow((**priority)[i]), std::move(label[i])});
  return {};
}

Result<void> Reader::build_spans(Timeline& t) {
  const std::size_t rows = span_rows(0);
  struct Field {
    std::int64_t low, high;
    void (*set)(Span&, std::int64_t);
  };
  const std::array<Field, 11> fields{{
      {-1, last(t.lanes.size()), [](Span& s, std::int64_t v) { s.lane = LaneId(narrow(v)); }},
      {0, static_cast<int>(kLastSpanKind), [](Span& s, std::int64_t v) { s.kind = static_cast<SpanKind>(v); }},
      {kInt64Min, kInt64Max, [](Span& s, std::int64_t v) { s.start = v; }},
      {kInt64Min, kInt64Max, [](Span& s, std::int64_t v) { s.duration = v; }},
      {-1, last(t.names.size()), [](Span& s, std::int64_t v) { s.name = NameId(narrow(v)); }},
      {kInt32Min, kInt32Max, [](Span& s, std::int64_t v) { s.instruction = InstructionId(narrow(v)); }},
      {kInt32Min, kInt32Max, [](Span& s, std::int64_t v) { s.op = narrow(v); }},
      {kInt32Min, kInt32Max, [](Span& s, std::int64_t v) { s.unit = narrow(v); }},
      {kInt32Min, kInt32Max, [](Span& s, std::int64_t v) { s.phase = narrow(v); }},
      {kInt64Min, kInt64Max, [](Span& s, std::int64_t v) { s.bytes = v; }},
      {-1, last(t.names.size()), [](Span& s, std::int64_t v) { s.communicator = NameId(narrow(v)); }},
  }};
  constexpr std::size_t kCommunicator = 10;  // absent before version 1.2, and where no span has one
  for (std::size_t column = 0; column < fields.size(); ++column) {
    if (span_rows(column) == rows || (column == kCommunicator && span_blocks_[column].empty())) continue;
    return broken(fmt::format("table spans, column {} has another number of rows than its table", column),
                  fmt::format("{}", rows), fmt::format("{}", span_rows(column)));
  }
  t.spans.resize(rows);
  for (std::size_t column = 0; column < fields.size(); ++column) {
    if (column == kCommunicator && span_blocks_[column].empty()) break;
    const auto values = span_numbers(column, rows, fields[column].low, fields[column].high);
    if (!values) return fail(values.error());
    for (std::size_t i = 0; i < rows; ++i) fields[column].set(t.spans[i], (*values)[i]);
  }
  const std::size_t flows = rows_of(Table::Flows);
  const auto from = numbers(Table::Flows, 0, flows, -1, last(rows));
  const auto to = numbers(Table::Flows, 1, flows, -1, last(rows));
  if (!from) return fail(from.error());
  if (!to) return fail(to.error());
  for (std::size_t i = 0; i < flows; ++i) t.flows.push_back({SpanId(narrow((**from)[i])), SpanId(narrow((**to)[i]))});
  return {};
}

Result<void> Reader::build_counters(Timeline& t) {
  const std::size_t rows = rows_of(Table::Counters);
  const auto rank = numbers(Table::Counters, 0, rows, kInt32Min, kInt32Max);
  if (!rank) return fail(rank.error());
  auto& texts = columns_.texts[static_cast<std::size_t>(Table::Counters)];
  if (texts[1].size() != rows || texts[2].size() != rows)
    return broken("table counters has counters without a name or unit", fmt::format("{} of each", rows),
                  fmt::format("{} and {}", texts[1].size(), texts[2].size()));
  for (std::size_t i = 0; i < rows; ++i)
    t.counters.push_back({narrow((**rank)[i]), std::move(texts[1][i]), std::move(texts[2][i])});
  const std::size_t samples = rows_of(Table::Samples);
  const auto counter = numbers(Table::Samples, 0, samples, -1, last(rows));
  const auto time = numbers(Table::Samples, 1, samples, kInt64Min, kInt64Max);
  const auto value = numbers(Table::Samples, 2, samples, kInt64Min, kInt64Max);
  if (!counter) return fail(counter.error());
  if (!time) return fail(time.error());
  if (!value) return fail(value.error());
  for (std::size_t i = 0; i < samples; ++i) {
    t.samples.push_back({CounterId(narrow((**counter)[i])), (**time)[i], (**value)[i]});
  }
  return {};
}

Result<void> Reader::build_marks(Timeline& t) {
  const std::size_t rows = rows_of(Table::Marks);
  const auto time = numbers(Table::Marks, 0, rows, kInt64Min, kInt64Max);
  const auto rank = numbers(Table::Marks, 1, rows, kInt32Min, kInt32Max);
  const auto name = numbers(Table::Marks, 2, rows, -1, last(t.names.size()));
  if (!time) return fail(time.error());
  if (!rank) return fail(rank.error());
  if (!name) return fail(name.error());
  for (std::size_t i = 0; i < rows; ++i)
    t.marks.push_back({(**time)[i], narrow((**rank)[i]), NameId(narrow((**name)[i]))});
  return {};
}

Result<void> Reader::build_provenance(Provenance& p) {
  const auto& texts = columns_.texts[static_cast<std::size_t>(Table::Provenance)];
  if (texts[0].size() != texts[1].size())
    return broken("table provenance has keys without values", fmt::format("{}", texts[0].size()),
                  fmt::format("{}", texts[1].size()));
  const std::map<std::string_view, std::string*> fields{{"source", &p.source},
                                                        {"plan_digest", &p.plan_digest},
                                                        {"software", &p.software},
                                                        {"hardware", &p.hardware},
                                                        {"clock", &p.clock}};
  for (std::size_t i = 0; i < texts[0].size(); ++i) {
    const auto field = fields.find(texts[0][i]);
    if (field != fields.end()) *field->second = texts[1][i];
    if (texts[0][i] != "dropped_records") continue;
    if (texts[1][i].empty() || texts[1][i].size() > 18 ||
        texts[1][i].find_first_not_of("0123456789") != std::string::npos) {
      return broken("provenance: dropped_records is no count", "a number", texts[1][i].substr(0, 40));
    }
    p.dropped_records = std::stoll(texts[1][i]);
  }
  return {};
}

Result<Timeline> Reader::build() {
  Timeline t;
  t.names = std::move(columns_.texts[static_cast<std::size_t>(Table::Names)][0]);
  t.units = std::move(columns_.texts[static_cast<std::size_t>(Table::Units)][0]);
  auto done = build_provenance(t.provenance);
  if (done) done = build_lanes(t);
  if (done) done = build_spans(t);
  if (done) done = build_counters(t);
  if (done) done = build_marks(t);
  if (!done) return fail(done.error());
  return t;
}

}  // namespace

std::string fst_bytes(const Timeline& t) {
  Writer writer;
  const Provenance& p = t.provenance;
  const std::array<std::array<std::string, 2>, 6> pairs{
      {{"source", p.source},
       {"plan_digest", p.plan_digest},
       {"software", p.software},
       {"hardware", p.hardware},
       {"clock", p.clock},
       {"dropped_records", std::to_string(std::max<std::int64_t>(0, p.dropped_records))}}};
  writer.texts(Table::Provenance, 0, pairs.size(), [&](std::size_t i) { return std::string_view(pairs[i][0]); });
  writer.texts(Table::Provenance, 1, pairs.size(), [&](std::size_t i) { return std::string_view(pairs[i][1]); });
  writer.texts(Table::Names, 0, t.names.size(), [&](std::size_t i) { return std::string_view(t.names[i]); });
  writer.texts(Table::Units, 0, t.units.size(), [&](std::size_t i) { return std::string_view(t.units[i]); });
  writer.integers(Table::Lanes, 0, t.lanes.size(), false, [&](std::size_t i) { return t.lanes[i].rank; });
  writer.texts(Table::Lanes, 1, t.lanes.size(), [&](std::size_t i) { return std::string_view(t.lanes[i].stream); });
  writer.integers(Table::Lanes, 2, t.lanes.size(), false, [&](std::size_t i) { return t.lanes[i].priority; });
  const bool labels = std::any_of(t.lanes.begin(), t.lanes.end(), [](const Lane& lane) { return !lane.label.empty(); });
  if (labels) {
    writer.texts(Table::Lanes, 3, t.lanes.size(), [&](std::size_t i) { return std::string_view(t.lanes[i].label); });
  }
  write_spans(writer, t.spans);
  write_rest(writer, t);
  return writer.finish();
}

Result<void> write_fst(const Timeline& timeline, const std::string& path) {
  auto file = PackedOutput::create(path);
  if (!file) return fail(file.error());
  auto written = file->write(fst_bytes(timeline));
  if (!written) return written;
  return file->close();
}

Result<Timeline> parse_fst(std::string_view bytes, const std::string& file) { return Reader(bytes, file).read(); }

Result<Timeline> read_fst(const std::string& path) {
  auto bytes = read_whole_file(path, kMostFstBytes);
  if (!bytes) return fail(bytes.error());
  return parse_fst(*bytes, path);
}

}  // namespace foreshard
