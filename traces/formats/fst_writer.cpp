#include <zstd.h>

#include <algorithm>
#include <array>
#include <vector>

#include "traces/encodings/byte_file.h"
#include "traces/formats/fst.h"
#include "traces/formats/fst_layout.h"

namespace foreshard {
namespace {

using namespace fst;

constexpr int kZstdLevel = 3;

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

/// The values of one key and form, one behind the other.
struct ArgumentRun {
  std::size_t begin = 0, end = 0;
  std::int64_t key = 0;
  const std::vector<std::uint32_t>* rows = nullptr;
  const std::vector<std::int64_t>* numbers = nullptr;  // else texts
  const std::vector<std::uint32_t>* texts = nullptr;
};

class ArgumentRuns {
 public:
  explicit ArgumentRuns(const SliceArguments& arguments) {
    std::int64_t key = arguments.texts.size();
    for (const SliceArguments::Column& column : arguments.columns) {
      add({0, 0, key, &column.number_rows, &column.numbers, nullptr});
      add({0, 0, key, &column.text_rows, nullptr, &column.texts});
      ++key;
    }
  }
  std::size_t size() const { return runs_.empty() ? 0 : runs_.back().end; }

  /// Rows are asked in order, most often.
  const ArgumentRun& run_of(std::size_t i) const {
    if (i < runs_[at_].begin || i >= runs_[at_].end) {
      const auto after =
          std::partition_point(runs_.begin(), runs_.end(), [&](const ArgumentRun& run) { return run.end <= i; });
      at_ = static_cast<std::size_t>(after - runs_.begin());
    }
    return runs_[at_];
  }

 private:
  void add(ArgumentRun run) {
    if (run.rows->empty()) return;
    run.begin = size();
    run.end = run.begin + run.rows->size();
    runs_.push_back(run);
  }
  std::vector<ArgumentRun> runs_;
  mutable std::size_t at_ = 0;
};

void write_arguments(Writer& writer, const SliceArguments& arguments, std::size_t spans) {
  if (arguments.empty()) return;
  const std::size_t texts = arguments.texts.size();
  writer.integers(Table::Spans, 11, spans, true, [&](std::size_t i) {
    const std::uint32_t row = arguments.row_of(SpanId(i));
    return row == SliceArguments::kNone ? std::int64_t{-1} : std::int64_t{row};
  });
  writer.texts(Table::ArgumentTexts, 0, texts + arguments.columns.size(), [&](std::size_t i) {
    return i < texts ? arguments.texts[static_cast<std::uint32_t>(i)]
                     : std::string_view(arguments.columns[i - texts].key);
  });
  const ArgumentRuns runs(arguments);
  const auto column = [&](std::size_t index, bool delta, const auto& get) {
    writer.integers(Table::Arguments, index, runs.size(), delta, [&](std::size_t i) {
      const ArgumentRun& run = runs.run_of(i);
      return std::int64_t{get(run, i - run.begin)};
    });
  };
  column(0, false, [](const ArgumentRun& run, std::size_t) { return run.key; });
  column(1, true, [](const ArgumentRun& run, std::size_t i) { return (*run.rows)[i]; });
  column(2, false, [](const ArgumentRun& run, std::size_t) { return run.texts != nullptr ? 1 : 0; });
  column(3, true, [](const ArgumentRun& run, std::size_t i) {
    return run.texts != nullptr ? std::int64_t{(*run.texts)[i]} : (*run.numbers)[i];
  });
}

}  // namespace

std::string fst_bytes(const Timeline& t, const SliceArguments& arguments) {
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
  write_arguments(writer, arguments, t.spans.size());
  return writer.finish();
}

Result<void> write_fst(const Timeline& timeline, const std::string& path, const SliceArguments& arguments) {
  auto file = PackedOutput::create(path);
  if (!file) return fail(file.error());
  auto written = file->write(fst_bytes(timeline, arguments));
  if (!written) return written;
  return file->close();
}

}  // namespace foreshard
