// What the dialects of `foreshard import` share: taking values out of the tree, putting them into the job, notes.
// Internal to core/import.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/job/import/import_job.h"
#include "core/job/import/import_tree.h"

namespace foreshard::import {

/// Words of the other program with the words of a job ("BACKWARD_PRE" and "1" are the same to accelerate).
using Words = std::vector<std::pair<std::string_view, std::string_view>>;

class Reader {
 public:
  Reader(const JobValue& tree, std::string dialect) : tree_(tree) { out_.dialect = std::move(dialect); }

  /// The value, which is understood from now on; nullptr if absent or null.
  const JobValue* take(std::string_view path);
  std::string text(std::string_view path);  // lower case; numbers and truth values as text; empty if absent
  bool flag(std::string_view path, bool otherwise = false);
  std::int64_t integer(std::string_view path, std::int64_t otherwise);

  /// job key = the value as it is, if the job takes it (else a note).
  void copy(std::string_view path, std::string_view key);
  /// job key = the word that stands beside the value's in `words`, whatever the case; a note if there is none.
  void translate(std::string_view path, std::string_view key, const Words& words);
  /// Understood, and of no consequence for a plan.
  void ignore(std::string_view path) { static_cast<void>(take(path)); }
  /// Understood, but no job can say it: a note with the reason, unless the value is off, empty or `harmless`.
  void refuse(std::string_view path, std::string_view why, std::string_view harmless = {});

  void set(std::string_view key, JobValue value, std::string_view from);
  void set_word(std::string_view key, std::string_view word, std::string_view from);
  void set_flag(std::string_view key, bool value, std::string_view from);
  void set_number(std::string_view key, std::int64_t value, std::string_view from);
  /// As set, where a job with this value can be planned; else a note.
  void set_if_built(std::string_view key, JobValue value, std::string_view from);
  void note(std::string text) { out_.notes.push_back(std::move(text)); }

  /// Notes for every value that nobody took, then the result.
  ImportedJob finish();

 private:
  void report_rest(const JobValue& table, const std::string& prefix);
  const JobValue& tree_;
  ImportedJob out_;
  std::set<const JobValue*> taken_;
};

/// A list of texts out of a list, or out of one text with commas.
JobValue text_list(const JobValue& value);
JobValue word_value(std::string_view word);
JobValue flag_value(bool flag);

void read_accelerate(Reader& reader, const JobValue& tree);
void read_transformers(Reader& reader, const JobValue& tree);
void read_torchtitan(Reader& reader);

/// accelerate runs the forward of what it prepares under autocast and casts what it returns to float32 (prepare_model);
/// a module for fully_shard it leaves as it is (_prepare_fsdp2). `from`: the key that says `dtype`.
void read_autocast(Reader& reader, std::string_view dtype, bool version_2, bool compiled, std::string_view from);

/// The keys of an FSDP plugin, which accelerate spells with and Transformers without the prefix "fsdp_".
void read_plugin(Reader& reader, const std::string& prefix, bool version_2);

}  // namespace foreshard::import
