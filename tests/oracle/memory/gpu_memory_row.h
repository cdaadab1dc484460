// A row of oracle/gpu_memory as a job and a virtual machine (interface.md, section 6).
#pragma once

#include <optional>
#include <string>

#include <map>
#include <string>

#include "core/job.h"
#include "core/model/model.h"
#include "sim/machine/profile.h"
#include "tests/oracle/oracle.h"

namespace foreshard::oracle {

struct MemoryRow {
  Job job;
  Model model;
  HardwareProfile profile;
  std::map<std::string, std::string> groups;   // a plan's communicators as the row's mesh names them
  Numel all_params = 0, trainable_params = 0;  // of the whole model, tied ones once
  std::string refused;                         // why there is no model of one rank
  std::string unplanned;  // what the product cannot plan of it; empty otherwise, and then there is a model
};

/// Throws std::runtime_error when the row or what it asks for is wrong.
MemoryRow read_memory_row(const Json& row);
/// The job and the machine alone: the model comes from elsewhere.
MemoryRow read_memory_job(const Json& row);
/// `memory` has the plain model: its job takes the row's adapters and recomputed layers, the model becomes PEFT's.
void adapt_memory_row(const Json& row, MemoryRow& memory);
/// `memory` has the whole model: its job takes the row's mesh, the model becomes this rank's.
void cut_memory_row(const Json& row, MemoryRow& memory);

}  // namespace foreshard::oracle
