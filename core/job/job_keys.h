// The keys of a job file as one declarative table: name, type, default, allowed values, meaning.
//
// Everything that knows keys is driven by it: reading, `--set`, writing, `config show --origin`, completion and the
// table in docs/formats/job.md. Values travel as JobValue, a plain tree, so that this table knows nothing of the TOML
// library.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/job.h"
#include "core/result.h"

namespace foreshard {

struct JobEntry;

/// A TOML value as a plain tree, with its place in the text (line and column from 1; 0 = not from a file).
struct JobValue {
  enum class Kind : std::uint8_t { Bool, Integer, Float, Text, Array, Table, Other } kind = Kind::Other;
  bool boolean = false;
  std::int64_t integer = 0;
  double number = 0.0;
  std::string text;  // Text; Other: what it is ("a date")
  std::vector<JobValue> items;
  std::vector<JobEntry> entries;  // in file order
  std::uint32_t line = 0;
  std::uint32_t column = 0;
};

/// One entry of a table.
struct JobEntry {
  std::string name;
  JobValue value;
};

/// What people, completion and the documentation need to know of one key.
struct JobKey {
  std::string name;                  // "fsdp.mixed_precision.param"
  std::string type;                  // "integer from 1 to 1048576", "text", "list of texts", ...
  std::string default_text;          // as TOML; empty for the required model.source
  std::vector<std::string> choices;  // allowed words; empty = free
  std::string doc;
  std::optional<Runtime> only;  // has a meaning in this runtime only; of Fsdp2 in all that have its layouts
  bool means_in(Runtime runtime) const;
};

/// All keys, in the order in which a job file is written.
const std::vector<JobKey>& job_keys();

/// Index in job_keys(), if there is such a key.
std::optional<std::size_t> find_job_key(std::string_view name);

/// True if `name` is a table of keys ("fsdp", "fsdp.wrap", "train.optimizer").
bool is_job_table(std::string_view name);

/// The known key (or table) whose spelling is nearest, for messages.
std::string nearest_job_key(std::string_view name);

/// Reads `value` into the field of key `index`. On failure the error holds message, expected, got and, in `place`, the
/// path inside the value ("[0].strategy") with line and column where known; the caller adds file and key.
std::optional<Error> read_job_key(std::size_t index, const JobValue& value, Job& job);

/// The field of key `index` as TOML text.
std::string write_job_key(std::size_t index, const Job& job);

/// The section of key `index` ("fsdp.wrap"), and the rest of its name ("policy", "optimizer.lr").
std::pair<std::string, std::string> split_job_key(std::size_t index);

/// The table of docs/formats/job.md.
std::string job_keys_markdown();

/// "80GiB", "80 GB", "512MiB", "1024" (bytes). Binary and decimal units are different words.
std::optional<Bytes> parse_size(std::string_view text);
/// The shortest exact spelling with a binary unit, else in bytes: "80GiB", "1500B".
std::string size_text(Bytes bytes);

}  // namespace foreshard
