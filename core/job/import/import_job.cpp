#include "core/job/import/import_job.h"

#include <algorithm>
#include <map>

#include "core/job/import/import_reader.h"
#include "core/job/job_file.h"
#include "core/job/not_built.h"

namespace foreshard {
namespace import {
namespace {

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  return text;
}

}  // namespace

const JobValue* Reader::take(std::string_view path) {
  const JobValue* value = find_in_tree(tree_, path);
  if (value != nullptr) taken_.insert(value);
  return value;
}

std::string Reader::text(std::string_view path) {
  const JobValue* value = take(path);
  if (value == nullptr) return {};
  return lower(value->kind == JobValue::Kind::Text ? value->text : tree_text(*value));
}

bool Reader::flag(std::string_view path, bool otherwise) {
  const std::string word = text(path);
  return word.empty() ? otherwise : word == "true" || word == "1" || word == "yes";
}

std::int64_t Reader::integer(std::string_view path, std::int64_t otherwise) {
  const JobValue* value = take(path);
  if (value == nullptr) return otherwise;
  if (value->kind == JobValue::Kind::Integer) return value->integer;
  note(std::string(path) + " is no whole number: " + tree_text(*value));
  return otherwise;
}

void Reader::set(std::string_view key, JobValue value, std::string_view from) {
  const auto index = find_job_key(key);
  if (!index) return;
  if (const auto error = read_job_key(*index, value, out_.job)) {
    note(std::string(from) + " = " + tree_text(value) + " does not fit " + std::string(key) + ": " + error->message);
    return;
  }
  const auto at = std::lower_bound(out_.keys.begin(), out_.keys.end(), *index);
  if (at == out_.keys.end() || *at != *index) out_.keys.insert(at, *index);
}

void Reader::set_if_built(std::string_view key, JobValue value, std::string_view from) {
  const auto index = find_job_key(key);
  Job probe;
  if (index && !read_job_key(*index, value, probe) && !check_built(probe)) {
    note(std::string(from) + " = " + text(from) + ": " + std::string(key) + " = " + tree_text(value) +
         " is not planned yet");
    return;
  }
  set(key, std::move(value), from);
}

void Reader::set_word(std::string_view key, std::string_view word, std::string_view from) {
  set(key, word_value(word), from);
}

void Reader::set_flag(std::string_view key, bool on, std::string_view from) { set(key, flag_value(on), from); }

void Reader::set_number(std::string_view key, std::int64_t number, std::string_view from) {
  JobValue value;
  value.kind = JobValue::Kind::Integer;
  value.integer = number;
  set(key, std::move(value), from);
}

void Reader::copy(std::string_view path, std::string_view key) {
  if (const JobValue* value = take(path)) set(key, *value, path);
}

void Reader::translate(std::string_view path, std::string_view key, const Words& words) {
  const std::string word = text(path);
  if (word.empty()) return;
  for (const auto& [theirs, ours] : words) {
    if (lower(std::string(theirs)) != word) continue;
    if (ours == "true" || ours == "false") {
      set_flag(key, ours == "true", path);
    } else {
      set_word(key, ours, path);
    }
    return;
  }
  note(std::string(path) + " = " + word + " is not known; " + std::string(key) + " keeps its default");
}

void Reader::refuse(std::string_view path, std::string_view why, std::string_view harmless) {
  const std::string word = text(path);
  if (word.empty() || word == "false" || word == "no" || word == "none" || word == "[]" || word == "{}") return;
  if (word == harmless) return;
  note(std::string(path) + " = " + word + ": " + std::string(why));
}

void Reader::report_rest(const JobValue& table, const std::string& prefix) {
  for (const JobEntry& entry : table.entries) {
    const std::string path = prefix + entry.name;
    if (taken_.count(&entry.value) != 0 || entry.value.kind == JobValue::Kind::Other) continue;
    if (entry.value.kind == JobValue::Kind::Table) {
      report_rest(entry.value, path + ".");
    } else {
      note(path + " = " + tree_text(entry.value) + " is not understood");
    }
  }
}

ImportedJob Reader::finish() {
  report_rest(tree_, "");
  return std::move(out_);
}

JobValue word_value(std::string_view word) {
  JobValue value;
  value.kind = JobValue::Kind::Text;
  value.text = word;
  return value;
}

JobValue flag_value(bool flag) {
  JobValue value;
  value.kind = JobValue::Kind::Bool;
  value.boolean = flag;
  return value;
}

JobValue text_list(const JobValue& value) {
  JobValue list;
  list.kind = JobValue::Kind::Array;
  const auto add = [&](std::string_view part) {
    const std::size_t first = part.find_first_not_of(" \t"), last = part.find_last_not_of(" \t");
    if (first == part.npos) return;
    JobValue& item = list.items.emplace_back();
    item.kind = JobValue::Kind::Text;
    item.text = part.substr(first, last - first + 1);
  };
  for (const JobValue& item : value.items)
    if (item.kind == JobValue::Kind::Text) add(item.text);
  std::string_view rest = value.text;
  while (!rest.empty()) {
    const std::size_t comma = rest.find(',');
    add(rest.substr(0, comma));
    rest = comma == rest.npos ? std::string_view() : rest.substr(comma + 1);
  }
  return list;
}

}  // namespace import

Result<ImportedJob> import_job(std::string_view text, const std::string& file) {
  const ImportSyntax syntax = import_syntax(text, file);
  const Result<JobValue> tree = read_import_tree(text, file, syntax);
  if (!tree) return fail(tree.error());
  const auto has = [&](std::string_view path) { return find_in_tree(*tree, path) != nullptr; };
  if (has("model.source")) {
    return fail({ErrorCode::Unsupported, "this is a job file already", file, "model.source",
                 "a configuration of accelerate, Transformers or torchtitan", "a job file",
                 "give it to plan or simulate"});
  }
  if ((syntax == ImportSyntax::Toml || has("foreshard_torchtitan")) &&
      (has("parallelism") || has("training") || has("job"))) {
    import::Reader reader(*tree, "torchtitan");
    import::read_torchtitan(reader);
    return reader.finish();
  }
  if (syntax != ImportSyntax::Toml) {
    const bool accelerate = has("distributed_type") || has("compute_environment") || has("fsdp_config.fsdp_version") ||
                            has("fsdp_config.fsdp_auto_wrap_policy");
    import::Reader reader(*tree, accelerate ? "accelerate" : "Transformers");
    if (accelerate) {
      import::read_accelerate(reader, *tree);
    } else {
      import::read_transformers(reader, *tree);
    }
    ImportedJob imported = reader.finish();
    if (!imported.keys.empty()) return imported;
  }
  return fail({ErrorCode::Unsupported,
               "this is no configuration that is known",
               file,
               {},
               "accelerate's YAML, Transformers' TrainingArguments or fsdp_config, torchtitan's TOML",
               "none of their keys",
               {}});
}

std::string write_imported_job(const ImportedJob& imported, const std::string& file, const std::string& model) {
  std::string out = "# From " + imported.dialect + "'s " + file + "\n";
  for (const std::string& note : imported.notes) {
    out += "# ";
    for (const char c : note) out += c == '\n' || c == '\r' ? ' ' : c;
    out += '\n';
  }
  Job job = imported.job;
  std::vector<std::size_t> keys = imported.keys;
  if (const auto source = find_job_key("model.source"); source && job.model.source.empty()) {
    job.model.source = model;
    keys.insert(keys.begin(), *source);
  }
  std::map<std::string, std::string> sections;  // a section's keys stand together, whatever the table's order
  std::vector<std::string> order;
  for (const std::size_t key : keys) {
    const auto [section, name] = split_job_key(key);
    if (sections.find(section) == sections.end()) order.push_back(section);
    sections[section] += name + " = " + write_job_key(key, job) + "\n";
  }
  for (const std::string& section : order) out += "\n[" + section + "]\n" + sections[section];
  return out;
}

}  // namespace foreshard
