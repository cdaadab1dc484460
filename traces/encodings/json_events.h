// Cuts Chrome JSON (a bare array of events, or an object that holds "traceEvents") into chunks of whole events, however
// large the file is; the other values of the object are kept as text.
//
// It follows brackets and strings only: what stands in an event, the reader of events judges. A line break inside a
// string ends the string, so that one broken name does not swallow the rest. Source and chunk are the caller's; one
// thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "traces/encodings/byte_source.h"

namespace foreshard {

/// A JSON array of whole events: text() is "[{...},{...}]" with kPadding readable bytes behind it.
struct EventChunk {
  static constexpr std::size_t kPadding = 64;
  std::vector<char> bytes;
  std::size_t begin = 0, end = 0;
  std::size_t events = 0;
  std::uint64_t offset = 0;  // of text() in the unpacked file
  std::string_view text() const { return {bytes.data() + begin, end - begin}; }
};

class JsonEvents {
 public:
  explicit JsonEvents(ByteSource& source) : source_(source) {}

  /// False at the end. The chunk's memory is used again.
  bool next(EventChunk& chunk);

  /// After the end: the values beside the events, as JSON text by key.
  const std::map<std::string, std::string>& beside() const { return beside_; }

  /// No array of events was found: the file is something else.
  bool found_events() const { return found_events_; }

  /// The file broke off inside the events or before its last bracket.
  bool truncated() const { return truncated_; }
  std::uint64_t bytes_read() const { return dropped_ + size_; }
  std::int64_t stray_values() const { return stray_values_; }        // in the array, no objects
  std::int64_t unclosed_events() const { return unclosed_events_; }  // given up after they never ended

 private:
  enum class State { Start, Object, Events, Done };

  void fill(EventChunk& chunk);
  void drop(EventChunk& chunk, std::size_t count);
  void advance(EventChunk& chunk);
  bool advance_object(EventChunk& chunk);
  bool advance_events(EventChunk& chunk);
  bool give_up_event(const EventChunk& chunk);
  void finish(EventChunk& chunk);

  ByteSource& source_;
  std::vector<char> carry_;
  std::size_t chunk_bytes_ = 1U << 14U;  // grows: small files need little
  State state_ = State::Start;
  std::size_t at_ = 1, size_ = 1;  // in the chunk; byte 0 is room for a bracket
  std::uint64_t dropped_ = 0;      // bytes of the file before the chunk's byte 1
  bool ended_ = false, bare_ = false, found_events_ = false, truncated_ = false;
  std::int64_t stray_values_ = 0, unclosed_events_ = 0;
  std::map<std::string, std::string> beside_;
};

/// Behind the value (or key) that begins at p; null if it is not all there.
const char* json_value_end(const char* p, const char* end);

/// Ends of the objects in a chunk's text, for callers that must take them one by one: [begin, end) each.
std::vector<std::string_view> split_events(std::string_view array);

}  // namespace foreshard
