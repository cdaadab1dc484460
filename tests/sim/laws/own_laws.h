// Laws that a job keeps by itself: what its prediction says agrees with itself, and its text with the job.
#pragma once

#include "tests/sim/laws/law_book.h"
#include "tests/sim/laws/trial.h"

namespace foreshard::testing {

/// `prediction`: of the trial, as the training loop runs it.
void judge_alone(const Trial& trial, const Prediction& prediction, Judge& judge);

}  // namespace foreshard::testing
