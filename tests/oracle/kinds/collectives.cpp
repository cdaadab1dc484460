// collectives: published bandwidths. A row passes within 10 % above 1 MiB and 25 % below, or inside its interval.
#include "tests/oracle/validation/validation_rows.h"

namespace foreshard::oracle {
namespace {

Report run(const std::vector<std::string>& files, const Options& options) {
  return validation_report(files, options, "collectives", [&options](const cli::ValidatedNumber& number) {
    const bool small = number.sample.group.find("1 MiB and below") != std::string::npos;
    NumberBound bound{small ? 0.25 : 0.10, 0};
    if (options.bound > 0) bound.row = options.bound;
    return bound;
  });
}

}  // namespace

ORACLE_KIND("collectives", run);

}  // namespace foreshard::oracle
