#include "core/model/pt2/archive.h"

#include <zip.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <set>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/model/json_input.h"
#include "core/model/pt2/zip_handles.h"
#include "core/text/edit_distance.h"

namespace foreshard {
namespace {

constexpr std::string_view kLegacyProgram = "serialized_exported_program.json";
constexpr std::size_t kEndRecord = 22, kLongestComment = 65535;

Error archive_error(ErrorCode code, const std::string& file, std::string place, std::string message,
                    std::string expected, std::string got) {
  return {code, std::move(message), file, std::move(place), std::move(expected), std::move(got), {}};
}

std::uint64_t little(std::string_view bytes, std::size_t at, std::size_t width) {
  std::uint64_t value = 0;
  for (std::size_t i = width; i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[at + i]);
  return value;
}

/// Looks at the end of the file only, so that a forged directory costs nothing. `tail` ends where the file ends.
Result<void> check_directory(std::string_view tail, std::uint64_t file_size, const std::string& file,
                             const Pt2Limits& limits) {
  const std::size_t end =
      tail.size() < kEndRecord ? std::string_view::npos : tail.rfind("PK\5\6", tail.size() - kEndRecord);
  if (end == std::string_view::npos) {
    return fail(archive_error(ErrorCode::BadSyntax, file, "central directory",
                              file_size == 0 ? "the file is empty" : "this is no zip archive, or it is truncated",
                              "a zip archive, which ends with its central directory",
                              std::to_string(file_size) + " bytes without one"));
  }
  std::uint64_t count = little(tail, end + 10, 2), bytes = little(tail, end + 12, 4);
  if ((count == 0xffff || bytes == 0xffffffff) && end >= 20 + 56) {  // zip64: its record stands before the locator
    const std::size_t record = tail.rfind("PK\6\6", end - 20 - 56);
    if (record != std::string_view::npos) {
      count = little(tail, record + 32, 8);
      bytes = little(tail, record + 40, 8);
    }
  }
  if (count > static_cast<std::uint64_t>(limits.max_members) ||
      bytes > static_cast<std::uint64_t>(limits.max_directory)) {
    return fail(archive_error(ErrorCode::TooLarge, file, "central directory", "the archive has too many members",
                              "at most " + std::to_string(limits.max_members) + " members in " +
                                  std::to_string(limits.max_directory / kMiB) + " MiB of directory",
                              std::to_string(count) + " members in " + std::to_string(bytes) + " bytes"));
  }
  return {};
}

std::vector<std::string_view> parts_of(std::string_view name) {
  std::vector<std::string_view> parts;
  for (std::size_t begin = 0;;) {
    const std::size_t slash = name.find('/', begin);
    parts.push_back(name.substr(begin, slash - begin));
    if (slash == std::string_view::npos) return parts;
    begin = slash + 1;
  }
}

/// Absolute names, drive letters, backslashes and ".." climb out; such members are never looked at.
bool is_safe(const std::vector<std::string_view>& parts) {
  return std::none_of(parts.begin(), parts.end(), [](std::string_view part) {
    return part.empty() || part == "." || part == ".." || part.find_first_of(std::string_view("\\:\0", 3)) != part.npos;
  });
}

class ArchiveReader {
 public:
  ArchiveReader(zip_t* zip, const std::string& file, std::string_view wanted, const Pt2Limits& limits)
      : zip_(zip), file_(file), wanted_(wanted), limits_(limits) {}

  Result<Pt2Members> run() {
    if (Result<void> done = list(); !done) return fail(std::move(done.error()));
    Result<std::string> program = program_member();
    if (!program) return fail(std::move(program.error()));
    Pt2Members members;
    members.program_name = *program;
    Result<std::string> text = text_of(*program, limits_.max_program);
    if (!text) return fail(std::move(text.error()));
    members.program = std::move(*text);
    if (*program == kLegacyProgram) return members;  // the rest are pickles
    const auto parts = parts_of(members.program_name);
    const std::string root(parts[0]);
    const std::string name(name_of(members.program_name));
    if (Result<void> known = check_layout(root); !known) return fail(std::move(known.error()));
    members.weights_name = root + "/data/weights/" + name + "_weights_config.json";
    members.constants_name = root + "/data/constants/" + name + "_constants_config.json";
    for (const auto& [member, into] :
         {std::pair{&members.weights_name, &members.weights}, std::pair{&members.constants_name, &members.constants}}) {
      if (!names_.contains(*member)) continue;
      Result<std::string> config = text_of(*member, limits_.max_config);
      if (!config) return fail(std::move(config.error()));
      *into = std::move(*config);
    }
    list_payloads(root + "/data/weights/", members);
    return members;
  }

 private:
  Result<void> list() {
    const zip_int64_t count = zip_get_num_entries(zip_, 0);
    for (zip_int64_t i = 0; i < count; ++i) {
      const char* raw = zip_get_name(zip_, static_cast<zip_uint64_t>(i), ZIP_FL_ENC_RAW);
      if (raw == nullptr) continue;
      const std::string name(raw);
      if (!names_.insert(name).second) {
        return fail(archive_error(ErrorCode::Inconsistent, file_, in_quotes(name),
                                  "the archive has two members of one name", "one", "two"));
      }
      const auto parts = parts_of(name);
      if (!is_safe(parts)) continue;
      if (parts.size() == 3 && parts[1] == "models" && parts[2].ends_with(".json")) programs_.insert(name);
      if (name == kLegacyProgram) programs_.insert(name);
    }
    return {};
  }

  /// What the archive says of itself; a member that is not there says nothing.
  Result<void> check_layout(const std::string& root) const {
    constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kKnown{
        {{"archive_format", "pt2"}, {"archive_version", "0"}, {"byteorder", "little"}}};
    for (const auto& [member, value] : kKnown) {
      const std::string name = root + "/" + std::string(member);
      if (!names_.contains(name)) continue;
      Result<std::string> text = text_of(name, kMiB);
      if (!text) return fail(std::move(text.error()));
      text->erase(text->find_last_not_of(" \r\n\t") + 1);
      if (*text == value) continue;
      return fail(archive_error(ErrorCode::Unsupported, file_, name,
                                "the " + std::string(member) + " of the archive is one that this reader does not know",
                                std::string(value), in_quotes(text->substr(0, 40))));
    }
    return {};
  }

  Result<std::string> program_member() const {
    std::set<std::string> roots;
    std::string members, names;
    for (const std::string& name : programs_) {
      roots.insert(name.substr(0, name.find('/')));
      members += (members.empty() ? "" : ", ") + in_quotes(name);
      names += (names.empty() ? "" : ", ") + in_quotes(name_of(name));
    }
    if (programs_.empty()) {
      return fail(archive_error(ErrorCode::MissingKey, file_, "models/model.json", "the archive holds no program",
                                "a member models/model.json under one top folder", "none"));
    }
    if (roots.size() > 1) {
      return fail(archive_error(ErrorCode::Inconsistent, file_, "models/",
                                "two root folders of the archive hold a program", "one root folder", members));
    }
    if (wanted_.empty() && programs_.size() == 1) return *programs_.begin();
    for (const std::string& name : programs_)
      if (name_of(name) == wanted_) return name;
    Error error = archive_error(wanted_.empty() ? ErrorCode::MissingKey : ErrorCode::NotFound, file_, "model.program",
                                wanted_.empty() ? "the archive holds several programs, and none is named"
                                                : "the archive holds no program of that name",
                                (programs_.size() == 1 ? "" : "one of ") + names,
                                wanted_.empty() ? "nothing" : in_quotes(wanted_));
    error.hint =
        meant() + (programs_.size() == 1 ? "leave model.program out" : "--program NAME, or model.program in the job");
    return fail(std::move(error));
  }

  /// The names that a wrong one is near to, nearest first, at most three.
  std::string meant() const {
    constexpr std::size_t kLongest = 64, kMost = 3;  // hostile archives have long names, and many
    if (wanted_.empty() || wanted_.size() > kLongest) return {};
    const std::size_t furthest = std::max<std::size_t>(2, wanted_.size() / 3);
    std::vector<std::pair<std::size_t, std::string_view>> near;
    for (const std::string& name : programs_) {
      const std::size_t distance = edit_distance(wanted_, name_of(name));
      if (distance <= furthest) near.emplace_back(distance, name_of(name));
    }
    std::stable_sort(near.begin(), near.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    if (near.size() > kMost) near.resize(kMost);
    std::string text;
    for (const auto& [distance, name] : near) text += (text.empty() ? "did you mean " : " or ") + in_quotes(name);
    return text.empty() ? text : text + "? ";
  }

  /// models/<name>.json; the flat container of old has one program without a name.
  static std::string_view name_of(std::string_view member) {
    if (member == kLegacyProgram) return "model";
    member.remove_suffix(std::string_view(".json").size());
    return member.substr(member.rfind('/') + 1);
  }

  Result<std::string> text_of(const std::string& name, Bytes limit) const {
    const auto bad = [&](ErrorCode code, std::string message, std::string expected, std::string got) {
      return fail(archive_error(code, file_, name, std::move(message), std::move(expected), std::move(got)));
    };
    zip_stat_t stat;
    zip_stat_init(&stat);
    if (zip_stat(zip_, name.c_str(), ZIP_FL_ENC_RAW, &stat) != 0 || (stat.valid & ZIP_STAT_SIZE) == 0)
      return bad(ErrorCode::BadSyntax, "the member of the archive cannot be read", "a readable member", "none");
    const std::string at_most = "at most " + std::to_string(limit / kMiB) + " MiB";
    if (stat.size > static_cast<zip_uint64_t>(limit))
      return bad(ErrorCode::TooLarge, "the member of the archive is too large", at_most,
                 std::to_string(stat.size) + " bytes");
    const ZipFile file(zip_fopen_index(zip_, stat.index, 0));
    if (!file)
      return bad(ErrorCode::BadSyntax, "the member of the archive cannot be opened", "a stored or deflated member",
                 zip_strerror(zip_));
    std::string text(static_cast<std::size_t>(stat.size), '\0');
    std::size_t done = 0;
    char beyond = 0;
    for (;;) {  // until the end is seen: only then is the checksum compared
      const bool full = done == text.size();
      const zip_int64_t n =
          full ? zip_fread(file.get(), &beyond, 1) : zip_fread(file.get(), text.data() + done, text.size() - done);
      if (n < 0)
        return bad(ErrorCode::BadSyntax, "the member of the archive is damaged", "data with the checksum that is noted",
                   zip_error_strerror(zip_file_get_error(file.get())));
      if (n == 0) break;
      if (full)
        return bad(ErrorCode::Inconsistent, "the member of the archive is larger than its size says",
                   std::to_string(text.size()) + " bytes", "more");
      done += static_cast<std::size_t>(n);
    }
    if (done != text.size())
      return bad(ErrorCode::BadSyntax, "the member of the archive is truncated", std::to_string(text.size()) + " bytes",
                 std::to_string(done));
    return text;
  }

  void list_payloads(const std::string& folder, Pt2Members& members) const {
    for (const std::string& name : names_) {
      if (!name.starts_with(folder) || name.find('/', folder.size()) != std::string::npos) continue;
      zip_stat_t stat;
      zip_stat_init(&stat);
      if (zip_stat(zip_, name.c_str(), ZIP_FL_ENC_RAW, &stat) == 0 && (stat.valid & ZIP_STAT_SIZE) != 0)
        members.payload_bytes[name.substr(folder.size())] = static_cast<Bytes>(stat.size);
    }
  }

  zip_t* zip_;
  const std::string& file_;
  std::string wanted_;  // empty: the only one
  const Pt2Limits& limits_;
  std::unordered_set<std::string> names_;
  std::set<std::string> programs_;
};

Result<Pt2Members> read_source(zip_source_t* source, const std::string& file, std::string_view program,
                               const Pt2Limits& limits) {
  zip_error_t error;
  zip_error_init(&error);
  const Zip zip(zip_open_from_source(source, ZIP_RDONLY, &error));
  if (!zip) {
    zip_source_free(source);
    const std::string why = zip_error_strerror(&error);
    zip_error_fini(&error);
    return fail(archive_error(ErrorCode::BadSyntax, file, "central directory",
                              "this is no zip archive, or it is truncated", "a zip archive", why));
  }
  zip_error_fini(&error);
  return ArchiveReader(zip.get(), file, program, limits).run();
}

Result<std::string> tail_of(const std::string& path, std::uint64_t& size) {
  Error unreadable{ErrorCode::NotFound, "the file cannot be read", path, {}, "a readable file",
                   "an error",          "check the path"};
  std::error_code failed;
  if (!std::filesystem::is_regular_file(path, failed)) return fail(std::move(unreadable));
  size = std::filesystem::file_size(path, failed);
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), &std::fclose);
  if (failed || !file) return fail(std::move(unreadable));
  std::string tail(std::min<std::uint64_t>(size, kEndRecord + kLongestComment + 76), '\0');
  if (std::fseek(file.get(), -static_cast<long>(tail.size()), SEEK_END) != 0 ||
      std::fread(tail.data(), 1, tail.size(), file.get()) != tail.size())
    return fail(std::move(unreadable));
  return tail;
}

}  // namespace

Result<Pt2Members> read_pt2_archive(const std::string& path, std::string_view program, const Pt2Limits& limits) {
  std::uint64_t size = 0;
  const Result<std::string> tail = tail_of(path, size);
  if (!tail) return fail(tail.error());
  if (Result<void> good = check_directory(*tail, size, path, limits); !good) return fail(std::move(good.error()));
  zip_error_t error;
  zip_error_init(&error);
  zip_source_t* source = zip_source_file_create(path.c_str(), 0, -1, &error);
  zip_error_fini(&error);
  if (source == nullptr)
    return fail(archive_error(ErrorCode::NotFound, path, {}, "the file cannot be read", "a readable file", "an error"));
  return read_source(source, path, program, limits);
}

Result<Pt2Members> read_pt2_bytes(std::string_view bytes, const std::string& file, std::string_view program,
                                  const Pt2Limits& limits) {
  const std::string_view tail = bytes.substr(bytes.size() - std::min(bytes.size(), kEndRecord + kLongestComment + 76));
  if (Result<void> good = check_directory(tail, bytes.size(), file, limits); !good)
    return fail(std::move(good.error()));
  zip_error_t error;
  zip_error_init(&error);
  zip_source_t* source = zip_source_buffer_create(bytes.data(), bytes.size(), 0, &error);
  zip_error_fini(&error);
  if (source == nullptr)
    return fail(archive_error(ErrorCode::TooLarge, file, {}, "the archive cannot be opened", "memory for it", "none"));
  return read_source(source, file, program, limits);
}

}  // namespace foreshard
