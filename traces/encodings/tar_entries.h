// The files in a tar archive, one after another as a stream (ustar, with GNU's and pax' long names left as they are
// cut). A damaged or truncated archive ends early; `damage` says so.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "traces/encodings/byte_source.h"

namespace foreshard {

/// 512 bytes of a header with a right checksum.
bool is_tar_header(std::string_view head);

class TarEntries {
 public:
  /// REQUIRES that `archive` lives as long as the entries' sources.
  explicit TarEntries(ByteSource& archive) : archive_(archive) {}

  /// The next regular file; what was not read of the one before is skipped. False at the end.
  bool next();
  const std::string& name() const { return name_; }

  /// Its bytes. Valid until next().
  std::unique_ptr<ByteSource> content();
  const std::string& damage() const { return damage_; }

 private:
  friend class TarContent;
  bool skip(std::uint64_t bytes);

  ByteSource& archive_;
  std::string name_, damage_;
  std::uint64_t left_ = 0, padding_ = 0;
};

}  // namespace foreshard
