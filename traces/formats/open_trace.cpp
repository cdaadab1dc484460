#include "traces/formats/open_trace.h"

#include <fmt/core.h>

#include <algorithm>

#include "traces/encodings/byte_file.h"
#include "traces/encodings/byte_source.h"
#include "traces/encodings/tar_entries.h"
#include "traces/formats/fst.h"
#include "traces/formats/kineto.h"
#include "traces/formats/memory_snapshot.h"
#include "traces/timeline/clock_alignment.h"
#ifdef FORESHARD_WITH_SQLITE
#include "traces/formats/nsys.h"
#endif

namespace foreshard {
namespace {

constexpr std::size_t kHeadBytes = 512;  // a tar's header
constexpr int kDeepestArchive = 3;
constexpr std::size_t kMostSnapshotBytes = 4ULL << 30U;  // unpacked
constexpr std::string_view kFstMagic =
    "\x89"
    "FST";
constexpr std::string_view kSqliteMagic = "SQLite format 3";

tl::unexpected<Error> no_recording(const std::string& path, std::string got) {
  Error error = file_error(ErrorCode::BadSyntax, path, "this is no recording that can be read", std::move(got),
                           "docs/traces.md lists the formats");
  error.expected = ".fst, Chrome JSON, a memory snapshot, an nsys sqlite export, a tar of these";
  return fail(std::move(error));
}

Result<OpenedTrace> read_fst_source(ByteSource& source, const std::string& path) {
  auto bytes = read_all(source, kMostFstBytes, path);
  if (!bytes) return fail(bytes.error());
  OpenedTrace opened;
  auto timeline = parse_fst(bytes->view(), path, &opened.arguments);
  if (!timeline) return fail(timeline.error());
  opened.timeline = std::move(*timeline);
  opened.format = "fst";
  return opened;
}

Result<OpenedTrace> read_snapshot_source(ByteSource& source, const std::string& path) {
  const auto bytes = read_all(source, kMostSnapshotBytes, path);
  if (!bytes) return fail(bytes.error());
  return parse_memory_snapshot(bytes->view(), path);
}

Result<OpenedTrace> read_sqlite_source(const std::string& path, bool plain_file, const OpenOptions& options) {
#ifdef FORESHARD_WITH_SQLITE
  if (plain_file) return read_nsys(path, options);
  return fail(file_error(ErrorCode::Unsupported, path, "an nsys export cannot be read inside a packed file",
                         "a packed sqlite file", "unpack it first"));
#else
  static_cast<void>(plain_file);
  static_cast<void>(options);
  return fail(file_error(ErrorCode::Unsupported, path, "this build reads no nsys exports", "a sqlite file",
                         "build with libsqlite3-dev installed"));
#endif
}

Result<OpenedTrace> read_content(std::unique_ptr<ByteSource> source, const std::string& path, bool plain_file,
                                 int depth, const OpenOptions& options);

/// The recordings in an archive are ranks of one job. What is none is left out with a warning, unless nothing is left.
Result<OpenedTrace> read_tar(ByteSource& archive, const std::string& path, int depth, const OpenOptions& options) {
  TarEntries entries(archive);
  std::vector<OpenedTrace> traces;
  std::vector<std::string> places;
  std::vector<TraceWarning> left_out;
  while (entries.next()) {
    const std::string place = path + ":" + entries.name();
    auto opened = read_content(unpacked(entries.content()), place, false, depth + 1, options);
    if (!opened && opened.error().code == ErrorCode::Usage) return fail(opened.error());  // cancelled
    if (!opened) {
      left_out.push_back({place, "left out: " + opened.error().message});
      continue;
    }
    traces.push_back(std::move(*opened));
    places.push_back(place);
  }
  if (traces.empty()) return no_recording(path, "an archive without one");
  OpenedTrace joined = join_ranks(std::move(traces), places);
  joined.warnings.insert(joined.warnings.end(), left_out.begin(), left_out.end());
  if (!entries.damage().empty()) joined.warnings.push_back({path, entries.damage() + ": shown is what is there"});
  return joined;
}

/// The kind of the unpacked bytes, by the first of them.
Result<OpenedTrace> read_content(std::unique_ptr<ByteSource> source, const std::string& path, bool plain_file,
                                 int depth, const OpenOptions& options) {
  PeekedSource peeked(std::move(source), kHeadBytes);
  const std::string_view head = peeked.head();
  if (head.empty()) return no_recording(path, "an empty file");
  if (head.starts_with(kFstMagic)) return read_fst_source(peeked, path);
  if (head.starts_with(kSqliteMagic)) return read_sqlite_source(path, plain_file, options);
  if (head[0] == '\x80') return read_snapshot_source(peeked, path);
  if (is_tar_header(head) && depth < kDeepestArchive) return read_tar(peeked, path, depth, options);
  const std::size_t first = head.find_first_not_of(" \t\r\n\xef\xbb\xbf");
  if (first != std::string_view::npos && (head[first] == '{' || head[first] == '['))
    return read_chrome_json(peeked, path, options);
  return no_recording(path, "other bytes");
}

bool is_packed(std::string_view head) { return head.starts_with("\x1f\x8b") || head.starts_with("\x28\xb5\x2f\xfd"); }

}  // namespace

Result<OpenedTrace> open_trace(const std::string& path, const OpenOptions& options) {
  auto file = open_file(path);
  if (!file) return fail(file.error());
  auto peeked = std::make_unique<PeekedSource>(std::move(*file), 4);
  const bool plain = !is_packed(peeked->head());
  return read_content(unpacked(std::move(peeked)), path, plain, 0, options);
}

Result<OpenedTrace> open_traces(const std::vector<std::string>& paths, const OpenOptions& options) {
  if (paths.empty()) return fail(file_error(ErrorCode::Usage, "", "no recording was named", "nothing", ""));
  if (paths.size() == 1) return open_trace(paths.front(), options);
  std::vector<OpenedTrace> traces;
  for (const std::string& path : paths) {
    OpenOptions part = options;
    if (options.progress) {
      const double done = static_cast<double>(traces.size()), all = static_cast<double>(paths.size());
      part.progress = [&options, done, all](double fraction) { return options.progress((done + fraction) / all); };
    }
    auto opened = open_trace(path, part);
    if (!opened) return fail(opened.error());
    traces.push_back(std::move(*opened));
  }
  return join_ranks(std::move(traces), paths);
}

}  // namespace foreshard
