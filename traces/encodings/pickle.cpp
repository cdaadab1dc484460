#include "traces/encodings/pickle.h"

#include <fmt/core.h>

#include <cstring>

namespace foreshard {

using Type = PickleValue::Type;

// [Note: opcodes] Numbers and meanings are those of CPython's pickletools. A stack of values, marks on it, a memo.
class PickleReader {
 public:
  PickleReader(std::string_view bytes, const std::string& file, std::size_t max_values)
      : bytes_(bytes), file_(file), max_values_(max_values) {}

  Result<Pickle> read() {
    while (!stopped_) {
      if (at_ >= bytes_.size()) return fail(broken("the pickle ends before its last opcode", "STOP", "the end"));
      start_ = at_;
      const auto opcode = static_cast<unsigned char>(bytes_[at_++]);
      if (!step(opcode)) return fail(std::move(error_));
      if (pickle_.values_.size() > max_values_) {
        Error error = broken("the pickle holds too many values", fmt::format("at most {}", max_values_), "more");
        error.code = ErrorCode::TooLarge;
        return fail(std::move(error));
      }
    }
    return std::move(pickle_);
  }

 private:
  Error broken(std::string message, std::string expected, std::string got) const {
    Error error;
    error.code = ErrorCode::BadSyntax;
    error.message = std::move(message);
    error.file = file_;
    error.place = fmt::format("offset {}", start_);
    error.expected = std::move(expected);
    error.got = std::move(got);
    return error;
  }
  bool stop(std::string message, std::string expected = "a pickle as Python writes it", std::string got = {}) {
    error_ = broken(std::move(message), std::move(expected), std::move(got));
    return false;
  }

  bool step(unsigned char opcode) {
    switch (opcode) {
      case 0x80: return skip(1);                                                                  // PROTO
      case 0x95: return skip(8);                                                                  // FRAME
      case '.': return finish();                                                                  // STOP
      case '(': return marks_.push_back(stack_.size()), true;                                     // MARK
      case '0': return pop();                                                                     // POP
      case '1': return pop_mark();                                                                // POP_MARK
      case '2': return stack_.empty() ? short_stack() : push(stack_.back());                      // DUP
      case 'N': return push_value({});                                                            // NONE
      case 0x88: return push_integer(1, Type::Bool);                                              // NEWTRUE
      case 0x89: return push_integer(0, Type::Bool);                                              // NEWFALSE
      case 'J': return integer(4, true);                                                          // BININT
      case 'K': return integer(1, false);                                                         // BININT1
      case 'M': return integer(2, false);                                                         // BININT2
      case 0x8a: return long_integer(1);                                                          // LONG1
      case 0x8b: return long_integer(4);                                                          // LONG4
      case 'G': return real();                                                                    // BINFLOAT
      case 'U':                                                                                   // SHORT_BINSTRING
      case 'C':                                                                                   // SHORT_BINBYTES
      case 0x8c: return text(1);                                                                  // SHORT_BINUNICODE
      case 'T':                                                                                   // BINSTRING
      case 'B':                                                                                   // BINBYTES
      case 'X': return text(4);                                                                   // BINUNICODE
      case 0x8d:                                                                                  // BINUNICODE8
      case 0x8e: return text(8);                                                                  // BINBYTES8
      case ']':                                                                                   // EMPTY_LIST
      case ')':                                                                                   // EMPTY_TUPLE
      case 0x8f: return push_container(Type::List);                                               // EMPTY_SET
      case '}': return push_container(Type::Dict);                                                // EMPTY_DICT
      case 'l':                                                                                   // LIST
      case 't':                                                                                   // TUPLE
      case 0x91: return container_of_mark(Type::List);                                            // FROZENSET
      case 'd': return container_of_mark(Type::Dict);                                             // DICT
      case 0x85: return container_of(1);                                                          // TUPLE1
      case 0x86: return container_of(2);                                                          // TUPLE2
      case 0x87: return container_of(3);                                                          // TUPLE3
      case 'a': return put_into(Type::List, 1);                                                   // APPEND
      case 'e':                                                                                   // APPENDS
      case 0x90: return put_mark_into(Type::List);                                                // ADDITEMS
      case 's': return put_into(Type::Dict, 2);                                                   // SETITEM
      case 'u': return put_mark_into(Type::Dict);                                                 // SETITEMS
      case 'q': return memoize(1);                                                                // BINPUT
      case 'r': return memoize(4);                                                                // LONG_BINPUT
      case 0x94: return stack_.empty() ? short_stack() : (memo_.push_back(stack_.back()), true);  // MEMOIZE
      case 'h': return recall(1);                                                                 // BINGET
      case 'j': return recall(4);                                                                 // LONG_BINGET
      default: return refused(opcode);
    }
  }

  bool refused(unsigned char opcode) {
    constexpr std::string_view kCode = "cRbio\x81\x92\x93PQ\x82\x83\x84";
    const bool code = kCode.find(static_cast<char>(opcode)) != std::string_view::npos;
    stop(code ? "the pickle wants to name a class or call a function: only plain data is read"
              : "the pickle has an opcode that this reader does not know",
         "numbers, texts, lists and dicts", fmt::format("opcode 0x{:02x}", opcode));
    if (code) error_.code = ErrorCode::Refused;
    if (code) error_.hint = "write the snapshot with torch.cuda.memory._dump_snapshot, which holds plain data only";
    return false;
  }

  bool short_stack() { return stop("an opcode finds too few values before it"); }
  bool push(std::uint32_t index) { return stack_.push_back(index), true; }
  bool push_value(PickleValue value) {
    pickle_.values_.push_back(std::move(value));
    return push(static_cast<std::uint32_t>(pickle_.values_.size() - 1));
  }
  bool push_integer(std::int64_t number, Type type) {
    PickleValue value;
    value.type = type;
    value.integer = number;
    return push_value(std::move(value));
  }
  bool push_container(Type type) {
    PickleValue value;
    value.type = type;
    return push_value(std::move(value));
  }

  bool take(std::size_t count, std::string_view& out) {
    if (count > bytes_.size() - at_)
      return stop("the pickle breaks off inside a value", fmt::format("{} bytes", count), "fewer");
    out = bytes_.substr(at_, count);
    at_ += count;
    return true;
  }
  bool skip(std::size_t count) {
    std::string_view ignored;
    return take(count, ignored);
  }
  /// Little-endian.
  bool number(std::size_t width, std::uint64_t& value) {
    std::string_view raw;
    if (!take(width, raw)) return false;
    value = 0;
    for (std::size_t i = 0; i < width; ++i) value |= std::uint64_t{static_cast<unsigned char>(raw[i])} << (8 * i);
    return true;
  }
  bool integer(std::size_t width, bool with_sign) {
    std::uint64_t value = 0;
    if (!number(width, value)) return false;
    const auto plain = static_cast<std::int64_t>(value);
    return push_integer(with_sign ? static_cast<std::int32_t>(value) : plain, Type::Integer);
  }
  /// Two's complement of any length; addresses of more than 63 bits keep their low ones.
  bool long_integer(std::size_t width) {
    std::uint64_t length = 0, value = 0;
    std::string_view raw;
    if (!number(width, length) || !take(static_cast<std::size_t>(length), raw)) return false;
    for (std::size_t i = 0; i < raw.size() && i < 8; ++i)
      value |= std::uint64_t{static_cast<unsigned char>(raw[i])} << (8 * i);
    const bool negative = !raw.empty() && (static_cast<unsigned char>(raw.back()) & 0x80U) != 0;
    if (negative && raw.size() < 8) value |= ~std::uint64_t{0} << (8 * raw.size());
    return push_integer(static_cast<std::int64_t>(value), Type::Integer);
  }
  bool real() {
    std::string_view raw;
    if (!take(8, raw)) return false;
    std::uint64_t bits = 0;
    for (const char c : raw) bits = bits << 8U | static_cast<unsigned char>(c);
    PickleValue value;
    value.type = Type::Float;
    std::memcpy(&value.number, &bits, sizeof bits);
    return push_value(std::move(value));
  }
  bool text(std::size_t width) {
    std::uint64_t length = 0;
    PickleValue value;
    value.type = Type::Text;
    if (!number(width, length) || !take(static_cast<std::size_t>(length), value.text)) return false;
    return push_value(std::move(value));
  }

  bool pop() {
    if (stack_.empty()) return short_stack();
    stack_.pop_back();
    return true;
  }
  bool mark(std::size_t& place) {
    if (marks_.empty() || marks_.back() > stack_.size()) return stop("an opcode finds no mark before it");
    place = marks_.back();
    marks_.pop_back();
    return true;
  }
  bool pop_mark() {
    std::size_t place = 0;
    if (!mark(place)) return false;
    stack_.resize(place);
    return true;
  }

  bool container_of_mark(Type type) {
    std::size_t place = 0;
    if (!mark(place)) return false;
    return container_from(type, place);
  }
  bool container_of(std::size_t count) {
    if (stack_.size() < count) return short_stack();
    return container_from(Type::List, stack_.size() - count);
  }
  bool container_from(Type type, std::size_t place) {
    PickleValue value;
    value.type = type;
    value.items.assign(stack_.begin() + static_cast<std::ptrdiff_t>(place), stack_.end());
    stack_.resize(place);
    if (type == Type::Dict && value.items.size() % 2 != 0) return stop("a dict has a key without a value");
    return push_value(std::move(value));
  }
  bool put_into(Type type, std::size_t count) {
    if (stack_.size() < count + 1) return short_stack();
    return put_from(type, stack_.size() - count);
  }
  bool put_mark_into(Type type) {
    std::size_t place = 0;
    if (!mark(place)) return false;
    return put_from(type, place);
  }
  bool put_from(Type type, std::size_t place) {
    if (place == 0) return short_stack();
    PickleValue& container = pickle_.values_[stack_[place - 1]];
    if (container.type != type) return stop("an opcode fills a value of another kind than it says");
    const std::size_t count = stack_.size() - place;
    if (type == Type::Dict && count % 2 != 0) return stop("a dict has a key without a value");
    filled_ += count;
    if (filled_ > max_values_) return stop("the pickle holds too many values");
    container.items.insert(container.items.end(), stack_.begin() + static_cast<std::ptrdiff_t>(place), stack_.end());
    stack_.resize(place);
    return true;
  }

  bool memoize(std::size_t width) {
    std::uint64_t place = 0;
    if (!number(width, place)) return false;
    if (stack_.empty()) return short_stack();
    if (place > memo_.size() + kMemoGap) return stop("a memo number is far beyond the ones before");
    if (place >= memo_.size()) memo_.resize(static_cast<std::size_t>(place) + 1, 0);
    memo_[static_cast<std::size_t>(place)] = stack_.back();
    return true;
  }
  bool recall(std::size_t width) {
    std::uint64_t place = 0;
    if (!number(width, place)) return false;
    if (place >= memo_.size()) return stop("a value is recalled that was never memoized");
    return push(memo_[static_cast<std::size_t>(place)]);
  }
  bool finish() {
    if (stack_.empty()) return short_stack();
    pickle_.root_ = stack_.back();
    stopped_ = true;
    return true;
  }

  static constexpr std::uint64_t kMemoGap = 1U << 20U;
  std::string_view bytes_;
  const std::string& file_;
  std::size_t max_values_, at_ = 0, start_ = 0, filled_ = 0;
  std::vector<std::uint32_t> stack_, memo_;
  std::vector<std::size_t> marks_;
  bool stopped_ = false;
  Error error_;
  Pickle pickle_;
};

Result<Pickle> Pickle::parse(std::string_view bytes, const std::string& file, std::size_t max_values) {
  return PickleReader(bytes, file, max_values).read();
}

const PickleValue* Pickle::get(const PickleValue& dict, std::string_view key) const {
  if (dict.type != Type::Dict) return nullptr;
  for (std::size_t i = 0; i + 1 < dict.items.size(); i += 2) {
    const PickleValue& name = values_[dict.items[i]];
    if (name.type == Type::Text && name.text == key) return &values_[dict.items[i + 1]];
  }
  return nullptr;
}

std::int64_t Pickle::integer(const PickleValue& dict, std::string_view key, std::int64_t otherwise) const {
  const PickleValue* value = get(dict, key);
  return value != nullptr && (value->type == Type::Integer || value->type == Type::Bool) ? value->integer : otherwise;
}

std::string_view Pickle::text(const PickleValue& dict, std::string_view key) const {
  const PickleValue* value = get(dict, key);
  return value != nullptr && value->type == Type::Text ? value->text : std::string_view();
}

}  // namespace foreshard
