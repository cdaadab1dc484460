// foreshard-oracle: compares what the rooms compute with recordings, row by row (docs/oracle.md). One file per KIND.
//
// A kind registers itself with ORACLE_KIND(name, needs) in its own source. It reads the files, rebuilds each row's
// configuration with the rooms' public headers, compares everything the row states and returns one RowResult per row.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

namespace foreshard::oracle {

using Json = nlohmann::ordered_json;

enum class Verdict { Pass, Fail, Skip };

struct RowResult {
  std::string id;
  Verdict verdict = Verdict::Pass;
  std::string place;  // first place that differs
  std::string expected;
  std::string got;
  std::string detail;  // the whole difference, for --verbose; for Skip: the reason
};

struct Options {
  std::string only;  // --only ID; empty = all
  double bound = 0;  // --bound SHARE: relative error that still passes, for kinds of statistics; 0 = the kind's own
  bool verbose = false;
};

struct Report {
  std::vector<RowResult> rows;
  std::vector<std::string> summary;  // lines printed before the last one: error statistics and the like
  bool statistics_failed = false;    // a summary line is out of its bound
};

using Kind = std::function<Report(const std::vector<std::string>& arguments, const Options& options)>;

/// Called by ORACLE_KIND.
bool register_kind(const char* name, Kind kind);

/// The whole text of a file, gunzipped if it is gz. Throws std::runtime_error naming the file.
std::string read_text(const std::string& path);

/// A file without rows: the program ends with 1, as for a row that differs.
struct NothingToCompare : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// JSON lines of a file (plain or gz), or the one document of a .json file. Infinite numbers are the text "inf". Throws
/// NothingToCompare, or std::runtime_error naming file and line.
std::vector<Json> read_rows(const std::string& path);

/// Convenience for most kinds: `compare` is called for every row of every file that --only lets through; what it throws
/// is a failure.
Report for_each_row(const std::vector<std::string>& files, const Options& options,
                    const std::function<RowResult(const Json& row)>& compare);

}  // namespace foreshard::oracle

#define ORACLE_KIND(name, function) \
  [[maybe_unused]] static const bool k_registered_##function = ::foreshard::oracle::register_kind(name, function)
