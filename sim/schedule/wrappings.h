// Other ways of cutting the same model into units: neighbours that share a collective, blocks of their own where the
// job names none, large embeddings and heads apart from the root, everything in one, the large parts of blocks. Fewer
// units: fewer calls and longer messages; more: more that runs beside them, and less that is gathered at a time.
#pragma once

#include <vector>

#include "core/job.h"
#include "core/model/model.h"
#include "sim/schedule/candidate.h"

namespace foreshard {

struct Wrapping {
  Job job;
  int joins = -1;  // an earlier one whose units it joins: whatever is gathered at a time is no less, nor is what fits
};

/// The job with other units, each way once. `finer`: blocks in parts too. Empty where the job says for named units what
/// they do: it would mean others then. Not every one can be planned.
std::vector<Wrapping> other_wrappings(const UnitFrame& frame, const Model& model, bool finer);

}  // namespace foreshard
