// The program foreshard-oracle: KIND FILE... [--only ID] [--bound SHARE] [--verbose] [--json].
#include <zlib.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <stdexcept>

#include "tests/oracle/oracle.h"

namespace foreshard::oracle {
namespace {

std::map<std::string, Kind>& kinds() {
  static std::map<std::string, Kind> registered;  // filled before main by ORACLE_KIND
  return registered;
}

int usage(const char* why) {
  std::fprintf(stderr,
               "foreshard-oracle: %s\nusage: foreshard-oracle KIND FILE... [--only ID] [--bound SHARE] [--verbose] "
               "[--json]\nkinds:",
               why);
  for (const auto& [name, kind] : kinds()) std::fprintf(stderr, " %s", name.c_str());
  std::fprintf(stderr, "\n");
  return 2;
}

const char* verdict_name(Verdict verdict) {
  return verdict == Verdict::Pass ? "pass" : verdict == Verdict::Fail ? "fail" : "skip";
}

int print(const Report& report, bool verbose, bool json) {
  int passed = 0, failed = 0, skipped = 0;
  for (const RowResult& row : report.rows) {
    (row.verdict == Verdict::Pass ? passed : row.verdict == Verdict::Fail ? failed : skipped)++;
    if (json) {
      const Json line = {{"id", row.id},       {"verdict", verdict_name(row.verdict)},
                         {"place", row.place}, {"expected", row.expected},
                         {"got", row.got},     {"detail", row.detail}};
      std::printf("%s\n", line.dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
    } else if (row.verdict == Verdict::Fail) {
      std::printf("FAIL %s at %s: expected %s, got %s\n", row.id.c_str(), row.place.c_str(), row.expected.c_str(),
                  row.got.c_str());
      if (verbose && !row.detail.empty()) std::printf("%s\n", row.detail.c_str());
    } else if (row.verdict == Verdict::Skip) {
      std::printf("SKIP %s: %s\n", row.id.c_str(), row.detail.c_str());
    } else if (verbose && !row.detail.empty()) {
      std::printf("pass %s: %s\n", row.id.c_str(), row.detail.c_str());
    }
  }
  for (const std::string& line : report.summary) std::printf("%s\n", line.c_str());
  if (report.rows.empty()) std::printf("FAIL: nothing was compared\n");
  std::printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped);
  return failed > 0 || report.rows.empty() || report.statistics_failed ? 1 : 0;
}

}  // namespace

bool register_kind(const char* name, Kind kind) { return kinds().emplace(name, std::move(kind)).second; }

std::string read_text(const std::string& path) {
  gzFile file = gzopen(path.c_str(), "rb");  // reads plain files as they are
  if (file == nullptr) throw std::runtime_error("cannot open " + path);
  std::string text;
  char buffer[1 << 16];
  int n = 0;
  while ((n = gzread(file, buffer, sizeof buffer)) > 0) text.append(buffer, static_cast<std::size_t>(n));
  gzclose(file);
  if (n < 0) throw std::runtime_error("cannot read " + path);
  return text;
}

namespace {

/// Python writes an infinite number as a bare word, which JSON does not know.
std::string without_infinity(std::string line) {
  for (const std::string word : {":Infinity", ": Infinity"}) {
    for (std::size_t at = line.find(word); at != std::string::npos; at = line.find(word))
      line.replace(at, word.size(), ":\"inf\"");
  }
  return line;
}

}  // namespace

/// Of a folder's files (FOLDER/*) those that hold no rows, as its page and scripts; a file alone is meant.
std::vector<std::string> with_rows(const std::vector<std::string>& files) {
  std::vector<std::string> kept;
  for (const std::string& file : files) {
    const bool page = file.ends_with(".md") || file.ends_with(".py");
    if (files.size() < 2 || (!page && !std::filesystem::is_directory(file)))
      kept.push_back(file);
    else
      std::fprintf(stderr, "foreshard-oracle: %s holds no rows: passed over\n", file.c_str());
  }
  return kept;
}

std::vector<Json> read_rows(const std::string& path) {
  const std::string text = read_text(path);
  std::vector<Json> rows;
  std::size_t begin = 0;
  int line = 1;
  try {
    const bool lines = path.find(".jsonl") != std::string::npos;
    if (!lines) return {Json::parse(text)};
    for (; begin < text.size(); ++line) {
      std::size_t end = text.find('\n', begin);
      if (end == std::string::npos) end = text.size();
      if (end > begin) rows.push_back(Json::parse(without_infinity(text.substr(begin, end - begin))));
      begin = end + 1;
    }
  } catch (const Json::exception& e) {
    throw std::runtime_error(path + ":" + std::to_string(line) + ": " + e.what());
  }
  if (rows.empty()) throw NothingToCompare(path + " has no rows");
  return rows;
}

Report for_each_row(const std::vector<std::string>& files, const Options& options,
                    const std::function<RowResult(const Json& row)>& compare) {
  Report report;
  for (const std::string& file : files) {
    for (const Json& row : read_rows(file)) {
      const std::string id = row.value("id", std::string("?"));
      if (!options.only.empty() && id != options.only) continue;
      try {
        report.rows.push_back(compare(row));
      } catch (const std::exception& e) {
        report.rows.push_back({id, Verdict::Fail, "row", "a comparison", e.what(), {}});
      }
      report.rows.back().id = id;
    }
  }
  return report;
}

int run(int argc, char** argv) {
  std::vector<std::string> arguments;
  Options options;
  bool json = false;
  std::string name;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg == "--verbose") {
      options.verbose = true;
    } else if (arg == "--json") {
      json = true;
    } else if (arg == "--only" && i + 1 < argc) {
      options.only = argv[++i];
    } else if (arg == "--bound" && i + 1 < argc) {
      options.bound = std::strtod(argv[++i], nullptr);
    } else if (arg.starts_with("--")) {
      return usage(("unknown flag " + arg).c_str());
    } else if (name.empty()) {
      name = arg;
    } else {
      arguments.push_back(arg);
    }
  }
  const auto kind = kinds().find(name);
  if (kind == kinds().end()) return usage(name.empty() ? "KIND is missing" : ("unknown kind " + name).c_str());
  if (arguments.empty()) return usage("FILE is missing");
  try {
    const bool rows = name == "meshes" || name == "practice" || name == "gpu-memory" || name == "training";
    return print(kind->second(rows ? with_rows(arguments) : arguments, options), options.verbose, json);
  } catch (const NothingToCompare& e) {
    std::fprintf(stderr, "foreshard-oracle: %s\n", e.what());
    return 1;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "foreshard-oracle: %s\n", e.what());
    return 3;
  }
}

}  // namespace foreshard::oracle

int main(int argc, char** argv) { return foreshard::oracle::run(argc, argv); }
