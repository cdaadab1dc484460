#include "sim/truth/nccl_tests.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <set>
#include <utility>

namespace foreshard {
namespace {

constexpr std::size_t kMostRows = 10'000;

std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> words;
  for (std::size_t at = 0; at < line.size();) {
    while (at < line.size() && (line[at] == ' ' || line[at] == '\t' || line[at] == '\r')) ++at;
    const std::size_t begin = at;
    while (at < line.size() && line[at] != ' ' && line[at] != '\t' && line[at] != '\r') ++at;
    if (at > begin) words.push_back(line.substr(begin, at - begin));
  }
  return words;
}

std::optional<double> number(std::string_view word) {
  double value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size() || !std::isfinite(value) || value < 0)
    return std::nullopt;
  return value;
}

struct Row {
  double bytes = 0, us = 0, algorithm_gb_per_s = 0, bus_gb_per_s = 0;
  std::optional<double> in_place_us;
  bool reduces = false;
};

/// size count type redop root time algbw busbw #wrong [time algbw busbw #wrong]
std::optional<Row> row_of(const std::vector<std::string_view>& words) {
  if (words.size() < 8) return std::nullopt;
  const auto bytes = number(words[0]), us = number(words[5]), algorithm = number(words[6]), bus = number(words[7]);
  if (!bytes || !us || !algorithm || !bus || *bytes > 1e15 || *us > 1e12) return std::nullopt;
  Row row{*bytes, *us, *algorithm, *bus, std::nullopt, words[3] != "none"};
  if (words.size() >= 10) row.in_place_us = number(words[9]);
  return row;
}

/// 2(n-1)/n: all-reduce; (n-1)/n: a gather, or a reduce-scatter if it reduces; 1: a broadcast.
std::optional<std::string> kind_of(const std::vector<Row>& rows, int ranks) {
  const auto largest = std::max_element(
      rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.algorithm_gb_per_s < b.algorithm_gb_per_s; });
  if (largest->algorithm_gb_per_s <= 0) return std::nullopt;
  const double factor = largest->bus_gb_per_s / largest->algorithm_gb_per_s;
  const double share = static_cast<double>(ranks - 1) / ranks;
  const auto near = [factor](double expected) { return std::abs(factor - expected) < 0.04 * expected; };
  if (ranks > 2 && near(2 * share)) return "all_reduce";
  if (ranks == 2 && near(1.0)) return largest->reduces ? "all_reduce" : "broadcast";
  if (near(share)) return largest->reduces ? "reduce_scatter" : "all_gather";
  if (near(1.0)) return "broadcast";
  return std::nullopt;
}

class Reader {
 public:
  Reader(std::string_view text, const std::string& file) : text_(text), file_(file) {}

  Result<std::vector<NcclTestsRun>> read() {
    int line_number = 0;
    for (std::size_t at = 0; at < text_.size() && !error_;) {
      const std::size_t end = std::min(text_.find('\n', at), text_.size());
      ++line_number;
      line(text_.substr(at, end - at), line_number);
      at = end + 1;
    }
    if (!error_) finish(line_number);
    if (!error_ && runs_.empty())
      wrong(ErrorCode::BadSyntax, line_number, "the table of nccl-tests: size, count, type, redop, root, time, ...",
            "no row");
    if (error_) return fail(*error_);
    return std::move(runs_);
  }

 private:
  void wrong(ErrorCode code, int line, std::string expected, std::string got) {
    if (error_) return;
    error_ = Error{code,
                   "this is no output of nccl-tests that can be used",
                   file_,
                   "line " + std::to_string(line),
                   std::move(expected),
                   std::move(got),
                   "give the whole output of one test, its device list included"};
  }

  void line(std::string_view text, int line_number) {
    const auto words = words_of(text);
    if (words.empty()) return;
    if (words[0].starts_with('#')) {
      if (words.size() > 2 && words[1] == "Rank") device(text, words, line_number);
      return;
    }
    const auto row = row_of(words);
    if (!row) return;  // lines of launchers and libraries in between
    if (rows_.size() >= kMostRows) return wrong(ErrorCode::TooLarge, line_number, "at most 10000 sizes", "more");
    rows_.push_back(*row);
  }

  /// "#  Rank  0 Group  0 Pid  1234 on  node1 device  0 [0x1b] NVIDIA H100 80GB HBM3"
  void device(std::string_view text, const std::vector<std::string_view>& words, int line_number) {
    if (!rows_.empty()) finish(line_number);  // the list of the next test
    ++ranks_;
    for (std::size_t i = 0; i + 1 < words.size(); ++i) {
      if (words[i] == "on") hosts_.emplace(words[i + 1]);
    }
    const std::size_t bracket = text.find("] ");
    if (bracket != std::string_view::npos) device_ = text.substr(bracket + 2);
    while (!device_.empty() && (device_.back() == '\r' || device_.back() == ' ')) device_.pop_back();
  }

  void finish(int line_number) {
    if (rows_.empty()) return;
    if (ranks_ < 2)
      return wrong(ErrorCode::MissingKey, line_number, "a list of two or more devices (# Rank ...)",
                   std::to_string(ranks_));
    const auto kind = kind_of(rows_, ranks_);
    if (!kind) {
      return wrong(ErrorCode::Unsupported, line_number, "busbw over algbw of a collective", "another ratio");
    }
    NcclTestsRun run;
    run.measured.kind = *kind;
    run.measured.ranks = ranks_;
    run.device = device_;
    run.hosts = static_cast<int>(std::max<std::size_t>(hosts_.size(), 1));
    std::stable_sort(rows_.begin(), rows_.end(), [](const Row& a, const Row& b) { return a.bytes < b.bytes; });
    for (const Row& row : rows_) {
      const auto bytes = static_cast<Bytes>(row.bytes);
      if (bytes <= 0 || row.us <= 0) continue;
      if (!run.measured.bytes.empty() && run.measured.bytes.back() == bytes) continue;
      run.measured.bytes.push_back(bytes);
      run.measured.ns.push_back(static_cast<SimDuration>(row.us * 1e3));
      if (row.in_place_us && *row.in_place_us > 0) {
        const double spread = std::abs(*row.in_place_us - row.us) / std::min(*row.in_place_us, row.us);
        run.worst_spread = std::max(run.worst_spread, spread);
      }
    }
    if (!run.measured.bytes.empty()) runs_.push_back(std::move(run));
    rows_.clear();
    hosts_.clear();
    device_.clear();
    ranks_ = 0;
  }

  std::string_view text_;
  const std::string& file_;
  std::vector<Row> rows_;
  std::set<std::string, std::less<>> hosts_;
  std::string device_;
  int ranks_ = 0;
  std::vector<NcclTestsRun> runs_;
  std::optional<Error> error_;
};

}  // namespace

Result<std::vector<NcclTestsRun>> parse_nccl_tests(std::string_view text, const std::string& file) {
  return Reader(text, file).read();
}

}  // namespace foreshard
