#include "traces/encodings/json_events.h"

#include <algorithm>
#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace foreshard {
namespace {

constexpr std::size_t kChunkBytes = 1U << 19U;
constexpr std::size_t kLongestValue = 1U << 26U;  // an event or a value beside them; longer ones never ended
constexpr std::size_t kLongestBeside = 1U << 22U;
constexpr std::int64_t kMostUnclosed = 1'000;  // then the file counts as broken off

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

/// Next byte that ends a run of plain text in a string: a quote, a backslash or a control character.
const char* string_stop(const char* p, const char* end) {
#ifdef __SSE2__
  const __m128i quote = _mm_set1_epi8('"'), back = _mm_set1_epi8('\\'), control = _mm_set1_epi8(0x1f);
  for (; end - p >= 16; p += 16) {
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const __m128i hit = _mm_or_si128(_mm_or_si128(_mm_cmpeq_epi8(x, quote), _mm_cmpeq_epi8(x, back)),
                                     _mm_cmpeq_epi8(_mm_min_epu8(x, control), x));
    const auto mask = static_cast<unsigned>(_mm_movemask_epi8(hit));
    if (mask != 0) return p + __builtin_ctz(mask);
  }
#endif
  while (p < end && *p != '"' && *p != '\\' && static_cast<unsigned char>(*p) > 0x1f) ++p;
  return p;
}

/// Next quote or bracket of any kind, outside strings. '[' and '{' (']' and '}') differ in one bit only.
const char* structure_stop(const char* p, const char* end) {
#ifdef __SSE2__
  const __m128i quote = _mm_set1_epi8('"'), fold = _mm_set1_epi8(0x20), open = _mm_set1_epi8('{'),
                close = _mm_set1_epi8('}');
  for (; end - p >= 16; p += 16) {
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const __m128i folded = _mm_or_si128(x, fold);
    const __m128i hit = _mm_or_si128(_mm_cmpeq_epi8(x, quote),
                                     _mm_or_si128(_mm_cmpeq_epi8(folded, open), _mm_cmpeq_epi8(folded, close)));
    const auto mask = static_cast<unsigned>(_mm_movemask_epi8(hit));
    if (mask != 0) return p + __builtin_ctz(mask);
  }
#endif
  while (p < end && *p != '"' && (*p | 0x20) != '{' && (*p | 0x20) != '}') ++p;
  return p;
}

/// Behind the string that opens at p; null if it is not all there. A line break ends it: JSON has none in strings.
const char* after_string(const char* p, const char* end) {
  for (++p; (p = string_stop(p, end)) < end; ++p) {
    if (*p == '"') return p + 1;
    if (*p == '\n' || *p == '\r') return p;
    if (*p == '\\') ++p;
  }
  return nullptr;
}

/// Behind the value that begins at p; null if it is not all there.
const char* after_value(const char* p, const char* end) {
  if (*p == '"') return after_string(p, end);
  if (*p != '{' && *p != '[') {
    while (p < end && *p != ',' && *p != '}' && *p != ']' && !is_space(*p)) ++p;
    return p < end ? p : nullptr;
  }
  int depth = 0;
  while ((p = structure_stop(p, end)) < end) {
    if (*p == '"') {
      p = after_string(p, end);
      if (p == nullptr) return nullptr;
      continue;
    }
    depth += (*p | 0x20) == '{' ? 1 : -1;
    ++p;
    if (depth == 0) return p;
  }
  return nullptr;
}

}  // namespace

const char* json_value_end(const char* p, const char* end) { return after_value(p, end); }

void JsonEvents::fill(EventChunk& chunk) {
  if (chunk.bytes.size() < chunk_bytes_ + EventChunk::kPadding) chunk.bytes.resize(chunk_bytes_ + EventChunk::kPadding);
  if (size_ + EventChunk::kPadding >= chunk.bytes.size()) chunk.bytes.resize(2 * chunk.bytes.size());
  const std::size_t limit = chunk.bytes.size() - EventChunk::kPadding;
  while (!ended_ && size_ < limit) {
    const std::size_t got = source_.read(chunk.bytes.data() + size_, limit - size_);
    ended_ = got == 0;
    size_ += got;
  }
}

void JsonEvents::drop(EventChunk& chunk, std::size_t count) {
  if (count == 0) return;
  std::memmove(chunk.bytes.data() + 1, chunk.bytes.data() + 1 + count, size_ - 1 - count);
  size_ -= count;
  at_ -= count;
  dropped_ += count;
}

bool JsonEvents::next(EventChunk& chunk) {
  chunk.begin = chunk.end = chunk.events = 0;
  if (chunk.bytes.size() < carry_.size() + 1 + chunk_bytes_ / 2)
    chunk.bytes.resize(carry_.size() + 1 + chunk_bytes_ + EventChunk::kPadding);
  chunk_bytes_ = std::min(kChunkBytes, 2 * chunk_bytes_);
  if (!carry_.empty()) std::memcpy(chunk.bytes.data() + 1, carry_.data(), carry_.size());
  size_ = 1 + carry_.size();
  at_ = 1;
  carry_.clear();
  while (state_ != State::Done) {
    fill(chunk);
    advance(chunk);
    if (chunk.events > 0) break;
    if (state_ == State::Done) break;
    if (ended_ || size_ - at_ > kLongestValue) {
      if (state_ == State::Events && at_ < size_ && give_up_event(chunk)) continue;
      truncated_ = truncated_ || !(state_ == State::Events && bare_ && at_ >= size_);
      state_ = State::Done;
      break;
    }
    drop(chunk, at_ - 1);
  }
  if (chunk.events == 0) return false;
  finish(chunk);
  return true;
}

void JsonEvents::finish(EventChunk& chunk) {
  carry_.assign(chunk.bytes.begin() + static_cast<std::ptrdiff_t>(at_),
                chunk.bytes.begin() + static_cast<std::ptrdiff_t>(size_));
  chunk.offset = dropped_ + chunk.begin - 1;
  dropped_ += at_ - 1;
  size_ -= at_ - 1;
  chunk.bytes[chunk.begin] = '[';
  chunk.bytes[chunk.end] = ']';
  ++chunk.end;
}

void JsonEvents::advance(EventChunk& chunk) {
  for (;;) {
    switch (state_) {
      case State::Start: {
        while (at_ < size_ && (is_space(chunk.bytes[at_]) || static_cast<unsigned char>(chunk.bytes[at_]) >= 0xbb))
          ++at_;
        if (at_ >= size_) return;
        const char c = chunk.bytes[at_++];
        bare_ = found_events_ = c == '[';
        state_ = c == '[' ? State::Events : c == '{' ? State::Object : State::Done;
        break;
      }
      case State::Object:
        if (!advance_object(chunk)) return;
        break;
      case State::Events:
        if (!advance_events(chunk)) return;
        break;
      case State::Done: return;
    }
  }
}

/// One key and its value; false if they are not all there yet.
bool JsonEvents::advance_object(EventChunk& chunk) {
  const char *base = chunk.bytes.data(), *end = base + size_, *p = base + at_;
  const auto skip = [&] {
    while (p < end && (is_space(*p) || *p == ',')) ++p;
    return p < end;
  };
  if (!skip()) return false;
  if (*p == '}') {
    state_ = State::Done;
    return true;
  }
  if (*p != '"') {  // no key: nothing behind it can be trusted
    truncated_ = true;
    state_ = State::Done;
    return true;
  }
  const char* key_end = after_string(p, end);
  if (key_end == nullptr) return false;
  const bool closed = key_end - p > 1 && key_end[-1] == '"';  // else a line break ended it
  std::string key(p + 1, closed ? key_end - 1 : key_end);
  for (p = key_end; p < end && (is_space(*p) || *p == ':'); ++p) {
  }
  if (p >= end) return false;
  if (key == "traceEvents" && *p == '[') {
    found_events_ = true;
    state_ = State::Events;
    at_ = static_cast<std::size_t>(p + 1 - base);
    return true;
  }
  const char* value_end = after_value(p, end);
  if (value_end == nullptr) return false;
  if (static_cast<std::size_t>(value_end - p) <= kLongestBeside) beside_[std::move(key)] = std::string(p, value_end);
  at_ = static_cast<std::size_t>(value_end - base);
  return true;
}

/// All whole events of the chunk; false when the chunk is full or its last event is not all there.
bool JsonEvents::advance_events(EventChunk& chunk) {
  const char *base = chunk.bytes.data(), *end = base + size_;
  for (;;) {
    const char* p = base + at_;
    while (p < end && (is_space(*p) || *p == ',')) ++p;
    if (p >= end) {
      if (chunk.events == 0) at_ = size_;
      return false;
    }
    if (*p == ']') {
      if (chunk.events > 0) return false;
      at_ = static_cast<std::size_t>(p + 1 - base);
      state_ = bare_ ? State::Done : State::Object;
      return true;
    }
    const char* stop = after_value(p, end);
    if (*p != '{') {
      if (chunk.events > 0 || stop == nullptr) return false;
      ++stray_values_;
      at_ = static_cast<std::size_t>(std::max(stop, p + 1) - base);
      continue;
    }
    if (stop == nullptr) {
      if (chunk.events == 0) at_ = static_cast<std::size_t>(p - base);
      return false;
    }
    if (chunk.events == 0) chunk.begin = static_cast<std::size_t>(p - base) - 1;
    chunk.end = at_ = static_cast<std::size_t>(stop - base);
    ++chunk.events;
  }
}

/// An event that never ends (a quote too many): goes on at the next place that looks like one.
bool JsonEvents::give_up_event(const EventChunk& chunk) {
  if (unclosed_events_ >= kMostUnclosed) return false;
  const char *base = chunk.bytes.data(), *end = base + size_;
  for (const char* p = base + at_ + 1; p < end; ++p) {
    p = static_cast<const char*>(std::memchr(p, '}', static_cast<std::size_t>(end - p)));
    if (p == nullptr) break;
    const char* q = p + 1;
    bool comma = false;
    for (; q < end && (is_space(*q) || *q == ','); ++q) comma = comma || *q == ',';
    if (!comma || q >= end || *q != '{') continue;
    ++unclosed_events_;
    at_ = static_cast<std::size_t>(q - base);
    return true;
  }
  return false;
}

std::vector<std::string_view> split_events(std::string_view array) {
  std::vector<std::string_view> events;
  const char *p = array.data() + 1, *end = array.data() + array.size();
  while (p < end) {
    while (p < end && (is_space(*p) || *p == ',')) ++p;
    if (p >= end || *p != '{') break;
    const char* stop = after_value(p, end);
    if (stop == nullptr) break;
    events.emplace_back(p, static_cast<std::size_t>(stop - p));
    p = stop;
  }
  return events;
}

}  // namespace foreshard
