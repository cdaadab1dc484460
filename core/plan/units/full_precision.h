// W6 in the program: FSDP1's mixed precision with a wrap policy leaves batch norms out. They are units in full
// precision (wrap_policy.h), and hooks cast their floating inputs to float32 and their outputs back.
#pragma once

#include "core/job.h"
#include "core/model/model.h"

namespace foreshard {

/// Whether the job's policy makes such units.
bool keeps_norms_in_full_precision(const Job& job);

/// `model` with these casts as operators of the norms' modules, where they are such units; else as it is.
/// Norms whose input is float32 already need none.
Model with_full_precision_norms(Model model, const Job& job);

}  // namespace foreshard
