// Configuration files of other programs as one plain tree: YAML, JSON or TOML in, JobValue out.
//
// Bounded like every reader here: 1 MiB of text, 64 levels, no aliases, no duplicate keys; whatever the bytes are, the
// answer is a tree or an Error that names file and line. Null is kind Other with an empty text.
#pragma once

#include <string>
#include <string_view>

#include "core/job/job_keys.h"
#include "core/result.h"

namespace foreshard {

enum class ImportSyntax : std::uint8_t { Yaml, Json, Toml };

/// By the file's ending, else by what the text looks like.
ImportSyntax import_syntax(std::string_view text, const std::string& file);

/// The document, which must be a table. `file` only names it in errors.
Result<JobValue> read_import_tree(std::string_view text, const std::string& file, ImportSyntax syntax);

/// The value under a dotted path ("fsdp_config.fsdp_version"); nullptr where there is none or it is null.
const JobValue* find_in_tree(const JobValue& tree, std::string_view path);

/// As a note shows it: `true`, `16`, `"TRANSFORMER_BASED_WRAP"`, `[...]`.
std::string tree_text(const JobValue& value);

}  // namespace foreshard
