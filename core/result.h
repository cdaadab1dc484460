// Errors that the world causes (a file, an option, an invalid plan), and the type that carries them.
//
// A function that can meet a wrong world returns Result<T>. An Error says what is wrong so that a user can mend it: the
// file, the place in it, what was expected, what was found, and what to do. Our own mistakes end in FORESHARD_CHECK.
#pragma once

#include <string>
#include <tl/expected.hpp>
#include <utility>

namespace foreshard {

/// Also decides the exit code of the program (docs/errors.md): Usage 2, the rest 3.
enum class ErrorCode {
  Usage,         // a flag or a verb that does not exist, flags that exclude each other
  NotFound,      // a file or folder that is not there or cannot be read
  BadSyntax,     // the text is no JSON, TOML, ...; truncated
  WrongType,     // a value of another type than the key asks for
  MissingKey,    // a required key is absent
  UnknownKey,    // a key nobody knows (the nearest known one is in the hint)
  OutOfRange,    // a number that cannot be: negative, zero, too large, does not divide
  Inconsistent,  // values that contradict each other: cyclic sharing, shapes that do not fit
  TooDeep,       // nesting beyond the reader's limit
  TooLarge,      // counts or sizes beyond the reader's limit
  Unsupported,   // known to the field, not to us (an architecture, an option of another runtime)
  Refused,       // a trap of the specification that is refused unless listed in fsdp.allow_traps
};

/// The code's stable spelling in JSON, for example "missing_key".
const char* error_code_name(ErrorCode code);

struct Error {
  ErrorCode code = ErrorCode::Inconsistent;
  std::string message;   // one sentence
  std::string file;      // empty if no file is concerned
  std::string place;     // key path, line and column, offset: whatever finds it
  std::string expected;  // what would have been right
  std::string got;       // what was found
  std::string hint;      // what to do

  bool operator==(const Error&) const = default;
};

/// One text for people: "file: place: message (expected X, got Y); hint".
std::string to_text(const Error& error);

template <class T>
using Result = tl::expected<T, Error>;

inline tl::unexpected<Error> fail(Error error) { return tl::unexpected<Error>(std::move(error)); }

/// Prints the sentence with its place in the source and aborts. Behind FORESHARD_CHECK.
[[noreturn]] void check_failed(const char* condition, const char* sentence, const char* file, int line);

}  // namespace foreshard

/// Ends the program when we are wrong. Never reachable from user input.
#define FORESHARD_CHECK(condition, sentence) \
  ((condition) ? static_cast<void>(0) : ::foreshard::check_failed(#condition, sentence, __FILE__, __LINE__))
