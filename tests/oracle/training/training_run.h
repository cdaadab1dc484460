// A row of oracle/training as a job, and the training that it describes: ranks as threads of this process.
#pragma once

#include <array>
#include <map>
#include <string>
#include <vector>

#include "core/job.h"
#include "tests/oracle/oracle.h"

namespace foreshard::oracle {

/// What a recorded run and ours are compared by.
struct TrainingResult {
  std::vector<double> loss;                // per step, mean over micro-batches and ranks
  std::vector<std::vector<double>> micro;  // per step and micro-batch, mean over ranks
  std::vector<double> grad_norm;
  struct Param {
    double sum = 0, absolute = 0;
    std::vector<double> first;  // of the whole tensor, row-major
  };
  std::map<std::string, Param> final_params;
};

/// Where a row's model (config.json, weights), its data and the first values of its adapters are.
struct TrainingFolders {
  std::string model, data;
  std::string adapters = {};  // a file; empty: the row trains none
};

/// The job of a row. Throws for words that it does not know.
Job training_job(const Json& row, const TrainingFolders& folders);

/// Trains `job` as the row says. Throws std::runtime_error with the text of what went wrong.
TrainingResult train(const Json& row, const Job& job, const TrainingFolders& folders);

}  // namespace foreshard::oracle
