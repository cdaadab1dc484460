#include "traces/timeline/slice_arguments.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <unordered_map>

namespace foreshard {
namespace {

constexpr std::size_t kBlockBytes = 1U << 20U;

std::optional<std::size_t> place_of(const std::vector<std::uint32_t>& rows, std::uint32_t row) {
  const auto found = std::lower_bound(rows.begin(), rows.end(), row);
  if (found == rows.end() || *found != row) return std::nullopt;
  return static_cast<std::size_t>(found - rows.begin());
}

}  // namespace

std::uint32_t TextStore::add(std::string_view text) {
  if (text.size() > room_) {
    const std::size_t size = std::max(kBlockBytes, text.size());
    blocks_.push_back(std::shared_ptr<char[]>(new char[size]));
    next_ = blocks_.back().get();
    room_ = size;
  }
  if (!text.empty()) std::memcpy(next_, text.data(), text.size());
  views_.emplace_back(next_, text.size());
  next_ += text.size();
  room_ -= text.size();
  bytes_ += text.size();
  return size() - 1;
}

std::uint32_t TextStore::append(const TextStore& other) {
  const std::uint32_t first = size();
  // The own last block is full from here on: another copy may be writing to the other's.
  blocks_.insert(blocks_.end(), other.blocks_.begin(), other.blocks_.end());
  views_.insert(views_.end(), other.views_.begin(), other.views_.end());
  room_ = 0;
  bytes_ += other.bytes_;
  return first;
}

std::string SliceArgument::words() const {
  if (number) return std::to_string(*number);
  if (!json.starts_with('"')) return std::string(json);
  const auto parsed = nlohmann::json::parse(json, nullptr, false);
  if (parsed.is_string()) return parsed.get<std::string>();
  return std::string(json.substr(1, json.size() < 2 ? 0 : json.size() - 2));
}

std::optional<SliceArgument> SliceArguments::value(const Column& column, std::uint32_t row) const {
  if (const auto at = place_of(column.number_rows, row)) return SliceArgument{column.key, column.numbers[*at], {}};
  if (const auto at = place_of(column.text_rows, row))
    return SliceArgument{column.key, std::nullopt, texts[column.texts[*at]]};
  return std::nullopt;
}

std::uint32_t SliceArguments::row_of(SpanId span) const {
  return span.valid() && span.index() < row_of_span.size() ? row_of_span[span.index()] : kNone;
}

std::vector<SliceArgument> SliceArguments::of(SpanId span) const {
  std::vector<SliceArgument> all;
  const std::uint32_t row = row_of(span);
  if (row == kNone) return all;
  for (const Column& column : columns) {
    if (auto found = value(column, row)) all.push_back(*found);
  }
  return all;
}

std::optional<SliceArgument> SliceArguments::of(SpanId span, std::string_view key) const {
  const std::uint32_t row = row_of(span);
  if (row == kNone) return std::nullopt;
  for (const Column& column : columns) {
    if (column.key == key) return value(column, row);
  }
  return std::nullopt;
}

SliceArguments SliceArguments::of_spans(const std::vector<SpanId>& spans) const {
  SliceArguments part;
  if (empty()) return part;
  std::vector<std::uint32_t> rows;  // of this, ascending: a span's place among them is its row there
  for (const SpanId span : spans)
    if (const std::uint32_t row = row_of(span); row != kNone) rows.push_back(row);
  std::sort(rows.begin(), rows.end());
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  const auto placed = [&](std::uint32_t row) {
    const auto place = place_of(rows, row);
    return place ? static_cast<std::uint32_t>(*place) : kNone;
  };
  for (const SpanId span : spans) part.row_of_span.push_back(placed(row_of(span)));
  std::unordered_map<std::uint32_t, std::uint32_t> text_at;
  for (const Column& column : columns) {
    Column kept{column.key, {}, {}, {}, {}};
    for (std::size_t i = 0; i < column.number_rows.size(); ++i) {
      const std::uint32_t row = placed(column.number_rows[i]);
      if (row == kNone) continue;
      kept.number_rows.push_back(row);
      kept.numbers.push_back(column.numbers[i]);
    }
    for (std::size_t i = 0; i < column.text_rows.size(); ++i) {
      const std::uint32_t row = placed(column.text_rows[i]);
      if (row == kNone) continue;
      const auto [text, fresh] = text_at.try_emplace(column.texts[i], part.texts.size());
      if (fresh) part.texts.add(texts[column.texts[i]]);
      kept.text_rows.push_back(row);
      kept.texts.push_back(text->second);
    }
    if (!kept.number_rows.empty() || !kept.text_rows.empty()) part.columns.push_back(std::move(kept));
  }
  return part;
}

void SliceArguments::append(const SliceArguments& other, std::size_t spans, std::size_t other_spans) {
  std::uint32_t rows = 0;
  for (const std::uint32_t row : row_of_span) {
    if (row != kNone) rows = std::max(rows, row + 1);
  }
  for (const Column& column : columns) {  // slices that were left out have rows too
    for (const auto* own : {&column.number_rows, &column.text_rows})
      if (!own->empty()) rows = std::max(rows, own->back() + 1);
  }
  row_of_span.resize(spans, kNone);
  const std::uint32_t first_text = texts.append(other.texts);
  for (std::size_t i = 0; i < other_spans; ++i) {
    const std::uint32_t row = other.row_of(SpanId(i));
    row_of_span.push_back(row == kNone ? kNone : rows + row);
  }
  for (const Column& from : other.columns) {
    auto to = std::find_if(columns.begin(), columns.end(), [&](const Column& c) { return c.key == from.key; });
    if (to == columns.end()) {
      columns.emplace_back();
      to = columns.end() - 1;
      to->key = from.key;
    }
    for (const std::uint32_t row : from.number_rows) to->number_rows.push_back(rows + row);
    to->numbers.insert(to->numbers.end(), from.numbers.begin(), from.numbers.end());
    for (const std::uint32_t row : from.text_rows) to->text_rows.push_back(rows + row);
    for (const std::uint32_t text : from.texts) to->texts.push_back(first_text + text);
  }
}

}  // namespace foreshard
