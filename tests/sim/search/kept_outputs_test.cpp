// Loss and outputs whose names live on while the next forward makes new ones (train.keeps_outputs).
#include <gtest/gtest.h>

#include <algorithm>

#include "sim/search/prepare_job.h"

namespace foreshard {
namespace {

/// Allocated bytes at the peak of a phase of iteration `k`, and at its end.
struct Held {
  Bytes peak = 0, end = 0;
};

Held held(bool keeps, std::size_t k, const char* phase) {
  Job job;
  job.model.source = FORESHARD_SOURCE_DIR "/examples/tiny-llama/config.json";
  job.fsdp.runtime = Runtime::Fsdp2;
  job.cluster.world_size = 2;
  job.train.keeps_outputs = keeps;
  job.train.script = {{"fwd", "bwd", "step", "zero"}, {"fwd", "bwd", "step", "zero"}};
  const Prepared prepared = prepare(job).value();
  const Prediction prediction =
      simulate(prepared.plan, prepared.model, prepared.lowered, job, prepared.profile, {}).value();
  const auto& phases = prediction.iterations.at(k).phases;
  const auto found = std::find_if(phases.begin(), phases.end(), [&](const auto& each) { return each.name == phase; });
  return found == phases.end() ? Held() : Held{found->peak_allocated, found->end_allocated};
}

TEST(KeptOutputs, AreThereUntilTheNextForwardHasReturned) {
  constexpr Bytes kLoss = 512;  // a block
  EXPECT_EQ(held(true, 0, "forward").peak, held(false, 0, "forward").peak);
  EXPECT_EQ(held(true, 0, "optimizer").end, held(false, 0, "optimizer").end + kLoss);
  EXPECT_EQ(held(true, 1, "forward").end, held(false, 1, "forward").end + kLoss);
  EXPECT_EQ(held(true, 1, "backward").end, held(false, 1, "backward").end);
  EXPECT_EQ(held(true, 1, "optimizer").end, held(true, 0, "optimizer").end);  // one at a time
}

}  // namespace
}  // namespace foreshard
