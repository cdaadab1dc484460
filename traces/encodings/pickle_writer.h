// Python's pickle format, protocol 2, as far as plain data needs it: numbers, texts, lists, dicts and tuples. Texts are
// written once and referred to afterwards, and so is whatever the caller remembers. Owned by one writer of a file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace foreshard {

class PickleWriter {
 public:
  PickleWriter() : out_("\x80\x02", 2) {}

  void integer(std::int64_t value);
  void boolean(bool value) { out_ += value ? '\x88' : '\x89'; }
  void text(std::string_view value);
  void pair(std::int64_t first, std::int64_t second);  // a tuple

  // A list's or dict's items (of a dict: key, value, key, value) stand between begin and end.
  void begin_list() { out_ += "]("; }
  void end_list() { out_ += 'e'; }
  void begin_dict() { out_ += "}("; }
  void end_dict() { out_ += 'u'; }

  /// The value written last, under a number by which recall() writes it again.
  std::uint32_t remember();
  void recall(std::uint32_t remembered);

  /// REQUIRES one value in all. The bytes.
  std::string finish() && {
    out_ += '.';
    return std::move(out_);
  }

 private:
  void little_endian(std::uint64_t value, int bytes);

  std::string out_;
  std::unordered_map<std::string, std::uint32_t> texts_;
  std::uint32_t remembered_ = 0;
};

}  // namespace foreshard
