#include "traces/formats/kineto.h"

#include <fmt/core.h>
#include <simdjson.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>

#include "traces/encodings/json_events.h"
#include "traces/formats/chrome_slices.h"
#include "traces/formats/kineto_events.h"

namespace foreshard {
namespace {

namespace od = simdjson::ondemand;

/// Arrows between calls and kernels repeat what the correlation numbers say.
bool is_repeated_arrow(const ChromeEvent& event) {
  return (event.phase == 's' || event.phase == 'f' || event.phase == 't') &&
         (event.category == R"("ac2g")" || event.category == R"("async_gpu")" ||
          event.category == R"("async_cpu_to_gpu")");
}

/// Operators, frames and ranges are most of a file, and their arguments its bulk: they are only kept, by another
/// thread.
bool arguments_unread(const ChromeEvent& event) {
  if (event.phase != 'X' || event.category.empty() || event.name.empty()) return false;
  return (event.category == R"("cpu_op")" && event.name != "record_param_comms") ||
         event.category == R"("python_function")" || event.category == R"("user_annotation")" ||
         event.category == R"("gpu_user_annotation")";
}

std::string_view raw_text(std::string_view token) {
  while (!token.empty() && static_cast<unsigned char>(token.back()) <= ' ') token.remove_suffix(1);
  return token;
}

/// Takes events apart; false if one cannot be read as JSON. `each` gets every whole one.
class EventParser {
 public:
  template <class Each>
  bool parse(std::string_view array, std::size_t capacity, const Each& each) {
    od::document document;
    if (parser_.iterate(simdjson::padded_string_view(array.data(), array.size(), capacity)).get(document)) return false;
    od::array events;
    if (document.get_array().get(events)) return false;
    for (auto element : events) {
      od::object object;
      if (element.get_object().get(object)) return false;
      event_.clear();
      if (!take(object)) return false;
      each(event_);
    }
    return true;
  }

 private:
  bool take(od::object& object) {
    for (auto field : object) {
      od::raw_json_string key;
      if (field.key().get(key)) return false;
      od::value value = field.value();
      switch (key.raw()[0]) {
        case 'p':
          if (key.unsafe_is_equal("ph")) {
            const std::string_view token = raw_text(value.raw_json_token());
            event_.phase = token.size() >= 3 ? token[1] : '?';
          } else if (key.unsafe_is_equal("pid")) {
            event_.process = raw_text(value.raw_json_token());
          }
          break;
        case 'c':
          if (key.unsafe_is_equal("cat")) event_.category = raw_text(value.raw_json_token());
          break;
        case 'n':
          if (key.unsafe_is_equal("name") && value.get_string().get(event_.name)) event_.name = "unnamed";
          break;
        case 't':
          if (key.unsafe_is_equal("ts")) event_.time = value.raw_json_token();
          if (key.unsafe_is_equal("tid")) event_.thread = raw_text(value.raw_json_token());
          break;
        case 'd':
          if (key.unsafe_is_equal("dur")) event_.duration = value.raw_json_token();
          break;
        case 'i':
          if (key.unsafe_is_equal("id")) event_.id = raw_text(value.raw_json_token());
          break;
        case 'a':
          if (key.unsafe_is_equal("args") && !is_repeated_arrow(event_) && !take_arguments(value)) return false;
          break;
        default: break;
      }
    }
    return true;
  }

  bool take_arguments(od::value& value) {
    od::object arguments;
    if (value.get_object().get(arguments)) return true;  // some writers put a text or null here
    if (arguments.raw_json().get(event_.all_arguments)) return false;
    if (arguments_unread(event_)) return true;
    if (arguments.reset().error()) return false;
    for (auto field : arguments) {
      od::raw_json_string key;
      if (field.key().get(key)) return false;
      od::value content = field.value();
      const char* end = key.raw();
      while (*end != '"') ++end;  // no known key has escapes
      event_.arguments.push_back({{key.raw(), static_cast<std::size_t>(end - key.raw())}, content.raw_json_token()});
    }
    return true;
  }

  od::parser parser_;
  ChromeEvent event_;
};

/// Control characters become spaces, bytes that are no UTF-8 question marks: then most broken names can be read.
std::string mended(std::string_view event) {
  std::string text(event);
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20) c = ' ';
  }
  if (!simdjson::validate_utf8(text.data(), text.size())) {
    for (char& c : text) {
      if (static_cast<unsigned char>(c) >= 0x80) c = '?';
    }
  }
  return text;
}

class KinetoReader {
 public:
  KinetoReader(ByteSource& source, const std::string& file, const OpenOptions& options)
      : source_(source), options_(options), slices_(file) {}

  Result<OpenedTrace> read() {
    JsonEvents events(source_);
    EventChunk chunk;
    while (events.next(chunk)) {
      take(chunk);
      if (options_.progress && !options_.progress(source_.fraction())) return cancelled();
      if (slices_.bytes() > options_.memory_limit) {
        slices_.note(fmt::format("the rest of the file is left out: its slices need more than {} bytes of memory",
                                 options_.memory_limit));
        return slices_.finish({});
      }
    }
    if (!events.found_events()) return no_events();
    if (events.truncated() || !source_.damage().empty()) {
      const std::string damage = source_.damage();
      slices_.note(fmt::format("the file breaks off after {} bytes{}{}: shown is what is there", events.bytes_read(),
                               damage.empty() ? "" : ": ", damage));
    }
    if (events.stray_values() > 0)
      slices_.note(fmt::format("{} values among the events are no events: left out", events.stray_values()));
    if (events.unclosed_events() > 0)
      slices_.note(fmt::format("{} events never end: left out", events.unclosed_events()));
    return slices_.finish(events.beside());
  }

 private:
  void take(const EventChunk& chunk) {
    std::size_t whole = 0;
    const auto each = [&](const ChromeEvent& event) {
      ++whole;
      slices_.take(event);
    };
    if (parser_.parse(chunk.text(), chunk.bytes.size() - chunk.begin, each)) return;
    // One of the events is broken: the ones behind it are taken one by one.
    const std::vector<std::string_view> events = split_events(chunk.text());
    for (std::size_t i = whole; i < events.size(); ++i) take_alone(events[i]);
  }

  void take_alone(std::string_view event) {
    const auto each = [&](const ChromeEvent& one) { slices_.take(one); };
    std::string array = fmt::format("[{}]", event);
    for (int attempt = 0; attempt < 2; ++attempt) {
      const std::size_t size = array.size();
      array.append(simdjson::SIMDJSON_PADDING, ' ');
      std::size_t before = slices_.taken();
      if (parser_.parse(std::string_view(array).substr(0, size), array.size(), each)) {
        if (attempt > 0) slices_.finding("events with broken characters, mended", event);
        return;
      }
      if (slices_.taken() != before) return;
      array = fmt::format("[{}]", mended(event));
    }
    slices_.finding("events that are no valid JSON: left out", event);
  }

  tl::unexpected<Error> cancelled() const {
    Error error;
    error.code = ErrorCode::Usage;
    error.message = "reading was stopped";
    error.expected = "to be read to its end";
    error.file = slices_.file();
    return fail(std::move(error));
  }

  tl::unexpected<Error> no_events() const {
    Error error;
    error.code = ErrorCode::BadSyntax;
    error.message = "this is no recording that can be read";
    error.file = slices_.file();
    error.expected = "an array of Chrome events, or an object with \"traceEvents\"";
    error.got = "neither";
    error.hint = "docs/traces.md lists the formats";
    return fail(std::move(error));
  }

  ByteSource& source_;
  const OpenOptions& options_;
  ChromeSlices slices_;
  EventParser parser_;
};

}  // namespace

Result<OpenedTrace> read_chrome_json(ByteSource& source, const std::string& file, const OpenOptions& options) {
  return KinetoReader(source, file, options).read();
}

}  // namespace foreshard
