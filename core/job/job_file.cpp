#include "core/job/job_file.h"

#include <fmt/format.h>

#include <toml++/toml.h>
#include <algorithm>
#include <filesystem>
#include <iterator>
#include <map>

#include "core/code_name.h"
#include "core/input_file.h"
#include "core/job/job_keys.h"
#include "core/job/key_meaning.h"
#include "core/job/model_defaults.h"
#include "core/job/not_built.h"
#include "core/runtime_layouts.h"

namespace foreshard {
namespace {

namespace fs = std::filesystem;

// Deeper nesting is never meant, and recursion over it would end on the stack.
constexpr std::size_t kMaxDepth = 64;
constexpr std::size_t kMaxDots = 256;

std::string place_of(const std::string& key, std::uint32_t line, std::uint32_t column) {
  return line == 0 ? key : fmt::format("{} (line {}, column {})", key, line, column);
}

JobValue to_value(const toml::node& node, std::size_t depth) {
  JobValue value;
  value.line = static_cast<std::uint32_t>(node.source().begin.line);
  value.column = static_cast<std::uint32_t>(node.source().begin.column);
  if (depth > kMaxDepth) {
    value.text = "nesting beyond the limit";
    return value;
  }
  node.visit([&](const auto& n) {
    using N = std::decay_t<decltype(n)>;
    if constexpr (std::is_same_v<N, toml::table>) {
      value.kind = JobValue::Kind::Table;
      for (const auto& [key, child] : n) {
        JobValue entry = to_value(child, depth + 1);
        // An unknown key is shown where the key stands, not where its value does.
        if (entry.line == 0 || !child.is_table()) {
          entry.line = static_cast<std::uint32_t>(key.source().begin.line);
          entry.column = static_cast<std::uint32_t>(key.source().begin.column);
        }
        value.entries.push_back({std::string(key.str()), std::move(entry)});
      }
      std::stable_sort(value.entries.begin(), value.entries.end(), [](const auto& a, const auto& b) {
        return std::pair(a.value.line, a.value.column) < std::pair(b.value.line, b.value.column);
      });
    } else if constexpr (std::is_same_v<N, toml::array>) {
      value.kind = JobValue::Kind::Array;
      for (const toml::node& child : n) value.items.push_back(to_value(child, depth + 1));
    } else if constexpr (std::is_same_v<N, toml::value<std::string>>) {
      value.kind = JobValue::Kind::Text;
      value.text = n.get();
    } else if constexpr (std::is_same_v<N, toml::value<std::int64_t>>) {
      value.kind = JobValue::Kind::Integer;
      value.integer = n.get();
    } else if constexpr (std::is_same_v<N, toml::value<double>>) {
      value.kind = JobValue::Kind::Float;
      value.number = n.get();
    } else if constexpr (std::is_same_v<N, toml::value<bool>>) {
      value.kind = JobValue::Kind::Bool;
      value.boolean = n.get();
    } else {
      value.text = "a date or time";
    }
  });
  return value;
}

/// The TOML library builds dotted keys without a limit; its tables would then be destroyed recursively.
std::optional<std::size_t> line_with_too_many_dots(std::string_view text) {
  std::size_t line = 1, dots = 0;
  for (const char c : text) {
    if (c == '\n') ++line;
    if (c == '.') {
      if (++dots > kMaxDots) return line;
    } else if (c == '\n' || c == '=' || c == ',' || c == '{' || c == '}' || c == '[' || c == ']' || c == '#') {
      dots = 0;
    }
  }
  return std::nullopt;
}

Error too_deep(const std::string& file, const std::string& place) {
  return {.code = ErrorCode::TooDeep,
          .message = "the file is nested too deeply",
          .file = file,
          .place = place,
          .expected = fmt::format("at most {} levels", kMaxDepth),
          .got = "more",
          .hint = "a job file needs four"};
}

Result<JobValue> parse_toml(std::string_view text, const std::string& file) {
  if (text.size() > kMaxJobFileBytes) {
    return fail({.code = ErrorCode::TooLarge,
                 .message = "this is too large for a job file",
                 .file = file,
                 .place = {},
                 .expected = fmt::format("at most {} bytes", kMaxJobFileBytes),
                 .got = fmt::format("{} bytes", text.size()),
                 .hint = "is it a model file?"});
  }
  if (const std::optional<std::size_t> line = line_with_too_many_dots(text)) {
    return fail(too_deep(file, fmt::format("line {}", *line)));
  }
  try {
    const toml::table table = toml::parse(text);
    return to_value(table, 0);
  } catch (const toml::parse_error& error) {
    const std::string_view what = error.description();
    const std::string place = fmt::format("line {}, column {}", error.source().begin.line, error.source().begin.column);
    if (what.find("nested") != std::string_view::npos) return fail(too_deep(file, place));
    const bool twice =
        what.find("redefine") != std::string_view::npos || what.find("duplicate") != std::string_view::npos;
    return fail({.code = ErrorCode::BadSyntax,
                 .message = twice ? "a key is given twice" : "this is not valid TOML",
                 .file = file,
                 .place = place,
                 .expected = twice ? "every key once" : "TOML 1.0",
                 .got = std::string(what),
                 .hint = twice ? "delete one of the two" : "docs/formats/job.md has a complete example"});
  }
}

std::optional<Error> read_value(std::size_t index, const JobValue& value, const std::string& raw, Job& job) {
  std::optional<Error> error = read_job_key(index, value, job);
  if (!error || raw.empty() || value.kind == JobValue::Kind::Text) return error;
  // `--set train.data.file=2024` means the text.
  JobValue text;
  text.kind = JobValue::Kind::Text;
  text.text = raw;
  if (!read_job_key(index, text, job)) return {};
  return error;
}

/// A value that waits for its turn: keys are read in the order of the table, whatever the order of the sources.
struct Pending {
  JobValue value;
  std::string raw;     // of an override: tried as plain text if the key does not take the TOML value
  std::string origin;  // "--set", "environment", or empty for the file
};

class Loader {
 public:
  explicit Loader(std::string file) : file_(std::move(file)) {}

  std::optional<Error> add_file(std::string_view text) {
    Result<JobValue> root = parse_toml(text, file_);
    if (!root) return root.error();
    return add_table("", *root, {}, {});
  }

  std::optional<Error> add_override(const std::string& text, const std::string& origin) {
    const std::size_t equals = text.find('=');
    const std::string key = text.substr(0, equals);
    if (equals == std::string::npos || key.empty()) {
      return Error{.code = ErrorCode::Usage,
                   .message = "an override has the form section.key=value",
                   .file = {},
                   .place = origin,
                   .expected = "section.key=value",
                   .got = "\"" + text + "\"",
                   .hint = "for example cluster.world_size=16"};
    }
    const std::string raw = text.substr(equals + 1);
    JobValue value;
    Result<JobValue> parsed = parse_toml("value = " + raw, {});
    if (parsed && parsed->entries.size() == 1 && parsed->entries.front().name == "value") {
      value = std::move(parsed->entries.front().value);
      forget_places(value);
    } else {
      value.kind = JobValue::Kind::Text;
      value.text = raw;
    }
    return add(key, value, raw, origin);
  }

  /// What add_override has collected, by key.
  std::vector<JobSetting> settings() const {
    std::vector<JobSetting> made;
    for (const auto& [index, given] : pending_) made.push_back({index, given.value, given.raw});
    return made;
  }

  /// Keys that nobody else has given, by what the model says of its script.
  std::optional<Error> add_defaults(const ModelDefaults& of_model) {
    const std::size_t index = *find_job_key("model.source");
    const auto given = pending_.find(index);
    Job job;
    if (!of_model || given == pending_.end() || read(index, given->second, job)) return {};
    if (given->second.origin.empty()) resolve_path("model.source", fs::path(file_).parent_path(), job);
    Loader model("");
    for (const std::string& text : of_model(job.model.source)) {
      if (std::optional<Error> error = model.add_override(text, "the model")) return error;
    }
    pending_.insert(model.pending_.begin(), model.pending_.end());
    return {};
  }

  Result<LoadedJob> finish() {
    LoadedJob loaded;
    loaded.file = file_;
    const fs::path folder = fs::path(file_).parent_path();
    for (const JobKey& key : job_keys()) loaded.values.push_back({key.name, {}, "default"});
    // Overrides start from fsdp.mixed_precision, so they are read after it.
    const std::size_t last = *find_job_key("fsdp.overrides");
    for (const bool late : {false, true}) {
      for (const auto& [index, given] : pending_) {
        if ((index == last) != late) continue;
        if (std::optional<Error> error = take(index, given, folder, loaded)) return fail(std::move(*error));
      }
    }
    if (loaded.job.model.source.empty()) return fail(missing_source());
    if (Result<void> valid = validate_job(loaded.job); !valid) return fail(with_origin(valid.error()));
    loaded.warnings = job_warnings(loaded);
    for (std::size_t i = 0; i < loaded.values.size(); ++i) loaded.values[i].value = write_job_key(i, loaded.job);
    return loaded;
  }

 private:
  static void forget_places(JobValue& value) {
    value.line = value.column = 0;
    for (JobValue& item : value.items) forget_places(item);
    for (auto& [name, entry] : value.entries) forget_places(entry);
  }

  std::optional<Error> add_table(const std::string& prefix, const JobValue& table, const std::string& raw,
                                 const std::string& origin) {
    for (const auto& [name, entry] : table.entries) {
      if (std::optional<Error> error = add(prefix.empty() ? name : prefix + "." + name, entry, raw, origin))
        return error;
    }
    return {};
  }

  std::optional<Error> add(const std::string& key, const JobValue& value, const std::string& raw,
                           const std::string& origin) {
    if (const std::optional<std::size_t> index = find_job_key(key)) {
      pending_[*index] = {value, value.kind == JobValue::Kind::Table ? std::string() : raw, origin};
      return {};
    }
    const std::string place = origin.empty() ? place_of(key, value.line, value.column) : origin + " " + key;
    if (is_job_table(key)) {
      if (value.kind == JobValue::Kind::Table) return add_table(key, value, {}, origin);
      if (key == "fsdp.mixed_precision" && value.kind == JobValue::Kind::Text && value.text == "none") {
        for (const char* field : {".param", ".reduce", ".buffer", ".output"}) add(key + field, value, raw, origin);
        return {};
      }
      return Error{.code = ErrorCode::WrongType,
                   .message = "the value has the wrong type",
                   .file = file_of(origin),
                   .place = place,
                   .expected = "a table",
                   .got = "a single value",
                   .hint = fmt::format("[{}] is a table; docs/formats/job.md lists its keys", key)};
    }
    return Error{
        .code = ErrorCode::UnknownKey,
        .message = fmt::format("unknown key \"{}\"", key.substr(0, 200)),
        .file = file_of(origin),
        .place = place.substr(0, 300),
        .expected = "a key of docs/formats/job.md",
        .got = "\"" + key.substr(0, 200) + "\"",
        .hint = key.find("pipeline") != std::string::npos
                    ? std::string("pipeline parallelism is not planned; docs/meshes.md has the degrees that are")
                    : fmt::format("did you mean \"{}\"?", nearest_job_key(key))};
  }

  std::optional<Error> take(std::size_t index, const Pending& given, const fs::path& folder, LoadedJob& loaded) const {
    const JobKey& key = job_keys()[index];
    if (std::optional<Error> error = read(index, given, loaded.job)) return error;
    if (given.origin.empty()) resolve_path(key.name, folder, loaded.job);
    loaded.values[index].origin = given.origin.empty() ? fmt::format("{}:{}", file_, given.value.line) : given.origin;
    return {};
  }

  std::optional<Error> read(std::size_t index, const Pending& given, Job& job) const {
    std::optional<Error> error = read_value(index, given.value, given.raw, job);
    if (!error) return {};
    error->file = file_of(given.origin);
    if (!given.origin.empty()) error->place = given.origin + " " + error->place;
    return error;
  }

  std::string file_of(const std::string& origin) const { return origin.empty() ? file_ : std::string(); }

  static void resolve_path(const std::string& key, const fs::path& folder, Job& job) {
    const auto join = [&](std::string& path) {
      if (!path.empty() && !folder.empty() && fs::path(path).is_relative()) {
        path = (folder / path).lexically_normal().string();
      }
    };
    if (key == "model.source" && !job.model.source.starts_with("timm:")) join(job.model.source);
    if (key == "model.weights") join(job.model.weights);
    if (key == "train.data.file") join(job.train.data.file);
    if (key == "train.data.tokenizer") join(job.train.data.tokenizer);
    if (key == "train.eval.file") join(job.train.eval.file);
    if (key == "train.checkpoint.dir") join(job.train.checkpoint.dir);
    // A profile is an id unless it is spelt like a file.
    std::string& profile = job.cluster.profile;
    if (key == "cluster.profile" && (profile.find('/') != std::string::npos || profile.ends_with(".toml")))
      join(profile);
  }

  Error missing_source() const {
    return {.code = ErrorCode::MissingKey,
            .message = "the job names no model",
            .file = file_,
            .place = "model.source",
            .expected = "[model] source = \"config.json\"",
            .got = "nothing",
            .hint = "config.json, a directory holding one, archive.pt2 or model.json"};
  }

  /// A contradiction between keys is shown where its first key was given.
  Error with_origin(Error error) const {
    const std::optional<std::size_t> index = find_job_key(error.place);
    const auto found = index ? pending_.find(*index) : pending_.end();
    if (found == pending_.end()) {
      error.file = file_;
    } else if (found->second.origin.empty()) {
      error.file = file_;
      error.place = place_of(error.place, found->second.value.line, found->second.value.column);
    } else {
      error.place = found->second.origin + " " + error.place;
    }
    return error;
  }

  std::string file_;
  std::map<std::size_t, Pending> pending_;
};

Result<LoadedJob> finish_with(Loader& loader, const JobOverrides& overrides, const ModelDefaults& of_model) {
  for (const std::string& text : overrides.environment) {
    if (std::optional<Error> error = loader.add_override(text, "environment")) return fail(std::move(*error));
  }
  for (const std::string& text : overrides.sets) {
    if (std::optional<Error> error = loader.add_override(text, "--set")) return fail(std::move(*error));
  }
  if (std::optional<Error> error = loader.add_defaults(of_model)) return fail(std::move(*error));
  return loader.finish();
}

Error not_found(const std::string& path, const std::string& why) {
  return {.code = ErrorCode::NotFound,
          .message = why,
          .file = path,
          .place = {},
          .expected = "a job file (TOML), a model file, a directory holding config.json, or FILE.py:FUNCTION",
          .got = "nothing to read",
          .hint = "check the path"};
}

/// A model given in place of a job: by its name, else by how it begins.
bool is_model_file(const fs::path& path, std::string_view head) {
  const std::string extension = path.extension().string();
  if (extension == ".toml") return false;
  if (extension == ".json" || extension == ".pt2") return true;
  const std::size_t first = head.find_first_not_of(" \t\r\n");
  return head.starts_with("PK") || (first != std::string_view::npos && head[first] == '{');
}

Error inconsistent(std::string place, std::string message, std::string expected, std::string got, std::string hint) {
  return {.code = ErrorCode::Inconsistent,
          .message = std::move(message),
          .file = {},
          .place = std::move(place),
          .expected = std::move(expected),
          .got = std::move(got),
          .hint = std::move(hint)};
}

/// Ranks that parameters are sharded and replicated over: a tensor group counts as one.
std::int64_t data_ranks_of(const Job& job) { return job.cluster.world_size / job.mesh.tensor; }

std::int64_t shard_group_of(const Job& job) {
  if (job.cluster.shard_group != 0) return job.cluster.shard_group;
  const std::int64_t in_a_node = std::max<std::int64_t>(job.cluster.ranks_per_node / job.mesh.tensor, 1);
  return std::min(in_a_node, data_ranks_of(job));
}

Result<void> validate_cluster(const Job& job) {
  const ClusterOptions& c = job.cluster;
  if (c.world_size > c.ranks_per_node && c.world_size % c.ranks_per_node != 0) {
    return fail(inconsistent("cluster.world_size", "the ranks do not fill whole nodes",
                             fmt::format("a multiple of ranks_per_node = {}", c.ranks_per_node),
                             fmt::format("{}", c.world_size), "set cluster.ranks_per_node"));
  }
  if (c.rank >= c.world_size) {
    Error error = inconsistent("cluster.rank", "there is no such rank", fmt::format("0 to {}", c.world_size - 1),
                               fmt::format("{}", c.rank), "ranks are counted from 0");
    error.code = ErrorCode::OutOfRange;
    return fail(std::move(error));
  }
  if (c.world_size % job.mesh.tensor != 0) {
    return fail(inconsistent("mesh.tensor", "a degree must divide the world",
                             fmt::format("a divisor of world_size = {}", c.world_size),
                             fmt::format("{}", job.mesh.tensor), "change it or cluster.world_size"));
  }
  if (data_ranks_of(job) % shard_group_of(job) != 0) {
    return fail(inconsistent("cluster.shard_group", "the shard groups do not divide the ranks",
                             job.mesh.tensor == 1 ? fmt::format("a divisor of world_size = {}", c.world_size)
                                                  : fmt::format("a divisor of the {} data ranks", data_ranks_of(job)),
                             fmt::format("{}", shard_group_of(job)), "set cluster.shard_group"));
  }
  return {};
}

/// fsdp2 has FULL_SHARD, and HYBRID_SHARD on a 2-D mesh, only (17.5).
Result<void> validate_strategy(const Job& job, Strategy strategy, const std::string& place) {
  if (!has_fsdp2_layouts(job.fsdp.runtime)) return {};
  if (strategy == Strategy::FullShard || strategy == Strategy::HybridShard) return {};
  std::string hint = "set fsdp.runtime = \"fsdp1\"";
  if (strategy != Strategy::NoShard) hint += ", or keep the strategy's sharding and set reshard_after_forward = false";
  if (strategy == Strategy::NoShard) hint += ", or \"none\" for plain data parallel";
  return fail(inconsistent(place, "the runtime does not have this strategy", "FULL_SHARD or HYBRID_SHARD with fsdp2",
                           std::string(strategy_name(strategy)), std::move(hint)));
}

/// F2-13: a group size divides the shard size.
Result<void> validate_reshard(const Job& job, const ReshardAfterForward& reshard, Strategy strategy,
                              const std::string& place) {
  if (!has_fsdp2_layouts(job.fsdp.runtime) || reshard.kind != ReshardAfterForward::Kind::GroupSize) return {};
  const std::int64_t shard = is_hybrid(strategy) ? shard_group_of(job) : data_ranks_of(job);
  if (shard % reshard.group_size == 0) return {};
  return fail(inconsistent(place, "the group size does not divide the shard group (PyTorch: ValueError)",
                           fmt::format("a divisor of {}", shard), fmt::format("{}", reshard.group_size),
                           "or true, or false"));
}

}  // namespace

Result<void> validate_job(const Job& job) {
  if (Result<void> r = check_built(job); !r) return r;
  if (Result<void> r = validate_cluster(job); !r) return r;
  if (Result<void> r = validate_strategy(job, job.fsdp.strategy, "fsdp.strategy"); !r) return r;
  if (Result<void> r =
          validate_reshard(job, job.fsdp.reshard_after_forward, job.fsdp.strategy, "fsdp.reshard_after_forward");
      !r) {
    return r;
  }
  for (const UnitOverride& entry : job.fsdp.overrides) {
    if (entry.strategy) {
      if (Result<void> r = validate_strategy(job, *entry.strategy, "fsdp.overrides"); !r) return r;
    }
    if (entry.reshard_after_forward) {
      const Strategy strategy = entry.strategy.value_or(job.fsdp.strategy);
      if (Result<void> r = validate_reshard(job, *entry.reshard_after_forward, strategy, "fsdp.overrides"); !r)
        return r;
    }
  }
  const bool depth = job.fsdp.prefetch.forward_depth > 0 || job.fsdp.prefetch.backward_depth > 0;
  const bool lists = !job.fsdp.prefetch.forward.empty() || !job.fsdp.prefetch.backward.empty();
  if (depth && lists) {
    return fail(inconsistent("fsdp.prefetch", "explicit prefetching is by lists or by depths", "one of the two", "both",
                             "drop forward_depth and backward_depth, or the lists"));
  }
  return {};
}

Result<std::vector<JobSetting>> parse_setting(const std::string& text) {
  Loader loader("");
  if (std::optional<Error> error = loader.add_override(text, "--set")) return fail(std::move(*error));
  return loader.settings();
}

Result<void> apply_setting(const JobSetting& setting, Job& job) {
  if (std::optional<Error> error = read_value(setting.key, setting.value, setting.raw, job))
    return fail(std::move(*error));
  return {};
}

std::vector<std::string> environment_overrides(std::string_view variable) {
  std::vector<std::string> texts;
  while (!variable.empty()) {
    const std::size_t end = std::min(variable.find(';'), variable.size());
    const std::string_view text = variable.substr(0, end);
    if (text.find_first_not_of(' ') != std::string_view::npos)
      texts.emplace_back(text.substr(text.find_first_not_of(' ')));
    variable.remove_prefix(std::min(end + 1, variable.size()));
  }
  return texts;
}

Result<LoadedJob> parse_job(std::string_view text, const std::string& file, const JobOverrides& overrides,
                            const ModelDefaults& of_model) {
  Loader loader(file);
  if (std::optional<Error> error = loader.add_file(text)) return fail(std::move(*error));
  return finish_with(loader, overrides, of_model);
}

Result<LoadedJob> parse_job(std::string_view text, const std::string& file, const JobOverrides& overrides) {
  return parse_job(text, file, overrides, {});
}

Result<LoadedJob> parse_job(std::string_view text, const std::string& file, const std::vector<std::string>& sets) {
  return parse_job(text, file, JobOverrides{sets, {}});
}

Result<LoadedJob> load_job(const std::string& path, const JobOverrides& overrides) {
  return load_job(path, overrides, {});
}

Result<LoadedJob> load_job(const std::string& path, const JobOverrides& overrides, const ModelDefaults& of_model) {
  std::error_code ec;
  const fs::file_status status = fs::status(path, ec);
  const bool code = is_code_name(path);
  if (!code && (path.empty() || (path != "-" && !fs::exists(status))))
    return fail(not_found(path, "there is no such file"));
  bool model = code || fs::is_directory(status);
  std::string text;
  if (!model) {
    text = beginning_of_file(path, kMaxJobFileBytes + 1);
    model = is_model_file(path, text);
    if (!model) {
      auto whole = read_whole_file(path, static_cast<Bytes>(kMaxJobFileBytes));
      if (!whole) return fail(whole.error());
      text = std::move(*whole);
    }
  }
  if (!model) return parse_job(text, path, overrides, of_model);
  Loader loader("");
  Job named;
  named.model.source = path;
  const std::string source = "model.source=" + write_job_key(*find_job_key("model.source"), named);
  if (std::optional<Error> error = loader.add_override(source, "command line")) return fail(std::move(*error));
  return finish_with(loader, overrides, of_model);
}

Result<LoadedJob> load_job(const std::string& path, const std::vector<std::string>& sets) {
  return load_job(path, JobOverrides{sets, {}});
}

}  // namespace foreshard
