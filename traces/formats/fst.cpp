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
#include "traces/formats/fst_layout.h"

namespace foreshard {
namespace {

using namespace fst;

using Integers = std::vector<std::int64_t>;
using Texts = std::vector<std::string>;

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

/// A column of the table of arguments: the block that is being read, and how far it has been.
struct ArgumentColumn {
  Integers values;
  std::size_t at = 0;
  std::size_t left() const { return values.size() - at; }
};

/// The rows of arguments that spans bear: files may have more, of slices that their reader left out, and their numbers
/// may be of any size. What they become is below the number of spans.
class BorneRows {
 public:
  explicit BorneRows(const Integers& of_span) : spans_(static_cast<std::int64_t>(of_span.size())) {
    if (std::all_of(of_span.begin(), of_span.end(), [&](std::int64_t row) { return row < spans_; })) return;
    rows_ = of_span;
    std::sort(rows_.begin(), rows_.end());
    rows_.erase(std::unique(rows_.begin(), rows_.end()), rows_.end());
    if (rows_.front() == -1) rows_.erase(rows_.begin());
  }

  /// kNone: no span's.
  std::uint32_t place(std::int64_t row) const {
    if (rows_.empty()) return row < 0 || row >= spans_ ? SliceArguments::kNone : static_cast<std::uint32_t>(row);
    const auto found = std::lower_bound(rows_.begin(), rows_.end(), row);
    return found == rows_.end() || *found != row ? SliceArguments::kNone
                                                 : static_cast<std::uint32_t>(found - rows_.begin());
  }

 private:
  std::int64_t spans_;
  Integers rows_;  // in order; empty: as they are
};

class FstReader {
 public:
  FstReader(std::string_view bytes, const std::string& file) : bytes_(bytes), file_(file) {}

  Result<Timeline> read(SliceArguments* arguments) {
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
    auto timeline = build();
    if (!timeline || arguments == nullptr) return timeline;
    if (auto done = build_arguments(*arguments, timeline->spans.size()); !done) return fail(done.error());
    return timeline;
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
    if (table == static_cast<std::size_t>(Table::Arguments)) {
      argument_blocks_[column].push_back({at_, payload, codec, encoding, raw, rows});
      return {};
    }
    auto content = unpack(payload, codec, raw);
    if (!content) return fail(content.error());
    if (table == static_cast<std::size_t>(Table::ArgumentTexts)) {
      return encoding == static_cast<std::uint8_t>(Encoding::Text)
                 ? decode_texts(*content, rows, argument_texts_)
                 : broken("texts of arguments are no texts", "encoding 3", fmt::format("{}", encoding));
    }
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

  static void keep(Texts& out, std::string_view text) { out.emplace_back(text); }
  static void keep(TextStore& out, std::string_view text) { out.add(text); }

  template <class Out>
  Result<void> decode_texts(std::string_view content, std::size_t rows, Out& out) {
    std::size_t at = 0;
    for (std::size_t i = 0; i < rows; ++i) {
      std::uint64_t size = 0;
      if (!take_varint(content, at, size) || size > content.size() - at) {
        return broken("a text is cut off", fmt::format("{} texts", rows), fmt::format("{}", i));
      }
      keep(out, content.substr(at, size));
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
  Result<void> build_arguments(SliceArguments& arguments, std::size_t spans);
  Result<bool> next_arguments(std::array<ArgumentColumn, 4>& rows);

  std::string_view bytes_;
  std::string file_;
  std::size_t at_ = 0;
  std::uint32_t blocks_ = 0;
  std::uint64_t rows_left_ = 0;
  std::string unpacked_;
  Columns columns_;
  std::array<std::vector<PackedBlock>, kColumnCounts[static_cast<std::size_t>(Table::Spans)]> span_blocks_;
  std::array<std::vector<PackedBlock>, kColumnCounts[static_cast<std::size_t>(Table::Arguments)]> argument_blocks_;
  std::array<std::size_t, 4> next_block_{};  // of argument_blocks_
  TextStore argument_texts_;
};

constexpr std::int64_t kInt32Min = std::numeric_limits<std::int32_t>::min();
constexpr std::int64_t kInt32Max = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kInt64Min = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kInt64Max = std::numeric_limits<std::int64_t>::max();

std::int32_t narrow(std::int64_t value) { return static_cast<std::int32_t>(value); }
std::int64_t last(std::size_t count) { return static_cast<std::int64_t>(count) - 1; }

Result<void> FstReader::build_lanes(Timeline& t) {
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

Result<void> FstReader::build_spans(Timeline& t) {
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

Result<void> FstReader::build_counters(Timeline& t) {
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

Result<void> FstReader::build_marks(Timeline& t) {
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

Result<void> FstReader::build_provenance(Provenance& p) {
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

/// Rows of all columns of the arguments up to the end of a block of one of them; what the others have more stays for
/// the next call. False at the end.
Result<bool> FstReader::next_arguments(std::array<ArgumentColumn, 4>& rows) {
  for (std::size_t column = 0; column < rows.size(); ++column) {
    if (rows[column].left() > 0 || next_block_[column] == argument_blocks_[column].size()) continue;
    const PackedBlock& block = argument_blocks_[column][next_block_[column]++];
    at_ = block.at;
    auto content = unpack(block.payload, block.codec, block.raw);
    if (!content) return fail(content.error());
    rows[column] = {};
    auto decoded = decode_integers(*content, block.rows, block.encoding, rows[column].values);
    if (!decoded) return fail(decoded.error());
  }
  const auto ended = [](const ArgumentColumn& column) { return column.left() == 0; };
  if (std::all_of(rows.begin(), rows.end(), ended)) return false;
  if (std::none_of(rows.begin(), rows.end(), ended)) return true;
  return broken("table arguments has columns of different lengths", "equally many rows", "fewer in one");
}

Result<void> FstReader::build_arguments(SliceArguments& arguments, std::size_t spans) {
  if (argument_texts_.size() == 0 && argument_blocks_[0].empty()) return {};
  constexpr std::size_t kRow = 11;
  const std::int64_t none = SliceArguments::kNone;
  auto of_span = span_numbers(kRow, spans, -1, none - 1);
  if (!of_span) return fail(of_span.error());
  const BorneRows borne(*of_span);
  for (const std::int64_t row : *of_span) arguments.row_of_span.push_back(borne.place(row));
  std::array<ArgumentColumn, 4> rows;
  std::map<std::int64_t, std::size_t> column_of;
  std::int64_t key = -1, form = 0, before = -1;
  for (;;) {
    auto more = next_arguments(rows);
    if (!more) return fail(more.error());
    if (!*more) break;
    std::size_t count = rows[0].left();
    for (const ArgumentColumn& column : rows) count = std::min(count, column.left());
    for (std::size_t i = 0; i < count; ++i) {
      const auto next = [&](std::size_t column) { return rows[column].values[rows[column].at++]; };
      const std::int64_t new_key = next(0), row = next(1), new_form = next(2), value = next(3);
      const bool same = new_key == key && new_form == form;
      key = new_key, form = new_form;
      const std::int64_t texts = argument_texts_.size();
      const bool fits = key >= 0 && key < texts && (form == 0 || (form == 1 && value >= 0 && value < texts));
      if (!fits || row < 0 || row >= none || (same && row <= before))
        return broken("table arguments holds a row that cannot be", "keys and texts of its table, rows in order",
                      fmt::format("key {}, row {}, form {}, value {}", key, row, form, value));
      before = row;
      const std::uint32_t place = borne.place(row);
      if (place == SliceArguments::kNone) continue;
      const auto [found, fresh] = column_of.try_emplace(key, arguments.columns.size());
      if (fresh) {
        if (arguments.columns.size() == SliceArguments::kMostKeys)
          return broken("table arguments has too many keys", fmt::format("{}", SliceArguments::kMostKeys), "more");
        arguments.columns.emplace_back().key = argument_texts_[static_cast<std::uint32_t>(key)];
      }
      SliceArguments::Column& column = arguments.columns[found->second];
      auto& own_rows = form == 0 ? column.number_rows : column.text_rows;
      if (!own_rows.empty() && own_rows.back() >= place)
        return broken("table arguments has rows of one key in no order", "by key, form and row",
                      fmt::format("{}", row));
      own_rows.push_back(place);
      if (form == 0)
        column.numbers.push_back(value);
      else
        column.texts.push_back(static_cast<std::uint32_t>(value));
    }
  }
  arguments.texts = std::move(argument_texts_);
  return {};
}

Result<Timeline> FstReader::build() {
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

Result<Timeline> parse_fst(std::string_view bytes, const std::string& file, SliceArguments* arguments) {
  return FstReader(bytes, file).read(arguments);
}

Result<Timeline> read_fst(const std::string& path) {
  auto bytes = read_whole_file(path, kMostFstBytes);
  if (!bytes) return fail(bytes.error());
  return parse_fst(*bytes, path);
}

}  // namespace foreshard
