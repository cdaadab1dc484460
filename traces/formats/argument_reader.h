// Gathers the arguments of slices into columns while the file is still being read: their text is handed over in
// batches, and a thread of its own takes it apart. Private to the readers of Chrome JSON.
//
// take() and finish() are for one thread. What is no JSON object gives the keys before the damage.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "traces/timeline/slice_arguments.h"

namespace foreshard {

/// Texts to columns; the next row's number is how many were taken. One thread.
class ArgumentColumns {
 public:
  ArgumentColumns();
  /// `object`: "{...}" as it stands; `skip_own`: without the keys that the fields of a Span hold.
  void add(std::string_view object, bool skip_own);
  SliceArguments finish();
  std::int64_t dropped() const { return dropped_; }  // arguments beyond kMostKeys keys

 private:
  std::size_t column_of(std::string_view key);
  void value(std::size_t column, std::string_view token);
  std::uint32_t text(std::string_view token);
  void grow();

  SliceArguments all_;
  std::unordered_map<std::string, std::size_t> column_of_;
  std::vector<std::size_t> behind_;  // by column: the one that stood behind it last
  std::size_t last_ = 0;
  std::vector<std::uint32_t> slots_;  // of a hash table of texts: their places + 1
  std::vector<std::uint64_t> hashes_;
  std::uint32_t row_ = 0;
  std::int64_t dropped_ = 0;
};

class ArgumentReader {
 public:
  ArgumentReader() = default;
  ~ArgumentReader();
  ArgumentReader(const ArgumentReader&) = delete;
  ArgumentReader& operator=(const ArgumentReader&) = delete;

  std::uint32_t take(std::string_view object, bool own);  // its row
  std::uint64_t bytes() const { return taken_bytes_; }
  SliceArguments finish();
  std::int64_t dropped() const { return columns_.dropped(); }  // after finish()

 private:
  struct Piece {
    std::uint32_t end = 0;
    bool own = false;
  };
  struct Batch {
    std::string text;
    std::vector<Piece> pieces;
  };
  void hand_over();
  void work();
  void stop();

  Batch batch_;
  std::uint32_t rows_ = 0;
  std::uint64_t taken_bytes_ = 0;
  std::thread worker_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Batch> waiting_;
  bool ended_ = false;
  ArgumentColumns columns_;
};

/// Keys that a timeline of our own writes for the fields of a Span.
bool is_span_field(std::string_view key);

}  // namespace foreshard
