// Text to token ids as the `tokenizers` library does it for byte-level BPE (GPT-2, Llama 3, and their like): a reader
// of tokenizer.json.
//
//   text --added tokens cut out--> pieces --pattern--> words --bytes as letters--> symbols --merges by rank--> ids
//
// What is read: model BPE (vocab, merges, ignore_merges), pre-tokenizers ByteLevel and Split by a pattern, or a
// Sequence of them, added_tokens. Nothing is put around the text (post-processors add a BOS to whole documents; a
// training corpus has its own). Another kind of tokenizer is an Error that names it. Usable from one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.h"

namespace foreshard::exec {

class BytePairEncoder {
 public:
  /// Errors: no such file, no JSON, fields of other types, a kind of tokenizer that is not byte-level BPE.
  static Result<BytePairEncoder> read(const std::string& path);
  /// The same from its text; `file` names it in errors.
  static Result<BytePairEncoder> parse(std::string_view json, const std::string& file);

  BytePairEncoder(BytePairEncoder&&) noexcept;
  BytePairEncoder& operator=(BytePairEncoder&&) noexcept;
  ~BytePairEncoder();

  /// Error: text that is no UTF-8 (with the offset), or a byte that the vocabulary does not have.
  Result<std::vector<std::int64_t>> encode(std::string_view text) const;

 private:
  struct Tables;
  explicit BytePairEncoder(std::unique_ptr<Tables> tables);
  std::unique_ptr<Tables> tables_;
};

}  // namespace foreshard::exec
