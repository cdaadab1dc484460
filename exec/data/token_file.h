// A file of token ids, little-endian u16 or u32 one after another and nothing else, mapped into memory: only pages that
// are read are loaded, and ranks of one machine share them. Read-only, usable from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "core/result.h"

namespace foreshard::exec {

enum class TokenWidth : std::uint8_t { U16 = 2, U32 = 4 };  // bytes

/// By the file's ending: .u16 or .u32; any other (nanoGPT's .bin) holds the smallest width that the vocabulary needs.
TokenWidth token_width(const std::string& path, std::int64_t vocabulary);

class TokenFile {
 public:
  /// Errors: no such file, an empty one, a size that is no multiple of the width.
  static Result<TokenFile> open(const std::string& path, TokenWidth width);

  std::int64_t count() const { return count_; }
  const std::string& path() const { return path_; }
  /// ids[i] = token begin + i. REQUIRES begin + ids.size() <= count().
  void read(std::int64_t begin, std::span<std::int64_t> ids) const;

 private:
  TokenFile() = default;

  std::string path_;
  TokenWidth width_ = TokenWidth::U16;
  std::int64_t count_ = 0;
  std::shared_ptr<const unsigned char> memory_;
};

}  // namespace foreshard::exec
