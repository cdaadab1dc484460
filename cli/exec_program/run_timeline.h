// The recordings of all ranks as one timeline in files, and small files that checkpoints keep.
#pragma once

#include <optional>
#include <string>

#include "core/result.h"
#include "exec/recorder.h"
#include "exec/training_loop.h"

namespace foreshard::cli {

struct TimelineFiles {
  std::string fst;     // --timeline; empty: not wanted
  std::string chrome;  // --trace
  std::string hardware;
};

/// A collective call: every rank gives its recording, rank 0 writes the files.
Result<void> write_run_timeline(exec::Training& training, const exec::Recorder& recorder, const TimelineFiles& files);

/// The text of the config.json that a model source is or holds; nullopt for other sources.
std::optional<std::string> model_config(const std::string& source);

}  // namespace foreshard::cli
