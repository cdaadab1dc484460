// published: training runs that others measured. Memory within 2 % (allocated, active) and 12 % (reserved) a row, time
// within 12 % or inside its interval; means as the issue asks. --bound replaces the bound of a row.
#include "tests/oracle/validation/validation_rows.h"

namespace foreshard::oracle {
namespace {

Report run(const std::vector<std::string>& files, const Options& options) {
  return validation_report(files, options, "training", [&options](const cli::ValidatedNumber& number) {
    NumberBound bound{0.12, 0.12};
    if (number.quantity == "peak_allocated_gib" || number.quantity == "peak_active_gib") bound = {0.02, 0.01};
    if (number.quantity == "peak_reserved_gib" || number.quantity == "step1_reserved_gib") bound = {0.12, 0.06};
    if (number.quantity == "after_init_gib") bound = {0.01, 0.01};
    if (number.quantity == "fits") bound = {0, 0};
    if (options.bound > 0 && number.quantity != "fits") bound.row = options.bound;
    return bound;
  });
}

}  // namespace

ORACLE_KIND("published", run);

}  // namespace foreshard::oracle
