#include "traces/formats/argument_reader.h"

#include <algorithm>
#include <array>
#include <functional>
#include <optional>

#include "traces/encodings/json_events.h"

namespace foreshard {
namespace {

constexpr std::size_t kBatchBytes = 1U << 19U;
constexpr std::size_t kMostWaiting = 8;
constexpr std::size_t kNoColumn = ~std::size_t{0};
constexpr std::size_t kMostDigits = 18;

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

/// A whole number whose digits are what it would be written with; nothing else.
std::optional<std::int64_t> whole_number(std::string_view token) {
  const bool negative = token.starts_with('-');
  std::string_view digits = token.substr(negative ? 1 : 0);
  if (digits.empty() || digits.size() > kMostDigits) return std::nullopt;
  if (digits[0] == '0' && (digits.size() > 1 || negative)) return std::nullopt;
  std::int64_t value = 0;
  for (const char c : digits) {
    if (c < '0' || c > '9') return std::nullopt;
    value = value * 10 + (c - '0');
  }
  return negative ? -value : value;
}

}  // namespace

bool is_span_field(std::string_view key) {
  constexpr std::array<std::string_view, 6> kFields{"instruction", "unit", "phase", "communicator", "bytes", "op"};
  return std::find(kFields.begin(), kFields.end(), key) != kFields.end();
}

ArgumentColumns::ArgumentColumns() : slots_(1U << 12U) {}

std::size_t ArgumentColumns::column_of(std::string_view key) {
  // Events of one kind have the same keys in the same order.
  if (last_ < behind_.size()) {
    const std::size_t guess = behind_[last_];
    if (guess < all_.columns.size() && all_.columns[guess].key == key) return guess;
  }
  const auto found = column_of_.find(std::string(key));
  std::size_t column = kNoColumn;
  if (found != column_of_.end()) {
    column = found->second;
  } else if (all_.columns.size() < SliceArguments::kMostKeys) {
    column = all_.columns.size();
    all_.columns.emplace_back();
    all_.columns.back().key = key;
    behind_.push_back(0);
    column_of_.emplace(key, column);
  }
  if (column != kNoColumn && last_ < behind_.size()) behind_[last_] = column;
  return column;
}

void ArgumentColumns::grow() {
  std::vector<std::uint32_t> larger(slots_.size() * 2);
  for (std::uint32_t text = 0; text < hashes_.size(); ++text) {
    std::size_t slot = hashes_[text] & (larger.size() - 1);
    while (larger[slot] != 0) slot = (slot + 1) & (larger.size() - 1);
    larger[slot] = text + 1;
  }
  slots_ = std::move(larger);
}

std::uint32_t ArgumentColumns::text(std::string_view token) {
  const std::uint64_t hash = std::hash<std::string_view>{}(token);
  std::size_t slot = hash & (slots_.size() - 1);
  for (; slots_[slot] != 0; slot = (slot + 1) & (slots_.size() - 1)) {
    const std::uint32_t known = slots_[slot] - 1;
    if (hashes_[known] == hash && all_.texts[known] == token) return known;
  }
  const std::uint32_t place = all_.texts.add(token);
  hashes_.push_back(hash);
  slots_[slot] = place + 1;
  if (2 * hashes_.size() > slots_.size()) grow();
  return place;
}

void ArgumentColumns::value(std::size_t index, std::string_view token) {
  SliceArguments::Column& column = all_.columns[index];
  const auto twice = [&](const std::vector<std::uint32_t>& rows) { return !rows.empty() && rows.back() == row_; };
  if (twice(column.number_rows) || twice(column.text_rows)) return;  // a key that stands twice: the first counts
  if (const auto number = whole_number(token)) {
    column.number_rows.push_back(row_);
    column.numbers.push_back(*number);
    return;
  }
  const bool same = !column.texts.empty() && all_.texts[column.texts.back()] == token;
  const std::uint32_t place = same ? column.texts.back() : text(token);
  column.text_rows.push_back(row_);
  column.texts.push_back(place);
}

void ArgumentColumns::add(std::string_view object, bool skip_own) {
  const char *p = object.data() + 1, *end = object.data() + object.size();
  last_ = 0;
  for (; object.starts_with('{');) {
    while (p < end && (is_space(*p) || *p == ',')) ++p;
    if (p >= end || *p != '"') break;
    const char* key_end = json_value_end(p, end);
    if (key_end == nullptr) break;
    const std::string_view key(p + 1, static_cast<std::size_t>(key_end - p) - 2);
    for (p = key_end; p < end && (is_space(*p) || *p == ':'); ++p) {
    }
    if (p >= end) break;
    const char* stop = json_value_end(p, end);
    if (stop == nullptr || stop == p) break;
    if (!(skip_own && is_span_field(key))) {
      const std::size_t column = column_of(key);
      if (column == kNoColumn) {
        ++dropped_;
      } else {
        value(column, {p, static_cast<std::size_t>(stop - p)});
        last_ = column;
      }
    }
    p = stop;
  }
  ++row_;
}

SliceArguments ArgumentColumns::finish() {
  for (SliceArguments::Column& column : all_.columns) {
    column.number_rows.shrink_to_fit(), column.numbers.shrink_to_fit();
    column.text_rows.shrink_to_fit(), column.texts.shrink_to_fit();
  }
  return std::move(all_);
}

ArgumentReader::~ArgumentReader() { stop(); }

std::uint32_t ArgumentReader::take(std::string_view object, bool own) {
  batch_.text.append(object);
  batch_.pieces.push_back({static_cast<std::uint32_t>(batch_.text.size()), own});
  taken_bytes_ += object.size();
  if (batch_.text.size() >= kBatchBytes) hand_over();
  return rows_++;
}

void ArgumentReader::hand_over() {
  if (!worker_.joinable()) worker_ = std::thread([this] { work(); });
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return waiting_.size() < kMostWaiting; });
  waiting_.push_back(std::move(batch_));
  batch_ = {};
  changed_.notify_all();
}

void ArgumentReader::work() {
  for (;;) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ended_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    const Batch batch = std::move(waiting_.front());
    waiting_.pop_front();
    changed_.notify_all();
    lock.unlock();
    std::uint32_t begin = 0;
    for (const Piece& piece : batch.pieces) {
      columns_.add(std::string_view(batch.text).substr(begin, piece.end - begin), piece.own);
      begin = piece.end;
    }
  }
}

void ArgumentReader::stop() {
  if (!worker_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    changed_.notify_all();
  }
  worker_.join();
}

SliceArguments ArgumentReader::finish() {
  if (!batch_.pieces.empty()) {
    if (worker_.joinable()) {
      hand_over();
    } else {  // a small file needs no thread
      waiting_.push_back(std::move(batch_));
      ended_ = true;
      work();
    }
  }
  stop();
  return columns_.finish();
}

}  // namespace foreshard
