#include "exec/data/byte_pair_encoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>
#include <utility>

#include "core/model/json_input.h"
#include "exec/data/text_pattern.h"

namespace foreshard::exec {
namespace {

using nlohmann::json;

// GPT-2's own, which the pre-tokenizer ByteLevel means by use_regex.
const char* const kGpt2Pattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

void append_utf8(std::string& text, std::uint32_t letter) {
  if (letter < 0x80) {
    text += static_cast<char>(letter);
  } else {  // the alphabet ends below U+0800
    text += static_cast<char>(0xC0 | letter >> 6);
    text += static_cast<char>(0x80 | (letter & 0x3F));
  }
}

/// A letter for each byte: printable ones stand for themselves, the others for letters from U+0100 on.
std::array<std::string, 256> byte_letters() {
  std::array<std::string, 256> letters;
  std::uint32_t next = 256;
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    append_utf8(letters[byte], printable ? byte : next++);
  }
  return letters;
}

struct AddedToken {
  std::string content;
  std::int64_t id = 0;
};

struct PairHash {
  std::size_t operator()(const std::pair<std::int64_t, std::int64_t>& pair) const noexcept {
    return static_cast<std::size_t>(pair.first) * 0x9e3779b97f4a7c15U ^ static_cast<std::size_t>(pair.second);
  }
};

struct Merge {
  std::int64_t rank = 0;
  std::int64_t result = 0;
};

}  // namespace

struct BytePairEncoder::Tables {
  std::unordered_map<std::string, std::int64_t> vocabulary;  // in the alphabet of byte_letters
  std::unordered_map<std::pair<std::int64_t, std::int64_t>, Merge, PairHash> merges;
  std::array<std::int64_t, 256> id_of_byte{};
  std::array<std::string, 256> letters = byte_letters();
  std::vector<AddedToken> added;
  std::string added_begin_with;       // the first bytes of all of them
  std::vector<TextPattern> patterns;  // one after another: each cuts the pieces of the one before
  bool prefix_space = false;
  bool whole_words = false;  // ignore_merges: a word that is in the vocabulary is one token
  mutable std::unordered_map<std::string, std::vector<std::int64_t>> words;  // encoded before

  std::string spelt(std::string_view bytes) const {
    std::string text;
    for (const char byte : bytes) text += letters[static_cast<unsigned char>(byte)];
    return text;
  }

  /// The longest added token that the text begins with.
  const AddedToken* added_at(std::string_view text) const {
    const AddedToken* longest = nullptr;
    for (const AddedToken& token : added) {
      const bool longer = longest == nullptr || token.content.size() > longest->content.size();
      if (longer && text.starts_with(token.content)) longest = &token;
    }
    return longest;
  }

  Result<void> encode_word(std::string_view word, std::vector<std::int64_t>& ids) const;
  Result<void> encode_piece(std::string_view piece, std::vector<std::int64_t>& ids) const;
};

namespace {

class Reader {
 public:
  explicit Reader(std::string file) : file_(std::move(file)) {}

  Error error(ErrorCode code, std::string place, std::string message, std::string got = "") const {
    Error error;
    error.code = code;
    error.file = file_;
    error.place = std::move(place);
    error.message = std::move(message);
    error.expected = "a tokenizer.json of byte-level BPE";
    error.got = std::move(got);
    return error;
  }
  Error not_ours(std::string place, const json& got) const {
    Error e = error(ErrorCode::Unsupported, std::move(place), "this kind of tokenizer is not read", describe_json(got));
    e.expected = "byte-level BPE, as GPT-2 and Llama 3 have it";
    e.hint = "make a file of token ids with the tokenizers library (docs/run.md)";
    return e;
  }

 private:
  std::string file_;
};

const json& field(const json& object, const char* key) {
  static const json kNothing;
  if (!object.is_object()) return kNothing;
  const auto found = object.find(key);
  return found == object.end() ? kNothing : *found;
}

bool is_text(const json& value, std::string_view text) {
  return value.is_string() && value.get_ref<const std::string&>() == text;
}

bool is_true(const json& value) { return value.is_boolean() && value.get<bool>(); }

std::optional<std::int64_t> id_in(const json& value) {
  if (!value.is_number_integer()) return std::nullopt;
  const auto id = value.get<std::int64_t>();
  return id >= 0 && id <= std::numeric_limits<std::int32_t>::max() ? std::optional(id) : std::nullopt;
}

/// "a b", or ["a", "b"] in newer files.
std::optional<std::pair<std::string, std::string>> merge_in(const json& merge) {
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
    return std::pair(merge[0].get<std::string>(), merge[1].get<std::string>());
  }
  if (!merge.is_string()) return std::nullopt;
  const auto& text = merge.get_ref<const std::string&>();
  const std::size_t space = text.find(' ');
  if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) return std::nullopt;
  return std::pair(text.substr(0, space), text.substr(space + 1));
}

}  // namespace

namespace {

template <class Tables>
Result<void> read_model(const Reader& reader, const json& model, Tables& tables) {
  const json& kind = field(model, "type");
  if (!kind.is_null() && !is_text(kind, "BPE")) return fail(reader.not_ours("model.type", kind));
  if (is_true(field(model, "byte_fallback")))
    return fail(reader.not_ours("model.byte_fallback", model["byte_fallback"]));
  const json& vocabulary = field(model, "vocab");
  const json& merges = field(model, "merges");
  if (!vocabulary.is_object() || !merges.is_array()) {
    return fail(reader.error(ErrorCode::MissingKey, "model", "a tokenizer of kind BPE has vocab and merges"));
  }
  for (const auto& [token, id] : vocabulary.items()) {
    const auto number = id_in(id);
    if (!number) {
      return fail(reader.error(ErrorCode::WrongType, "model.vocab", "a token has no id", in_quotes(token)));
    }
    tables.vocabulary.emplace(token, *number);
  }
  const auto id_of = [&](const std::string& token) {
    const auto found = tables.vocabulary.find(token);
    return found == tables.vocabulary.end() ? -1 : found->second;
  };
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    const auto pair = merge_in(merges[rank]);
    const std::int64_t left = pair ? id_of(pair->first) : -1, right = pair ? id_of(pair->second) : -1;
    const std::int64_t result = pair ? id_of(pair->first + pair->second) : -1;
    if (left < 0 || right < 0 || result < 0) {
      return fail(reader.error(ErrorCode::Inconsistent, fmt::format("model.merges[{}]", rank),
                               "a merge is no pair of tokens that make a token", describe_json(merges[rank])));
    }
    tables.merges.try_emplace({left, right}, Merge{static_cast<std::int64_t>(rank), result});
  }
  for (std::size_t byte = 0; byte < 256; ++byte) tables.id_of_byte[byte] = id_of(tables.letters[byte]);
  tables.whole_words = is_true(field(model, "ignore_merges"));
  return {};
}

template <class Tables>
Result<void> add_pattern(const std::string& expression, Tables& tables) {
  auto pattern = TextPattern::compile(expression);
  if (!pattern) return fail(pattern.error());
  tables.patterns.push_back(std::move(*pattern));
  return {};
}

template <class Tables>
Result<void> read_pre_tokenizer(const Reader& reader, const json& step, Tables& tables, int depth = 0) {
  if (is_text(field(step, "type"), "Sequence") && field(step, "pretokenizers").is_array() && depth == 0) {
    for (const json& inner : step["pretokenizers"]) {
      if (auto read = read_pre_tokenizer(reader, inner, tables, depth + 1); !read) return read;
    }
    return {};
  }
  if (is_text(field(step, "type"), "ByteLevel")) {
    tables.prefix_space = tables.prefix_space || is_true(field(step, "add_prefix_space"));
    const json& regex = field(step, "use_regex");
    return regex.is_null() || is_true(regex) ? add_pattern(kGpt2Pattern, tables) : Result<void>();
  }
  const json& expression = field(field(step, "pattern"), "Regex");
  const bool isolated = is_text(field(step, "behavior"), "Isolated") && !is_true(field(step, "invert"));
  if (is_text(field(step, "type"), "Split") && expression.is_string() && isolated) {
    return add_pattern(expression.get<std::string>(), tables);
  }
  return fail(reader.not_ours("pre_tokenizer", step));
}

template <class Tables>
Result<void> read_added_tokens(const Reader& reader, const json& tokens, Tables& tables) {
  if (tokens.is_null()) return {};
  if (!tokens.is_array()) return fail(reader.error(ErrorCode::WrongType, "added_tokens", "added tokens are a list"));
  for (const json& token : tokens) {
    const json& content = field(token, "content");
    const auto id = id_in(field(token, "id"));
    if (!content.is_string() || content.get_ref<const std::string&>().empty() || !id) {
      return fail(reader.error(ErrorCode::WrongType, "added_tokens", "an added token has content and id",
                               describe_json(token)));
    }
    tables.added.push_back({content.get<std::string>(), *id});
    const char first = tables.added.back().content.front();
    if (tables.added_begin_with.find(first) == std::string::npos) tables.added_begin_with += first;
  }
  return {};
}

}  // namespace

Result<BytePairEncoder> BytePairEncoder::read(const std::string& path) {
  const auto text = read_text_file(path, 64 * kMiB);
  if (!text) return fail(text.error());
  return parse(*text, path);
}

Result<BytePairEncoder> BytePairEncoder::parse(std::string_view text, const std::string& file) {
  JsonLimits limits;
  limits.max_memory = 1024 * kMiB;  // vocabularies of 200,000 words
  const auto document = parse_json(text, file, limits);
  if (!document) return fail(document.error());
  const Reader reader(file);
  auto tables = std::make_unique<Tables>();
  if (auto read = read_model(reader, field(*document, "model"), *tables); !read) return fail(read.error());
  if (!field(*document, "normalizer").is_null()) return fail(reader.not_ours("normalizer", (*document)["normalizer"]));
  if (auto read = read_pre_tokenizer(reader, field(*document, "pre_tokenizer"), *tables); !read) {
    return fail(read.error());
  }
  if (auto read = read_added_tokens(reader, field(*document, "added_tokens"), *tables); !read)
    return fail(read.error());
  return BytePairEncoder(std::move(tables));
}

Result<void> BytePairEncoder::Tables::encode_word(std::string_view word, std::vector<std::int64_t>& ids) const {
  const auto known = words.find(std::string(word));
  if (known != words.end()) {
    ids.insert(ids.end(), known->second.begin(), known->second.end());
    return {};
  }
  std::vector<std::int64_t> symbols;
  const auto whole = whole_words ? vocabulary.find(spelt(word)) : vocabulary.end();
  if (whole != vocabulary.end()) {
    symbols = {whole->second};
  } else {
    for (const char byte : word) {
      const std::int64_t id = id_of_byte[static_cast<unsigned char>(byte)];
      if (id < 0) {
        Error error;
        error.code = ErrorCode::OutOfRange;
        error.place = "train.data.tokenizer";
        error.message = "the tokenizer's vocabulary lacks a byte of the text";
        error.expected = "a token for each of the 256 bytes";
        error.got = fmt::format("byte 0x{:02x}", static_cast<unsigned>(static_cast<unsigned char>(byte)));
        return fail(std::move(error));
      }
      symbols.push_back(id);
    }
    while (symbols.size() > 1) {  // the pair that was learnt first, the leftmost of equal ones
      std::size_t best = 0;
      const Merge* merge = nullptr;
      for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
        const auto found = merges.find({symbols[i], symbols[i + 1]});
        if (found == merges.end() || (merge != nullptr && found->second.rank >= merge->rank)) continue;
        best = i;
        merge = &found->second;
      }
      if (merge == nullptr) break;
      symbols[best] = merge->result;
      symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    }
  }
  ids.insert(ids.end(), symbols.begin(), symbols.end());
  if (word.size() <= 64 && words.size() < 1'000'000) words.emplace(word, std::move(symbols));
  return {};
}

Result<void> BytePairEncoder::Tables::encode_piece(std::string_view piece, std::vector<std::int64_t>& ids) const {
  if (piece.empty()) return {};
  std::string with_space;
  if (prefix_space && piece.front() != ' ') {
    with_space = " " + std::string(piece);
    piece = with_space;
  }
  std::vector<std::string_view> pieces = {piece};
  for (const TextPattern& pattern : patterns) {
    std::vector<std::string_view> finer;
    for (const std::string_view coarse : pieces) {
      if (auto cut = pattern.split(coarse, [&](std::string_view part) { finer.push_back(part); }); !cut) return cut;
    }
    pieces = std::move(finer);
  }
  for (const std::string_view word : pieces) {
    if (auto encoded = encode_word(word, ids); !encoded) return encoded;
  }
  return {};
}

Result<std::vector<std::int64_t>> BytePairEncoder::encode(std::string_view text) const {
  std::vector<std::int64_t> ids;
  std::size_t done = 0;
  for (std::size_t at = text.find_first_of(tables_->added_begin_with); at != std::string_view::npos;) {
    const AddedToken* token = tables_->added_at(text.substr(at));
    if (token != nullptr) {
      if (auto encoded = tables_->encode_piece(text.substr(done, at - done), ids); !encoded)
        return fail(encoded.error());
      ids.push_back(token->id);
      done = at + token->content.size();
    }
    at = text.find_first_of(tables_->added_begin_with, token != nullptr ? done : at + 1);
  }
  if (auto encoded = tables_->encode_piece(text.substr(done), ids); !encoded) return fail(encoded.error());
  return ids;
}

BytePairEncoder::BytePairEncoder(std::unique_ptr<Tables> tables) : tables_(std::move(tables)) {}
BytePairEncoder::BytePairEncoder(BytePairEncoder&&) noexcept = default;
BytePairEncoder& BytePairEncoder::operator=(BytePairEncoder&&) noexcept = default;
BytePairEncoder::~BytePairEncoder() = default;

}  // namespace foreshard::exec
