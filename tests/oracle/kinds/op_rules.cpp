// Kind op-rules: rows of oracle/op_rules, one operator each (op_rules_row.h).
#include "tests/oracle/op_rules/op_rules_row.h"

namespace foreshard::oracle {
namespace {

Report op_rules_kind(const std::vector<std::string>& files, const Options& options) {
  return for_each_row(files, options, compare_op_rules_row);
}

ORACLE_KIND("op-rules", op_rules_kind);

}  // namespace
}  // namespace foreshard::oracle
