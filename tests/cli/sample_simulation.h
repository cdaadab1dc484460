// A prediction made by hand, with every part of a report in it.
#pragma once

#include "cli/session/simulation.h"

namespace foreshard::cli {

struct SampleSimulation {
  Job job;
  Model model;
  Plan plan;
  HardwareProfile profile;
  Prediction prediction;

  Simulation view() const { return {job, model, plan, profile, prediction, 80 * kGiB, {}, {}}; }
};

SampleSimulation sample_simulation();

/// The same job out of memory in backward.
SampleSimulation sample_out_of_memory();

}  // namespace foreshard::cli
