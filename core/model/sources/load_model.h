// One door for every source of a Model: config.json, a folder holding one, .pt2, model.json. The format is found by
// content.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "core/job.h"
#include "core/model/families/config_model.h"
#include "core/model/model.h"
#include "core/result.h"

namespace foreshard {

/// `options.source` names the file or folder. For a model.json the program is what the file holds: batch, seq,
/// attention and loss of the options do not apply. One that was captured refuses another dtype in `program`, and
/// another batch or length than it ran with.
Result<Model> load_model(const ModelOptions& options, const ProgramOptions& program = {});

/// The config.json that `model` was built from by a family's rules; null where it stems from anything else. Error: it
/// cannot be read.
Result<nlohmann::json> config_of_model(const Model& model, const std::string& source);

/// The program that a job's training step runs: mixed precision decides the dtype, `device` the kernels.
ProgramOptions program_options(const Job& job, ProgramDevice device = ProgramDevice::Cuda);

}  // namespace foreshard
