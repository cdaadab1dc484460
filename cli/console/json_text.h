// JSON written straight into a string: commas and indentation are kept here, so that verbs say only keys and values.
//
// Keys stand in the order in which they are written: equal input, equal bytes. Objects down to `indented` levels break
// lines, deeper ones stay on one line.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace foreshard::cli {

class JsonText {
 public:
  explicit JsonText(int indented = 2) : indented_(indented) {}

  JsonText& begin_object() { return open('{'); }
  JsonText& end_object() { return close('}'); }
  JsonText& begin_array() { return open('['); }
  JsonText& end_array() { return close(']'); }

  JsonText& key(std::string_view name);
  JsonText& value(std::string_view text);
  JsonText& value(const char* text) { return value(std::string_view(text)); }
  JsonText& value(bool flag);
  JsonText& value(double number);  // null if it is no finite number
  template <class T, std::enable_if_t<std::is_integral_v<T> && !std::is_same_v<T, bool>, int> = 0>
  JsonText& value(T number) {
    return integer(static_cast<std::int64_t>(number));
  }
  JsonText& null();

  template <class T>
  JsonText& field(std::string_view name, const T& v) {
    return key(name).value(v);
  }

  /// The text with a line end. REQUIRES everything to be closed.
  std::string take();

 private:
  JsonText& open(char bracket);
  JsonText& close(char bracket);
  JsonText& integer(std::int64_t number);
  void separate();
  void new_line();

  std::string out_;
  std::vector<bool> empty_;  // per open bracket: nothing in it yet
  bool after_key_ = false;
  int indented_;
};

}  // namespace foreshard::cli
