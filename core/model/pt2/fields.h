// JSON of a .pt2 archive through simdjson: bounded parsing, and getters that stop at the first error with its place.
//
// Private to the reader (it includes simdjson). A Pt2Field knows where it stands, so that an error names
// "graph_module.graph.nodes[3].target" though no path is kept while reading.
#pragma once

#include <simdjson.h>

#include <string>
#include <string_view>

#include "core/model/pt2/archive.h"
#include "core/result.h"

namespace foreshard {

struct Pt2Field {
  simdjson::dom::element value;
  const Pt2Field* parent = nullptr;  // alive while the field is read
  std::string_view key;              // of an object's member
  std::size_t index = 0;             // of an array's element

  std::string place() const;
};

class Pt2Fields {
 public:
  Error error;
  bool failed = false;
  std::string member_name;  // of the archive, before the place

  /// Notes the first error; always false.
  bool stop(ErrorCode code, const Pt2Field& at, std::string message, std::string expected, std::string got,
            std::string hint = {});

  bool member(const Pt2Field& object, std::string_view key, Pt2Field& out);
  /// False if it is absent or null, which is no error.
  bool optional(const Pt2Field& object, std::string_view key, Pt2Field& out);
  /// The one member of a union. An absent value (null) is "as_none". `kinds`: what it may be, for the message.
  bool variant(const Pt2Field& in, std::string_view& name, Pt2Field& out, std::string_view kinds);
  bool text(const Pt2Field& in, std::string& out);
  bool integer(const Pt2Field& in, std::int64_t& out);
  bool number(const Pt2Field& in, double& out);  // also the texts "Infinity", "-Infinity", "NaN"
  bool boolean(const Pt2Field& in, bool& out);

  template <class F>
  bool each(const Pt2Field& in, F f) {
    simdjson::dom::array list;
    if (in.value.get(list) != simdjson::SUCCESS) return wrong_type(in, "an array");
    std::size_t index = 0;
    for (const simdjson::dom::element value : list) {
      if (!f(Pt2Field{value, &in, {}, index++}) || failed) return false;
    }
    return true;
  }

  template <class F>
  bool each_member(const Pt2Field& in, F f) {
    simdjson::dom::object object;
    if (in.value.get(object) != simdjson::SUCCESS) return wrong_type(in, "an object");
    for (const auto& [key, value] : object) {
      if (!f(key, Pt2Field{value, &in, key, 0}) || failed) return false;
    }
    return true;
  }

 private:
  bool wrong_type(const Pt2Field& in, std::string_view expected);
  std::string where_;
  friend class Pt2Json;
  std::string file_;
};

/// One JSON text, parsed. REQUIRES that `text` and `name` outlive it.
class Pt2Json {
 public:
  bool parse(std::string& text, const std::string& name, const std::string& file, const Pt2Limits& limits,
             Pt2Fields& fields);
  Pt2Field top() const { return top_; }

 private:
  simdjson::dom::parser parser_;
  Pt2Field top_;
};

}  // namespace foreshard
