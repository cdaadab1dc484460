// What the kinds `published` and `collectives` share: a table predicted by cli/validate/validation.h, told row by row.
#pragma once

#include <functional>

#include "cli/validate/validation.h"
#include "tests/oracle/oracle.h"

namespace foreshard::oracle {

/// How far a number may be off, and that its group stays within `mean`.
struct NumberBound {
  double row = 0, mean = 0;
};

/// `bound_of` tells the bound of a number; a number that does not count never fails a row.
Report validation_report(const std::vector<std::string>& files, const Options& options, const std::string& kind,
                         const std::function<NumberBound(const cli::ValidatedNumber& number)>& bound_of);

}  // namespace foreshard::oracle
