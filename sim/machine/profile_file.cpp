#include <unistd.h>

#include <toml++/toml.h>
#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <utility>

#include "sim/machine/profile.h"
#include "sim/machine/profile_table.h"

namespace foreshard {
namespace {

namespace fs = std::filesystem;

constexpr std::uintmax_t kLargestFile = 1 << 20;
constexpr int kMostBases = 4;

/// Where profiles lie, most specific first.
std::vector<fs::path> profile_folders() {
  std::vector<fs::path> folders;
  if (const char* given = std::getenv("FORESHARD_PROFILES"); given != nullptr && *given != '\0')
    folders.emplace_back(given);
  std::array<char, 4096> self{};
  const ssize_t length = readlink("/proc/self/exe", self.data(), self.size() - 1);
  if (length > 0) {
    // build/PRESET/bin/foreshard in a checkout, PREFIX/bin/foreshard when installed.
    fs::path folder = fs::path(std::string(self.data(), static_cast<std::size_t>(length))).parent_path();
    folders.push_back(folder / "../share/foreshard/profiles");
    for (int up = 0; up < 5; ++up, folder = folder.parent_path()) folders.push_back(folder / "profiles");
  }
  return folders;
}

Result<std::string> read_file(const fs::path& file) {
  std::error_code code;
  const std::uintmax_t size = fs::file_size(file, code);
  if (code)
    return fail({ErrorCode::NotFound, "the file cannot be read", file.string(), "", "a file", code.message(), ""});
  if (size > kLargestFile) {
    return fail({ErrorCode::TooLarge, "a profile is a small file", file.string(), "", "at most 1 MiB",
                 std::to_string(size) + " bytes", ""});
  }
  std::ifstream in(file, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  if (!in)
    return fail({ErrorCode::NotFound, "the file cannot be read", file.string(), "", "a readable file", "an error", ""});
  return text.str();
}

struct ProfileFile {
  std::string name, text;
};

/// An id of profiles/ or a path, seen from `folder`; `file` and `place` say who names it.
Result<ProfileFile> find_profile(const std::string& id_or_path, const std::string& file, const std::string& place,
                                 const fs::path& folder = {}) {
  std::error_code ignored;
  std::optional<fs::path> found;
  if (id_or_path.find('/') != std::string::npos || id_or_path.ends_with(".toml")) found = folder / id_or_path;
  for (const fs::path& folder : profile_folders()) {
    if (found) break;
    if (fs::path of_id = folder / (id_or_path + ".toml"); fs::is_regular_file(of_id, ignored)) found = of_id;
  }
  if (found) {
    auto text = read_file(*found);
    if (!text && !file.empty()) {
      return fail({text.error().code, "the profile that this one is based on cannot be read", file, place,
                   "the id of a profile, or a path seen from this file", found->string() + ": " + text.error().got,
                   ""});
    }
    if (!text) return fail(text.error());
    return ProfileFile{found->string(), std::move(*text)};
  }
  std::string list;
  for (const std::string& id : known_profiles()) list += (list.empty() ? "" : ", ") + id;
  return fail({ErrorCode::NotFound, "there is no such hardware profile", file, place,
               list.empty() ? "a profile file" : "one of " + list, id_or_path,
               "give the path of a TOML file, or set FORESHARD_PROFILES to the folder that holds the profiles"});
}

Result<toml::table> parse(const std::string& text, const std::string& file) {
  try {
    return toml::table(toml::parse(text));
  } catch (const toml::parse_error& e) {
    std::ostringstream place;
    place << "line " << e.source().begin.line << ", column " << e.source().begin.column;
    return fail({ErrorCode::BadSyntax, "the text is no TOML", file, place.str(), "a TOML document",
                 std::string(e.description()), ""});
  }
}

/// What `own` says stands over what `base` says. Sources of numbers that it says anew are its own or none.
void lay_over(toml::table& base, const toml::table& own, toml::table* sources) {
  for (const auto& [key, node] : own) {
    const toml::table* const rows = node.as_table();
    toml::table* const under = rows == nullptr ? nullptr : base[key].as_table();
    if (sources != nullptr) sources->erase(key);
    if (under == nullptr) {
      base.insert_or_assign(key, node);
    } else {
      lay_over(*under, *rows, key.str() == "sources" ? nullptr : sources);
    }
  }
}

/// Puts under `root` the profile that its key `base` names, and what that one is based on.
std::optional<Error> lay_on_base(toml::table& root, const std::string& file, int most) {
  const toml::node* const node = root.get("base");
  if (node == nullptr) return std::nullopt;
  const auto name = node->value_exact<std::string>();
  if (!name || most == 0) {
    return Error{name ? ErrorCode::OutOfRange : ErrorCode::WrongType,
                 "the hardware profile cannot be used",
                 file,
                 "base",
                 name ? "at most " + std::to_string(kMostBases) + " profiles, one based on the other" : "a text",
                 name ? *name : "another type",
                 name ? "a profile cannot be based on itself" : ""};
  }
  if (!root.contains("id"))
    return Error{ErrorCode::MissingKey,
                 "the hardware profile cannot be used",
                 file,
                 "id",
                 "a name of its own",
                 "nothing",
                 "what is based on " + *name + " is another machine"};
  const auto found = find_profile(*name, file, "base", fs::path(file).parent_path());
  if (!found) return found.error();
  auto base = parse(found->text, found->name);
  if (!base) return base.error();
  if (auto error = lay_on_base(*base, found->name, most - 1)) return error;
  if (const auto alone = read_profile(*base, found->name); !alone) return alone.error();
  root.erase("base");
  toml::table* sources = (*base)["sources"].as_table();
  toml::table said = sources != nullptr ? *sources : toml::table{};
  const toml::table own_sources = root["sources"].is_table() ? *root["sources"].as_table() : toml::table{};
  root.erase("sources");
  lay_over(*base, root, &said);
  said.erase("all");  // the base's, of its numbers
  lay_over(said, own_sources, nullptr);
  base->insert_or_assign("sources", std::move(said));
  root = std::move(*base);
  return std::nullopt;
}

}  // namespace

Result<HardwareProfile> parse_profile(const std::string& text, const std::string& file) {
  auto root = parse(text, file);
  if (!root) return fail(root.error());
  if (auto error = lay_on_base(*root, file, kMostBases)) return fail(std::move(*error));
  return read_profile(*root, file);
}

Result<HardwareProfile> load_profile(const std::string& id_or_path) {
  const auto found = find_profile(id_or_path, "", "cluster.profile");
  if (!found) return fail(found.error());
  return parse_profile(found->text, found->name);
}

std::vector<std::string> known_profiles() {
  std::vector<std::string> ids;
  std::error_code ignored;
  for (const fs::path& folder : profile_folders()) {
    if (!fs::is_directory(folder, ignored)) continue;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
      if (entry.path().extension() == ".toml") ids.push_back(entry.path().stem().string());
    }
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

std::string profile_variant(const std::string& id, const char* ending) {
  const std::vector<std::string> known = known_profiles();
  const std::string variant = id + ending;
  return std::find(known.begin(), known.end(), variant) != known.end() ? variant : "";
}

}  // namespace foreshard
