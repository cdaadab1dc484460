#include "core/job/job_values.h"

#include <algorithm>
#include <cmath>

namespace foreshard::job_values {
namespace {

constexpr std::size_t kMaxShownText = 80;

}  // namespace

std::string describe(const JobValue& value) {
  switch (value.kind) {
    case JobValue::Kind::Bool: return value.boolean ? "true" : "false";
    case JobValue::Kind::Integer: return fmt::format("{}", value.integer);
    case JobValue::Kind::Float: return fmt::format("{}", value.number);
    case JobValue::Kind::Text:
      if (value.text.size() > kMaxShownText)
        return fmt::format("the text \"{}...\"", value.text.substr(0, kMaxShownText));
      return fmt::format("the text \"{}\"", value.text);
    case JobValue::Kind::Array: return fmt::format("a list of {}", value.items.size());
    case JobValue::Kind::Table: return fmt::format("a table of {}", value.entries.size());
    case JobValue::Kind::Other: return value.text;
  }
  return {};
}

std::string quoted_text(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    switch (c) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\n': out += "\\n"; break;
      case '\t': out += "\\t"; break;
      case '\r': out += "\\r"; break;
      default:
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
          out += fmt::format("\\u{:04X}", static_cast<unsigned char>(c));
        } else {
          out += c;
        }
    }
  }
  return out + '"';
}

std::string number_text(double value) {
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

std::string texts_text(const std::vector<std::string>& texts) {
  std::vector<std::string> parts;
  for (const std::string& text : texts) parts.push_back(quoted_text(text));
  return fmt::format("[{}]", fmt::join(parts, ", "));
}

/// A bare TOML key where possible.
std::string key_text(const std::string& key) {
  const bool bare = !key.empty() && std::all_of(key.begin(), key.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  });
  return bare ? key : quoted_text(key);
}

Failure read_bool(const Spot& spot, bool& out) {
  if (spot.value.kind != JobValue::Kind::Bool) return spot.wrong_type("true or false");
  out = spot.value.boolean;
  return {};
}

Failure read_integer(const Spot& spot, std::int64_t min, std::int64_t max, std::int64_t& out) {
  const std::string expected = fmt::format("an integer from {} to {}", min, max);
  if (spot.value.kind != JobValue::Kind::Integer) return spot.wrong_type(expected);
  if (spot.value.integer < min) return spot.error(ErrorCode::OutOfRange, "the number is too small", expected);
  if (spot.value.integer > max) return spot.error(ErrorCode::TooLarge, "the number is too large", expected);
  out = spot.value.integer;
  return {};
}

Failure read_number(const Spot& spot, double min, double max, double& out) {
  const std::string expected = fmt::format("a number from {} to {}", min, max);
  double number = 0.0;
  if (spot.value.kind == JobValue::Kind::Float) {
    number = spot.value.number;
  } else if (spot.value.kind == JobValue::Kind::Integer) {
    number = static_cast<double>(spot.value.integer);
  } else {
    return spot.wrong_type(expected);
  }
  if (!std::isfinite(number) || number < min || number > max) {
    return spot.error(ErrorCode::OutOfRange, "the number is out of range", expected);
  }
  out = number;
  return {};
}

Failure read_text(const Spot& spot, std::string& out) {
  if (spot.value.kind != JobValue::Kind::Text) return spot.wrong_type("a text");
  out = spot.value.text;
  return {};
}

Failure read_word(const Spot& spot, const std::vector<std::string>& words, std::string& out) {
  const std::string expected = "one of " + join_words(words);
  if (spot.value.kind != JobValue::Kind::Text) return spot.wrong_type(expected);
  if (std::find(words.begin(), words.end(), spot.value.text) == words.end()) {
    return spot.error(ErrorCode::OutOfRange, "unknown word", expected,
                      fmt::format("did you mean \"{}\"?", nearest_word(spot.value.text, words)));
  }
  out = spot.value.text;
  return {};
}

Failure read_texts(const Spot& spot, std::vector<std::string>& out) {
  if (spot.value.kind != JobValue::Kind::Array) return spot.wrong_type("a list of texts");
  std::vector<std::string> texts(spot.value.items.size());
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (Failure failure = read_text(spot.item(i), texts[i])) return failure;
  }
  out = std::move(texts);
  return {};
}

/// "none" (or another word) keeps; the dtypes by PyTorch's names.
Failure read_dtype(const Spot& spot, std::string_view empty_word, std::optional<DType>& out) {
  const std::string expected = fmt::format("a dtype (float32, bfloat16, float16, ...) or \"{}\"", empty_word);
  if (spot.value.kind != JobValue::Kind::Text) return spot.wrong_type(expected);
  if (spot.value.text == empty_word) {
    out = std::nullopt;
    return {};
  }
  const std::optional<DType> dtype = parse_dtype(spot.value.text);
  if (!dtype) return spot.error(ErrorCode::OutOfRange, "unknown dtype", expected);
  if (!is_floating(*dtype)) {
    return spot.error(ErrorCode::OutOfRange, "parameters and gradients need a floating-point dtype", expected);
  }
  out = dtype;
  return {};
}

std::string dtype_text(const std::optional<DType>& dtype, std::string_view empty_word) {
  return quoted_text(dtype ? dtype_name(*dtype) : empty_word);
}

Failure read_cast_inputs(const Spot& spot, std::optional<bool>& out) {
  if (spot.value.kind == JobValue::Kind::Text && spot.value.text == "default") {
    out = std::nullopt;
    return {};
  }
  if (spot.value.kind != JobValue::Kind::Bool) return spot.wrong_type("true, false or \"default\"");
  out = spot.value.boolean;
  return {};
}

std::string cast_inputs_text(const std::optional<bool>& value) {
  return value ? (*value ? "true" : "false") : quoted_text("default");
}

Failure read_comm_hook(const Spot& spot, std::string& out) {
  constexpr const char* kExpected = "none, fp16_compress, bf16_compress or own:NAME";
  std::string word;
  if (Failure failure = read_text(spot, word)) return failure;
  const bool own = word.starts_with("own:") && word.size() > 4;
  if (!own && word != "none" && word != "fp16_compress" && word != "bf16_compress") {
    return spot.error(ErrorCode::OutOfRange, "there is no such communication hook", kExpected,
                      "own:NAME is one of your own in C++, docs/run.md says how");
  }
  out = word;
  return {};
}

Failure read_reshard(const Spot& spot, ReshardAfterForward& out) {
  if (spot.value.kind == JobValue::Kind::Bool) {
    out = {spot.value.boolean ? ReshardAfterForward::Kind::True : ReshardAfterForward::Kind::False, 0};
    return {};
  }
  if (spot.value.kind != JobValue::Kind::Integer) return spot.wrong_type("true, false or a group size");
  std::int64_t size = 0;
  if (Failure failure = read_integer(spot, 1, kMaxRanks, size)) return failure;
  out = {ReshardAfterForward::Kind::GroupSize, size};
  return {};
}

std::string reshard_text(const ReshardAfterForward& value) {
  switch (value.kind) {
    case ReshardAfterForward::Kind::True: return "true";
    case ReshardAfterForward::Kind::False: return "false";
    case ReshardAfterForward::Kind::GroupSize: return fmt::format("{}", value.group_size);
  }
  return {};
}

const Words<Strategy>& strategies() {
  static const Words<Strategy> words{{{"FULL_SHARD", Strategy::FullShard},
                                      {"SHARD_GRAD_OP", Strategy::ShardGradOp},
                                      {"NO_SHARD", Strategy::NoShard},
                                      {"HYBRID_SHARD", Strategy::HybridShard},
                                      {"_HYBRID_SHARD_ZERO2", Strategy::HybridShardZero2}}};
  return words;
}

const Words<BackwardPrefetch>& backward_prefetches() {
  static const Words<BackwardPrefetch> words{{{"BACKWARD_PRE", BackwardPrefetch::Pre},
                                              {"BACKWARD_POST", BackwardPrefetch::Post},
                                              {"NONE", BackwardPrefetch::None}}};
  return words;
}

}  // namespace foreshard::job_values
