// What a recording says of its slices beside the fields of a Span: shapes, grids, registers, sequence numbers.
//
// In columns, one a key: a question about one key reads only that key, and about one slice O(keys log slices). Values
// are JSON as it stood in the file; whole numbers are numbers. A plain value; copies share the texts.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/timeline.h"

namespace foreshard {

/// Texts that never move, in blocks.
class TextStore {
 public:
  std::uint32_t add(std::string_view text);
  std::string_view operator[](std::uint32_t index) const { return views_[index]; }
  std::uint32_t size() const { return static_cast<std::uint32_t>(views_.size()); }
  std::uint64_t bytes() const { return bytes_; }

  /// The others' texts behind the own ones; returns the place of their first.
  std::uint32_t append(const TextStore& other);

 private:
  std::vector<std::shared_ptr<char[]>> blocks_;
  std::vector<std::string_view> views_;
  std::size_t room_ = 0;  // in the last block
  char* next_ = nullptr;
  std::uint64_t bytes_ = 0;
};

struct SliceArgument {
  std::string_view key;
  std::optional<std::int64_t> number;  // else the text is what stood there
  std::string_view json;               // "" of a number
  std::string words() const;           // a text without its quotes and escapes, a number in digits
};

struct SliceArguments {
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};
  static constexpr std::size_t kMostKeys = 4096;

  struct Column {
    std::string key;
    std::vector<std::uint32_t> number_rows;  // ascending
    std::vector<std::int64_t> numbers;
    std::vector<std::uint32_t> text_rows;  // ascending
    std::vector<std::uint32_t> texts;      // places in `texts`
  };
  std::vector<Column> columns;
  std::vector<std::uint32_t> row_of_span;  // kNone = nothing said; empty = of no span
  TextStore texts;

  bool empty() const { return columns.empty(); }
  std::uint32_t row_of(SpanId span) const;
  /// In the order of the columns.
  std::vector<SliceArgument> of(SpanId span) const;
  std::optional<SliceArgument> of(SpanId span, std::string_view key) const;
  std::optional<SliceArgument> value(const Column& column, std::uint32_t row) const;

  /// Of these spans alone, in this order; rows and texts of the others are left out.
  SliceArguments of_spans(const std::vector<SpanId>& spans) const;

  /// Arguments of several timelines whose spans stand behind each other. `spans`: how many there are before `other`'s.
  void append(const SliceArguments& other, std::size_t spans, std::size_t other_spans);
};

}  // namespace foreshard
