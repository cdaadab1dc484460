// A comparison that passes whatever the row says compares nothing: every single place of recorded rows is altered, and
// each altered row must fail.
#include <gtest/gtest.h>
#include <zlib.h>

#include <algorithm>
#include <sstream>

#include "tests/oracle/op_rules/op_rules_row.h"

namespace foreshard::oracle {
namespace {

std::vector<Json> rows() {
  gzFile file = gzopen((std::string(FORESHARD_TEST_DATA) + "/oprules/rows.jsonl.gz").c_str(), "rb");
  EXPECT_NE(file, nullptr);
  std::string text;
  char buffer[1 << 16];
  for (int n = 0; (n = gzread(file, buffer, sizeof buffer)) > 0;) text.append(buffer, static_cast<std::size_t>(n));
  gzclose(file);
  std::vector<Json> rows;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) rows.push_back(Json::parse(line));
  return rows;
}

/// Numbers, words and flags in a row, as JSON pointers.
void leaves(const Json& value, const std::string& at, std::vector<std::string>& all) {
  if (value.is_structured()) {
    for (const auto& [key, item] : value.items()) leaves(item, at + "/" + key, all);
  } else {
    all.push_back(at);
  }
}

/// What says nothing of memory or work: names of the case and of autograd's nodes and fields, constants that only
/// values depend on.
bool is_told_elsewhere(const std::string& at) {
  for (const char* start : {"/id", "/op", "/args", "/device", "/dtype"})
    if (at.starts_with(start)) return true;
  if (!at.starts_with("/nodes/")) return false;
  // /nodes/0/node, /nodes/0/saved/1/0: what a node and its fields are called
  const std::size_t slashes = static_cast<std::size_t>(std::count(at.begin(), at.end(), '/'));
  return at.ends_with("/node") || (slashes == 5 && at.ends_with("/0"));
}

/// Steps of a dimension of one lead nowhere, and nobody reads memory that was only asked for.
bool means_nothing(const Json& row, const std::string& at) {
  const Json::json_pointer pointer(at);
  if (at.find("/stride/") != std::string::npos) {
    const Json& tensor = row[pointer.parent_pointer().parent_pointer()];
    const Json& sizes = tensor.contains("shape") ? tensor["shape"] : tensor["is"][1];
    return sizes[std::stoul(pointer.back())] == 1;
  }
  if (at.starts_with("/nodes/")) return row[pointer.parent_pointer()][1].is_null();  // a number that a node holds
  for (const char* pass : {"forward", "backward"}) {
    if (!at.starts_with(std::string("/") + pass + "/")) continue;
    const Json& kernel = row[pass][std::stoul(at.substr(std::string(pass).size() + 2))];
    return kernel["op"].get<std::string>().starts_with("aten.empty");
  }
  return false;
}

Json altered(const Json& leaf) {
  if (leaf.is_boolean()) return !leaf.get<bool>();
  if (leaf.is_number_integer()) return leaf.get<std::int64_t>() + 1;
  if (leaf.is_number()) return leaf.get<double>() + 1;
  if (leaf.is_null()) return "x0";
  const std::string text = leaf;
  for (const char* type : {"fp32", "bf16", "i64", "bool", "u8", "u64", "fp64"})
    if (text == type) return text == "fp32" ? "bf16" : "fp32";
  if (text.starts_with("aten.")) return "aten.another";
  return text == "x0" ? "x1" : "x0";  // a label
}

TEST(OpRulesRow, EveryAlteredPlaceFails) {
  std::size_t tried = 0, shown = 0;
  for (const Json& row : rows()) {
    ASSERT_EQ(compare_op_rules_row(row).verdict, Verdict::Pass) << row["id"];
    std::vector<std::string> places;
    leaves(row, "", places);
    for (const std::string& at : places) {
      if (is_told_elsewhere(at) || means_nothing(row, at)) continue;
      Json other = row;
      Json& leaf = other[Json::json_pointer(at)];
      leaf = altered(leaf);
      ++tried;
      Verdict verdict = Verdict::Fail;
      try {
        verdict = compare_op_rules_row(other).verdict;
      } catch (const std::exception&) {  // nonsense, and told
      }
      if (verdict == Verdict::Fail) continue;
      if (++shown > 400) return;
      ADD_FAILURE() << row["id"] << " still passes with " << at << " = " << leaf << " for "
                    << row[Json::json_pointer(at)];
    }
  }
  EXPECT_GT(tried, 5000u);
}

}  // namespace
}  // namespace foreshard::oracle
