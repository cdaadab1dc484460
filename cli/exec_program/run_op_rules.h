// `foreshard doctor --op-rules MODEL`: every distinct operator of a model, asked of LibTorch and compared with our
// rules.
#pragma once

#include "cli/console/console.h"
#include "cli/console/flags.h"

namespace foreshard::cli {

/// Exit code 0 whatever the answer is (doctor never fails), 3 if the model cannot be read.
ExitCode run_op_rules(const JobFlags& model, const Console& console);

}  // namespace foreshard::cli
