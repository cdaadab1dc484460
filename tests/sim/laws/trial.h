// One random job under test, made and simulated: as a training loop runs it, and paced.
//
// A host that runs ahead frees blocks before the card has used them, and finds others instead: what is reserved then
// follows from how far ahead it is. Jobs are compared paced, where the loop waits for the card after every step: each
// begins with nothing under way.
#pragma once

#include <optional>
#include <vector>

#include "sim/machine/profile.h"
#include "sim/simulate.h"
#include "tests/sim/laws/asked_memory.h"
#include "tests/sim/laws/law_book.h"
#include "tests/sim/laws/random_job.h"

namespace foreshard::testing {

struct Paced {
  Prediction prediction;
  AskedMemory asked;
};

class Trial {
 public:
  /// `run` counts the simulations; it and `profile` outlive the trial.
  Trial(RandomCase made, const HardwareProfile& profile, LawRun& run)
      : made_(std::move(made)), profile_(profile), run_(run) {}

  const RandomCase& made() const { return made_; }
  const Job& job() const { return made_.job; }
  const HardwareProfile& profile() const { return profile_; }
  /// Whether blocks wait for the streams that use them (record_stream).
  bool waits() const { return made_.plan.runtime == Runtime::Fsdp1; }

  std::optional<Prediction> predict() const;
  /// With every kernel on a timeline: none is put off or passed over.
  std::optional<Prediction> watch() const;
  /// On this machine or another one, with other memory (0: the job's), for so many iterations (0: until it is steady).
  std::optional<Paced> pace(const HardwareProfile& profile, Bytes memory = 0, int iterations = 0) const;
  std::optional<Paced> pace() const { return pace(profile_); }

  /// Whether there is a steady step with memory to spare: PyTorch may raise where a script or a trap leads it, and
  /// where memory is short the cache is given back (not always counted as a retry: max_split_size) and asked for anew.
  bool runs(const Prediction& prediction) const;

 private:
  RandomCase made_;
  const HardwareProfile& profile_;
  LawRun& run_;
};

}  // namespace foreshard::testing
