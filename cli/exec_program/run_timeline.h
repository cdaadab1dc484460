// The recordings of all ranks as one timeline in files, and small files that checkpoints keep.
#pragma once

#include <optional>
#include <string>

#include "core/plan.h"
#include "core/result.h"
#include "exec/communicators/communicator.h"
#include "exec/record/recorder.h"

namespace foreshard::cli {

struct TimelineFiles {
  std::string fst;     // --timeline; empty: not wanted
  std::string chrome;  // --trace
  std::string hardware;
};

/// A collective call: every rank gives its recording of `plan`, rank 0 writes the files. `control` null: a rank alone.
Result<void> write_run_timeline(const Plan& plan, exec::Communicator* control, const exec::Recorder& recorder,
                                const TimelineFiles& files);

/// The text of the config.json that a model source is or holds; nullopt for other sources.
std::optional<std::string> model_config(const std::string& source);

}  // namespace foreshard::cli
