// What calibration's times of issuing a model mean for the simulator, which charges each operator and each launch.
#pragma once

#include "core/model/model.h"
#include "core/result.h"
#include "core/units.h"
#include "exec/calibrate/calibration.h"

namespace foreshard::cli {

/// ns of the issuer for an operator, beside its launches. 0: was not measured.
struct IssueCosts {
  double forward_op_ns = 0, backward_op_ns = 0;
};

/// Such that the passes of `model` come out as measured. Errors: of lowering.
Result<IssueCosts> issue_costs(const Model& model, const exec::Calibration& measured);

}  // namespace foreshard::cli
