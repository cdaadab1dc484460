// Kind `invalid`: corrupt and hostile inputs. Argument: the folder with expect.json. Compares the exit code that the
// error gives the program, what the message must name, and the limits of one second and 256 MiB (over all rows of this
// process).
#include <sys/resource.h>

#include <chrono>
#include <filesystem>

#include "core/model/sources/load_model.h"
#include "tests/oracle/oracle.h"

namespace foreshard::oracle {
namespace {

namespace fs = std::filesystem;

constexpr double kSecondsAllowed = 1.0;
constexpr long kKiBAllowed = 256L * 1024;

int exit_code_of(const Result<Model>& model) {
  if (model) return 0;
  return model.error().code == ErrorCode::Usage ? 2 : 3;
}

bool names_one_of(const std::string& text, std::string alternatives) {
  std::size_t begin = 0;
  while (begin <= alternatives.size()) {
    std::size_t end = alternatives.find('|', begin);
    if (end == std::string::npos) end = alternatives.size();
    if (text.find(alternatives.substr(begin, end - begin)) != std::string::npos) return true;
    begin = end + 1;
  }
  return false;
}

RowResult compare_row(const fs::path& folder, const Json& row) {
  RowResult result;
  ModelOptions options;
  options.source = (folder / row.at("file").get<std::string>()).string();
  options.dtype.reset();  // the file's own, so that it is looked at
  const auto start = std::chrono::steady_clock::now();
  const Result<Model> model = load_model(options);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const std::string text = model ? "accepted" : to_text(model.error());
  const int exit_code = exit_code_of(model);
  result.detail = text;
  const auto differs = [&](std::string place, std::string expected, std::string got) {
    result.verdict = Verdict::Fail;
    result.place = std::move(place);
    result.expected = std::move(expected);
    result.got = std::move(got);
    return result;
  };
  if (exit_code != row.at("exit_code").get<int>())
    return differs("exit_code", row.at("exit_code").dump(), std::to_string(exit_code) + ": " + text);
  for (const Json& name : row.at("must_name")) {
    const std::string file = fs::path(options.source).string();
    std::string rest = text;  // the name of the file must not answer for the message
    if (const std::size_t at = rest.find(file); at != std::string::npos) rest.erase(at, file.size());
    if (!names_one_of(rest, name)) return differs("must_name", name, text);
  }
  if (seconds > kSecondsAllowed) return differs("time", "at most 1 s", std::to_string(seconds) + " s");
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  if (usage.ru_maxrss > kKiBAllowed)
    return differs("memory", "at most 256 MiB", std::to_string(usage.ru_maxrss / 1024) + " MiB");
  return result;
}

Report compare_invalid(const std::vector<std::string>& folders, const Options& options) {
  Report report;
  for (const std::string& folder : folders) {
    const Json rows = Json::parse(read_text((fs::path(folder) / "expect.json").string()));
    for (const Json& row : rows) {
      const std::string id = row.at("file");
      if (!options.only.empty() && options.only != id) continue;
      report.rows.push_back(compare_row(folder, row));
      report.rows.back().id = id;
    }
  }
  return report;
}

ORACLE_KIND("invalid", compare_invalid);

}  // namespace
}  // namespace foreshard::oracle
