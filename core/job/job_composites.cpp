// Overrides, prefetch lists, wrap units, script: the values of a job file that are more than a scalar.
#include "core/job/job_values.h"

#include <charconv>
#include <system_error>

namespace foreshard::job_values {

Failure unknown_field(const Spot& spot, std::size_t i, const std::vector<std::string>& fields) {
  const std::string& name = spot.value.entries[i].name;
  Spot at = spot.entry(i);
  Error error = at.error(ErrorCode::UnknownKey, fmt::format("unknown key \"{}\"", name), "one of " + join_words(fields),
                         fmt::format("did you mean \"{}\"?", nearest_word(name, fields)));
  error.got = "\"" + name + "\"";
  return error;
}

static Failure read_override_precision(const Spot& spot, const MixedPrecision& base,
                                       std::optional<MixedPrecision>& out) {
  if (spot.value.kind == JobValue::Kind::Text && spot.value.text == "none") {
    out = MixedPrecision::none();
    return {};
  }
  if (spot.value.kind != JobValue::Kind::Table) return spot.wrong_type("a table or \"none\"");
  static const std::vector<std::string> fields{
      "param", "reduce", "buffer", "output", "keep_low_precision_grads", "cast_forward_inputs"};
  MixedPrecision value = base;
  for (std::size_t i = 0; i < spot.value.entries.size(); ++i) {
    const std::string& name = spot.value.entries[i].name;
    const Spot at = spot.entry(i);
    Failure failure;
    if (name == "param")
      failure = read_dtype(at, "none", value.param);
    else if (name == "reduce")
      failure = read_dtype(at, "none", value.reduce);
    else if (name == "buffer")
      failure = read_dtype(at, "none", value.buffer);
    else if (name == "output")
      failure = read_dtype(at, "none", value.output);
    else if (name == "keep_low_precision_grads")
      failure = read_bool(at, value.keep_low_precision_grads);
    else if (name == "cast_forward_inputs")
      failure = read_cast_inputs(at, value.cast_forward_inputs);
    else
      failure = unknown_field(spot, i, fields);
    if (failure) return failure;
  }
  out = value;
  return {};
}

static Failure read_shard_dims(const Spot& spot, std::map<std::string, std::int64_t>& out) {
  if (spot.value.kind != JobValue::Kind::Table) return spot.wrong_type("a table of dimensions by parameter pattern");
  std::map<std::string, std::int64_t> dims;
  for (std::size_t i = 0; i < spot.value.entries.size(); ++i) {
    if (Failure failure = read_integer(spot.entry(i), 0, 63, dims[spot.value.entries[i].name])) return failure;
  }
  out = std::move(dims);
  return {};
}

Failure read_sizes(const Spot& spot, std::map<std::string, std::int64_t>& out) {
  if (spot.value.kind != JobValue::Kind::Table) return spot.wrong_type("a table of sizes by name");
  std::map<std::string, std::int64_t> sizes;
  for (std::size_t i = 0; i < spot.value.entries.size(); ++i) {
    if (Failure failure = read_integer(spot.entry(i), 0, INT64_MAX, sizes[spot.value.entries[i].name])) return failure;
  }
  out = std::move(sizes);
  return {};
}

std::string sizes_text(const std::map<std::string, std::int64_t>& sizes) {
  std::string text;
  for (const auto& [name, size] : sizes)
    text += fmt::format("{}{} = {}", text.empty() ? "" : ", ", quoted_text(name), size);
  return "{" + text + "}";
}

Failure read_overrides(const Spot& spot, Job& job) {
  if (spot.value.kind != JobValue::Kind::Array) return spot.wrong_type("a list of tables");
  static const std::vector<std::string> fields{"units",           "strategy",  "reshard_after_forward",
                                               "mixed_precision", "shard_dim", "backward_prefetch"};
  std::vector<UnitOverride> overrides;
  for (std::size_t i = 0; i < spot.value.items.size(); ++i) {
    const Spot at = spot.item(i);
    if (at.value.kind != JobValue::Kind::Table) return at.wrong_type("a table {units = [...], ...}");
    UnitOverride& entry = overrides.emplace_back();
    for (std::size_t k = 0; k < at.value.entries.size(); ++k) {
      const std::string& name = at.value.entries[k].name;
      const Spot field = at.entry(k);
      Failure failure;
      if (name == "units") {
        failure = read_texts(field, entry.units);
      } else if (name == "strategy") {
        failure = read_enum(field, strategies(), entry.strategy.emplace());
      } else if (name == "reshard_after_forward") {
        failure = read_reshard(field, entry.reshard_after_forward.emplace());
      } else if (name == "mixed_precision") {
        failure = read_override_precision(field, job.fsdp.mixed_precision, entry.mixed_precision);
      } else if (name == "backward_prefetch") {
        failure = read_enum(field, backward_prefetches(), entry.backward_prefetch.emplace());
      } else if (name == "shard_dim") {
        failure = read_shard_dims(field, entry.shard_dim);
      } else {
        failure = unknown_field(at, k, fields);
      }
      if (failure) return failure;
    }
    if (entry.units.empty()) {
      return at.error(ErrorCode::MissingKey, "an override names the units that it is for", "units = [\"pattern\", ...]",
                      "the root is \"\"");
    }
  }
  job.fsdp.overrides = std::move(overrides);
  return {};
}

static std::string precision_text(const MixedPrecision& value) {
  return fmt::format(
      "{{param = {}, reduce = {}, buffer = {}, output = {}, keep_low_precision_grads = {}, cast_forward_inputs = {}}}",
      dtype_text(value.param, "none"), dtype_text(value.reduce, "none"), dtype_text(value.buffer, "none"),
      dtype_text(value.output, "none"), value.keep_low_precision_grads, cast_inputs_text(value.cast_forward_inputs));
}

std::string overrides_text(const std::vector<UnitOverride>& overrides) {
  std::vector<std::string> tables;
  for (const UnitOverride& entry : overrides) {
    std::string text = "{units = " + texts_text(entry.units);
    if (entry.strategy) text += ", strategy = " + enum_text(strategies(), *entry.strategy);
    if (entry.reshard_after_forward) text += ", reshard_after_forward = " + reshard_text(*entry.reshard_after_forward);
    if (entry.mixed_precision) text += ", mixed_precision = " + precision_text(*entry.mixed_precision);
    if (entry.backward_prefetch) {
      text += ", backward_prefetch = " + enum_text(backward_prefetches(), *entry.backward_prefetch);
    }
    if (!entry.shard_dim.empty()) {
      std::vector<std::string> dims;
      for (const auto& [pattern, dim] : entry.shard_dim) dims.push_back(fmt::format("{} = {}", key_text(pattern), dim));
      text += fmt::format(", shard_dim = {{{}}}", fmt::join(dims, ", "));
    }
    tables.push_back(text + "}");
  }
  return fmt::format("[{}]", fmt::join(tables, ", "));
}

Failure read_prefetch_lists(const Spot& spot, PrefetchLists& out) {
  if (spot.value.kind != JobValue::Kind::Table) return spot.wrong_type("a table of lists by unit name");
  PrefetchLists lists;
  for (std::size_t i = 0; i < spot.value.entries.size(); ++i) {
    if (Failure failure = read_texts(spot.entry(i), lists[spot.value.entries[i].name])) return failure;
  }
  out = std::move(lists);
  return {};
}

std::string prefetch_lists_text(const PrefetchLists& lists) {
  std::vector<std::string> parts;
  for (const auto& [unit, targets] : lists) parts.push_back(key_text(unit) + " = " + texts_text(targets));
  return fmt::format("{{{}}}", fmt::join(parts, ", "));
}

/// ["a", ["b", "c"]]: a text is a unit of its own, a list inside the list groups modules.
Failure read_wrap_units(const Spot& spot, std::vector<std::vector<std::string>>& out) {
  if (spot.value.kind != JobValue::Kind::Array) return spot.wrong_type("a list of patterns or of lists of patterns");
  std::vector<std::vector<std::string>> units;
  for (std::size_t i = 0; i < spot.value.items.size(); ++i) {
    const Spot at = spot.item(i);
    Failure failure;
    if (at.value.kind == JobValue::Kind::Text) {
      units.push_back({at.value.text});
    } else if (at.value.kind == JobValue::Kind::Array) {
      if (at.value.items.empty()) {
        return at.error(ErrorCode::OutOfRange, "a group of modules needs at least one pattern", "[\"pattern\", ...]");
      }
      failure = read_texts(at, units.emplace_back());
    } else {
      failure = at.wrong_type("a pattern or a list of patterns");
    }
    if (failure) return failure;
  }
  out = std::move(units);
  return {};
}

std::string wrap_units_text(const std::vector<std::vector<std::string>>& units) {
  std::vector<std::string> parts;
  for (const auto& unit : units) parts.push_back(unit.size() == 1 ? quoted_text(unit.front()) : texts_text(unit));
  return fmt::format("[{}]", fmt::join(parts, ", "));
}

/// [["zero", "fwd", ...], ...] by iteration, or one flat list for a single iteration.
Failure read_script(const Spot& spot, std::vector<std::vector<std::string>>& out) {
  if (spot.value.kind != JobValue::Kind::Array) return spot.wrong_type("a list of actions, or of lists by iteration");
  if (!spot.value.items.empty() && spot.value.items.front().kind == JobValue::Kind::Text) {
    std::vector<std::string> actions;
    if (Failure failure = read_texts(spot, actions)) return failure;
    out = {std::move(actions)};
    return {};
  }
  std::vector<std::vector<std::string>> script(spot.value.items.size());
  for (std::size_t i = 0; i < script.size(); ++i) {
    if (Failure failure = read_texts(spot.item(i), script[i])) return failure;
  }
  out = std::move(script);
  return {};
}

std::string script_text(const std::vector<std::vector<std::string>>& script) {
  std::vector<std::string> parts;
  for (const auto& actions : script) parts.push_back(texts_text(actions));
  return fmt::format("[{}]", fmt::join(parts, ", "));
}

Failure read_traps(const Spot& spot, std::vector<std::int64_t>& out) {
  if (spot.value.kind != JobValue::Kind::Array) return spot.wrong_type("a list of trap numbers");
  std::vector<std::int64_t> traps(spot.value.items.size());
  for (std::size_t i = 0; i < traps.size(); ++i) {
    if (Failure failure = read_integer(spot.item(i), 1, 64, traps[i])) return failure;
  }
  out = std::move(traps);
  return {};
}

Failure read_betas(const Spot& spot, OptimizerOptions& out) {
  if (spot.value.kind != JobValue::Kind::Array || spot.value.items.size() != 2) {
    return spot.wrong_type("a list of two numbers");
  }
  OptimizerOptions value = out;
  if (Failure failure = read_number(spot.item(0), 0.0, 0.9999999, value.beta1)) return failure;
  if (Failure failure = read_number(spot.item(1), 0.0, 0.9999999, value.beta2)) return failure;
  out = value;
  return {};
}

/// A size in bytes, or the word that means "as the machine has" (0).
static Failure read_size(const Spot& spot, std::string_view word, Bytes& out) {
  const std::string expected = fmt::format("\"{}\" or a size such as \"80GiB\", \"80GB\" or a count of bytes", word);
  if (spot.value.kind == JobValue::Kind::Integer) return read_integer(spot, 1, std::int64_t{1} << 50, out);
  if (spot.value.kind != JobValue::Kind::Text) return spot.wrong_type(expected);
  if (spot.value.text == word) {
    out = 0;
    return {};
  }
  const std::optional<Bytes> bytes = parse_size(spot.value.text);
  if (!bytes || *bytes <= 0) return spot.error(ErrorCode::OutOfRange, "this is no size", expected);
  out = *bytes;
  return {};
}

Failure read_memory(const Spot& spot, Bytes& out) { return read_size(spot, "profile", out); }
Failure read_budget(const Spot& spot, Bytes& out) { return read_size(spot, "", out); }

Failure read_init(const Spot& spot, std::string& out) {
  constexpr const char* kExpected = "default, zeros or normal:STD, for example normal:0.02";
  std::string word;
  if (Failure failure = read_text(spot, word)) return failure;
  if (word != "default" && word != "zeros") {
    double deviation = 0.0;
    const char* const end = word.data() + word.size();
    const std::size_t begin = word.starts_with("normal:") ? 7 : word.size();
    const auto [at, problem] = std::from_chars(word.data() + begin, end, deviation);
    if (problem != std::errc() || at != end || !(deviation >= 0.0 && deviation <= 1e6))
      return spot.error(ErrorCode::OutOfRange, "parameters are not initialised like this", kExpected);
  }
  out = word;
  return {};
}

Failure read_text_table(const Spot& spot, std::map<std::string, std::string>& out) {
  if (spot.value.kind != JobValue::Kind::Table) return spot.wrong_type("a table of texts");
  std::map<std::string, std::string> table;
  for (std::size_t i = 0; i < spot.value.entries.size(); ++i) {
    if (Failure failure = read_text(spot.entry(i), table[spot.value.entries[i].name])) return failure;
  }
  out = std::move(table);
  return {};
}

std::string text_table(const std::map<std::string, std::string>& table) {
  std::string text;
  for (const auto& [key, value] : table)
    text += fmt::format("{}{} = {}", text.empty() ? "" : ", ", quoted_text(key), quoted_text(value));
  return "{" + text + "}";
}

Failure read_mesh_plan(const Spot& spot, std::map<std::string, std::string>& out) {
  if (spot.value.kind == JobValue::Kind::Text && spot.value.text == "auto") {
    out.clear();
    return {};
  }
  if (spot.value.kind != JobValue::Kind::Table)
    return spot.wrong_type("\"auto\" or a table of styles by module pattern");
  return read_text_table(spot, out);
}

std::string mesh_plan_text(const std::map<std::string, std::string>& plan) {
  return plan.empty() ? quoted_text("auto") : text_table(plan);
}

}  // namespace foreshard::job_values
