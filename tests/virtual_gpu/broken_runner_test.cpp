// Thirteen ways to run a plan wrongly, and that the virtual device sees each: as a race between streams, as a call that
// the plan does not ask for, or as a buffer that is gone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "tests/virtual_gpu/trained_step.h"

namespace foreshard::exec {
namespace {

using ::testing::HasSubstr;

enum class Fault {
  None,
  GatherNotWaitedFor,     // compute goes on before its parameters are there
  GradientsNotWaitedFor,  // the reduction takes them too early
  ReductionNotWaitedFor,  // the optimizer takes shards too early
  EventOfBefore,          // an event stands for less work than it should
  WaitOnOtherStream,
  UseNotNoted,
  FreedAtOnce,
  CollectiveForgotten,
  CollectiveOnOtherStream,
  CollectivesSwapped,
  HostWaitForgotten,
  OtherGroup,
  HalfOfTheBytes,
};

/// The right backend, but for one fault.
class BrokenBackend final : public Backend {
 public:
  BrokenBackend(std::unique_ptr<Backend> right, Fault fault) : right_(std::move(right)), fault_(fault) {}

  DeviceKind device() const override { return right_->device(); }
  StreamIndex create_stream(std::string_view name, int priority) override {
    const StreamIndex index = right_->create_stream(name, priority);
    names_[index] = name;
    return index;
  }
  Buffer allocate(const Issue& issue, Bytes bytes, MemoryCategory category) override {
    Buffer buffer = right_->allocate(issue, bytes, category);
    if (fault_ == Fault::FreedAtOnce && category == MemoryCategory::FullParameters) {
      right_->free(buffer, issue.instruction);
    }
    return buffer;
  }
  void free(const Buffer& buffer, InstructionId instruction) override { right_->free(buffer, instruction); }
  void note_use(const Issue& issue, const Buffer& buffer) override {
    if (fault_ != Fault::UseNotNoted) right_->note_use(issue, buffer);
  }
  void launch(const Issue& issue, Work work) override { right_->launch(issue, std::move(work)); }
  void copy(const Issue& issue, const Buffer& to, const Buffer& from, Bytes bytes) override {
    right_->copy(issue, to, from, bytes);
  }

  void collective(const Issue& issue, std::shared_ptr<Communicator> communicator, CollectiveWork work) override {
    Issue where = issue;
    if (fault_ == Fault::CollectiveForgotten && ++collectives_ == 2) return;
    if (fault_ == Fault::CollectiveOnOtherStream && ++collectives_ == 2) where.stream = stream("D");
    if (fault_ == Fault::OtherGroup) {
      if (first_group_ == nullptr) first_group_ = communicator;
      communicator = first_group_;
    }
    if (fault_ == Fault::CollectivesSwapped && ++collectives_ == 2) {
      held_ = [this, where, communicator, work] { right_->collective(where, communicator, work); };
      return;
    }
    right_->collective(where, std::move(communicator), std::move(work));
    if (const auto held = std::exchange(held_, nullptr)) held();
  }

  Event record_event(const Issue& issue) override {
    Event event = right_->record_event(issue);
    recorded_on_[event.record().get()] = issue.stream;
    if (fault_ != Fault::EventOfBefore || names_[issue.stream] != "A") return event;
    kept_.push_back(event);
    return kept_.size() > 1 ? kept_[kept_.size() - 2] : event;
  }
  void wait_event(const Issue& issue, const Event& event) override {
    const std::string by = names_[issue.stream], of = names_[recorded_on_[event.record().get()]];
    if (fault_ == Fault::GatherNotWaitedFor && by == "D" && of == "A") return;
    if (fault_ == Fault::GradientsNotWaitedFor && by == "S" && of == "D") return;
    if (fault_ == Fault::ReductionNotWaitedFor && by == "D" && of == "S") return;
    Issue where = issue;
    if (fault_ == Fault::WaitOnOtherStream && by == "D" && of == "A") where.stream = stream("S");
    right_->wait_event(where, event);
  }
  Outcome<void> host_wait(const Event& event) override {
    if (fault_ == Fault::HostWaitForgotten) return {};
    return right_->host_wait(event);
  }
  Outcome<void> synchronize() override { return right_->synchronize(); }
  MemoryReport memory() const override { return right_->memory(); }
  void reset_peak_memory() override { right_->reset_peak_memory(); }
  void at_instruction(std::int32_t step, InstructionId instruction) override {
    right_->at_instruction(step, instruction);
  }

 private:
  StreamIndex stream(const std::string& name) const {
    return std::find_if(names_.begin(), names_.end(), [&](const auto& entry) { return entry.second == name; })->first;
  }

  std::unique_ptr<Backend> right_;
  Fault fault_;
  std::map<StreamIndex, std::string> names_;
  std::map<const Event::Record*, StreamIndex> recorded_on_;
  std::vector<Event> kept_;
  std::shared_ptr<Communicator> first_group_;
  std::function<void()> held_;
  int collectives_ = 0;
};

/// Sends half of what it is given.
class HalvedCommunicator final : public Communicator {
 public:
  explicit HalvedCommunicator(std::shared_ptr<Communicator> right) : right_(std::move(right)) {}
  int rank() const override { return right_->rank(); }
  int size() const override { return right_->size(); }
  bool orders_streams() const override { return right_->orders_streams(); }
  void all_gather(void* output, const void* input, Numel numel, DType dtype) override {
    right_->all_gather(output, input, numel / 2, dtype);
  }
  void all_gather_uneven(void* output, const void* input, std::span<const Numel> counts, DType dtype) override {
    right_->all_gather_uneven(output, input, counts, dtype);
  }
  void reduce_scatter(void* output, const void* input, Numel numel, DType dtype, ReduceOp op) override {
    right_->reduce_scatter(output, input, numel, dtype, op);
  }
  void reduce_scatter_uneven(void* output, const void* input, std::span<const Numel> counts, DType dtype,
                             ReduceOp op) override {
    right_->reduce_scatter_uneven(output, input, counts, dtype, op);
  }
  void all_reduce(void* data, Numel numel, DType dtype, ReduceOp op) override {
    right_->all_reduce(data, numel, dtype, op);
  }
  void all_to_all(void* output, const void* input, std::span<const Numel> send, std::span<const Numel> receive,
                  DType dtype) override {
    right_->all_to_all(output, input, send, receive, dtype);
  }
  void broadcast(void* data, Numel numel, DType dtype, int root) override {
    right_->broadcast(data, numel, dtype, root);
  }
  void barrier() override { right_->barrier(); }
  void abort(std::string_view why) override { right_->abort(why); }

 private:
  std::shared_ptr<Communicator> right_;
};

struct Broken {
  std::string name;
  Fault fault = Fault::None;
  std::string seen;  // what is told of it
  Runtime runtime = Runtime::Fsdp2;
  Strategy strategy = Strategy::FullShard;
};

void PrintTo(const Broken& row, std::ostream* out) { *out << row.name; }

class BrokenRunner : public ::testing::TestWithParam<Broken>, protected TrainedStep {
 protected:
  void begin() {
    const Broken& row = GetParam();
    wrapped_backend = [fault = row.fault](std::unique_ptr<Backend> right) {
      return std::make_unique<BrokenBackend>(std::move(right), fault);
    };
    if (row.fault == Fault::HalfOfTheBytes) {
      wrapped_communicator = [](std::shared_ptr<Communicator> right) {
        return std::make_shared<HalvedCommunicator>(std::move(right));
      };
    }
    Job job = in_bf16(tiny_llama_job(8));
    job.fsdp.runtime = row.runtime;
    job.fsdp.strategy = row.strategy;
    if (row.strategy == Strategy::HybridShard) job.cluster.ranks_per_node = 4;
    prepare(job);
  }
};

class Races : public BrokenRunner {};

/// Whatever calls the device compares: it is told by the streams, the events and the bytes alone.
TEST_P(Races, AreSeenOnTheDevice) {
  begin();
  if (HasFatalFailure()) return;
  for (int number = 0; number < 3; ++number) {
    step(number);
    if (HasFatalFailure()) return;
  }
  const std::string races = races_of_device();
  if (GetParam().fault == Fault::None) {
    EXPECT_EQ(races, "");
  } else {
    EXPECT_THAT(races, HasSubstr(GetParam().seen));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Runner, Races,
    ::testing::Values(Broken{"NoneInFsdp2"}, Broken{"NoneInFsdp1", Fault::None, "", Runtime::Fsdp1},
                      Broken{"NoneOverAMesh", Fault::None, "", Runtime::Fsdp2, Strategy::HybridShard},
                      Broken{"GatherNotWaitedFor", Fault::GatherNotWaitedFor, "reads what ncclAllGather on stream "},
                      Broken{"GradientsNotWaitedFor", Fault::GradientsNotWaitedFor, "ncclReduceScatter on stream "},
                      Broken{"ReductionNotWaitedFor", Fault::ReductionNotWaitedFor,
                             "what ncclReduceScatter on stream "},
                      Broken{"EventOfBefore", Fault::EventOfBefore, "reads what ncclAllGather on stream "},
                      Broken{"WaitOnOtherStream", Fault::WaitOnOtherStream, "reads what ncclAllGather on stream "},
                      Broken{"UseNotNoted", Fault::UseNotNoted, "ncclAllGather on stream ", Runtime::Fsdp1}),
    [](const auto& row) { return row.param.name; });

class WrongCalls : public BrokenRunner {};

TEST_P(WrongCalls, AreNotThePlans) {
  begin();
  if (HasFatalFailure()) return;
  EXPECT_THAT(difference_of_calls(), HasSubstr(GetParam().seen));
}

INSTANTIATE_TEST_SUITE_P(
    Runner, WrongCalls,
    ::testing::Values(
        Broken{"CollectiveForgotten", Fault::CollectiveForgotten, "ncclAllGather is planned"},
        Broken{"CollectiveOnOtherStream", Fault::CollectiveOnOtherStream, "ncclAllGather on the device's stream"},
        Broken{"CollectivesSwapped", Fault::CollectivesSwapped, " planned"},
        Broken{"HostWaitForgotten", Fault::HostWaitForgotten, "cudaEventSynchronize is planned", Runtime::Fsdp1},
        Broken{"OtherGroup", Fault::OtherGroup, "communicator", Runtime::Fsdp2, Strategy::HybridShard},
        Broken{"HalfOfTheBytes", Fault::HalfOfTheBytes, "bytes are planned"}),
    [](const auto& row) { return row.param.name; });

class GoneBuffer : public ::testing::Test, protected TrainedStep {};

TEST_F(GoneBuffer, IsAFailureOfItsUser) {
  wrapped_backend = [](std::unique_ptr<Backend> right) {
    return std::make_unique<BrokenBackend>(std::move(right), Fault::FreedAtOnce);
  };
  prepare(in_bf16(tiny_llama_job(8)));
  if (HasFatalFailure()) return;
  std::vector<MicroBatch> batches(1);
  for (const at::Tensor& input : tiny_llama_inputs(data, 0, 0, plan.world_size)) batches[0].push_back(input.cuda());
  const auto result = runner->step(batches, 1e-3);
  ASSERT_FALSE(result);
  EXPECT_THAT(result.error().text, HasSubstr("after it was freed"));
}

}  // namespace
}  // namespace foreshard::exec
