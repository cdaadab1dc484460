#include "cli/validate/validation_pairs.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace foreshard::cli {
namespace {

constexpr std::array<std::string_view, 15> kFixed{"model", "n_layers", "hidden",        "n_heads",      "ffn_hidden",
                                                  "vocab", "gpu",      "gpus_per_node", "pp",           "cp",
                                                  "ep",    "wrap",     "param_dtype",   "reduce_dtype", "master_dtype"};
constexpr std::array<std::string_view, 13> kSwitches{"runtime",
                                                     "sharding",
                                                     "tp",
                                                     "gpus",
                                                     "optimizer",
                                                     "activation_checkpointing",
                                                     "compile",
                                                     "backward_prefetch",
                                                     "forward_prefetch",
                                                     "limit_all_gathers",
                                                     "local_batch",
                                                     "grad_accum",
                                                     "seq_len"};
constexpr std::array<std::string_view, 4> kOfRuntime{"sharding", "backward_prefetch", "forward_prefetch",
                                                     "limit_all_gathers"};

/// "full_shard reshard=always" and "full_shard reshard=never" are one strategy.
std::string_view strategy_of(std::string_view sharding) { return sharding.substr(0, sharding.find(' ')); }

std::string only_switch(const CsvTable& table, const CsvTable::Row& a, const CsvTable::Row& b) {
  for (const std::string_view column : kFixed) {
    if (table.cell(a, column) != table.cell(b, column)) return {};
  }
  // A switch that has no column.
  constexpr std::string_view kDeterministic = "deterministic algorithms on";
  const bool a_fixed = table.cell(a, "notes").find(kDeterministic) != std::string::npos;
  const bool b_fixed = table.cell(b, "notes").find(kDeterministic) != std::string::npos;
  if (a_fixed != b_fixed) return {};
  const bool runtime = table.cell(a, "runtime") != table.cell(b, "runtime");
  std::string found;
  for (const std::string_view column : kSwitches) {
    const std::string &x = table.cell(a, column), &y = table.cell(b, column);
    if (x == y) continue;
    if (runtime && std::find(kOfRuntime.begin(), kOfRuntime.end(), column) != kOfRuntime.end() &&
        (column != "sharding" || strategy_of(x) == strategy_of(y)))
      continue;
    if (!found.empty() || x.empty() || y.empty()) return {};  // what is not recorded is no known difference
    found = column;
  }
  return found;
}

}  // namespace

std::vector<SwitchPair> switch_pairs(const CsvTable& table) {
  std::vector<SwitchPair> pairs;
  const auto& rows = table.rows();
  for (std::size_t a = 0; a < rows.size(); ++a) {
    for (std::size_t b = a + 1; b < rows.size(); ++b) {
      const std::string &x = table.cell(rows[a], "id"), &y = table.cell(rows[b], "id");
      if (x.substr(0, 1) != y.substr(0, 1)) continue;
      std::string column = only_switch(table, rows[a], rows[b]);
      if (!column.empty()) pairs.push_back({a, b, std::move(column)});
    }
  }
  return pairs;
}

}  // namespace foreshard::cli
