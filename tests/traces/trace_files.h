// Recordings that tests write: a file that goes when its owner does, and bytes packed as the world packs them.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

namespace foreshard::testing {

class TraceFile {
 public:
  explicit TraceFile(const std::string& name, std::string_view bytes = {});
  ~TraceFile();
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;
  void write(std::string_view bytes) const;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::string gzipped(std::string_view bytes);
std::string zstd_packed(std::string_view bytes);

/// A ustar archive of (name, content).
std::string tar_of(std::initializer_list<std::pair<std::string, std::string>> files);

}  // namespace foreshard::testing
