#include "tests/exec/training/training_ranks.h"

#include <algorithm>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>

#include "core/job/job_file.h"
#include "exec/communicators/in_process_communicator.h"
#include "tests/exec/rank_meeting.h"

namespace foreshard::exec {
namespace {

TrainedJob train_rank(const Job& job, int rank, bool resume, RankMeeting& meeting) {
  TrainedJob told;
  TrainingSetup setup;
  setup.job = job;
  setup.place.rank = rank;
  setup.place.world_size = setup.place.local_world_size = static_cast<int>(job.cluster.world_size);
  setup.intra_op_threads = 1;
  setup.resume = resume;
  setup.connect = [&](const std::string& name, const std::vector<int>& of) -> Result<std::shared_ptr<Communicator>> {
    return meeting.connect(name, of, rank);
  };
  TrainingEvents events;
  events.step = [&](const StepReport& step) { told.steps.push_back(step); };
  events.note = [&](const std::string& note) { told.notes.push_back(note); };
  const auto training = Training::open(setup, events);
  if (!training) {
    told.failure = to_text(training.error());
    return told;
  }
  const TrainingEnd end = (*training)->run(events);
  if (end.how != TrainingEnd::How::Done) told.failure = end.failure.text;
  return told;
}

}  // namespace

std::vector<double> TrainedJob::losses() const {
  std::vector<double> losses;
  for (const StepReport& step : steps) losses.push_back(step.loss);
  return losses;
}

Job scripted_job(const std::vector<std::string>& sets) {
  std::vector<std::string> all = {"model.batch=4",
                                  "model.seq=16",
                                  "fsdp.mixed_precision.param=none",
                                  "fsdp.mixed_precision.reduce=none",
                                  "cluster.world_size=2",
                                  "cluster.ranks_per_node=2",
                                  "cluster.profile=cpu-host",
                                  "train.steps=3",
                                  "train.clip_grad_norm=0.0",
                                  "train.optimizer.lr=0.01"};
  all.insert(all.end(), sets.begin(), sets.end());
  const auto loaded = load_job(FORESHARD_TEST_DATA "/exec/llama_tiny", all);
  if (!loaded) throw std::runtime_error(to_text(loaded.error()));
  return loaded->job;
}

TrainedJob train_job(const Job& job, bool resume) {
  RankMeeting meeting;
  const auto ranks = static_cast<std::size_t>(job.cluster.world_size);
  std::vector<TrainedJob> told(ranks);
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] { told[rank] = train_rank(job, static_cast<int>(rank), resume, meeting); });
  for (std::thread& thread : threads) thread.join();
  for (const TrainedJob& one : told)
    if (!one.failure.empty() && told[0].failure.empty()) told[0].failure = one.failure;
  return told[0];
}

}  // namespace foreshard::exec
