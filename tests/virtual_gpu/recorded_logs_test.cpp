// Our executor against PyTorch, call by call: configurations of ../shared/oracle/gpu_memory that have a log run here on
// the same virtual device, and what reaches CUDA and NCCL is compared with the plan and with what PyTorch's FSDP
// called. Skipped where the shared material is not beside the checkout.
#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContextLight.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>

#include "core/plan/build_plan.h"
#include "exec/communicators/nccl_communicator.h"
#include "exec/cuda/cuda_backend.h"
#include "exec/run/plan_runner.h"
#include "exec/torch/torch_types.h"
#include "tests/oracle/memory/gpu_memory_row.h"
#include "tests/virtual_gpu/call_log.h"
#include "tests/virtual_gpu/planned_calls.h"

namespace foreshard::exec {
namespace {

const std::string kFolder = std::string(FORESHARD_SHARED) + "/oracle/gpu_memory/";

oracle::Json row_of(const std::string& id) {
  std::ifstream file(kFolder + "cases.jsonl");
  for (std::string line; std::getline(file, line);) {
    oracle::Json row = oracle::Json::parse(line);
    if (row["id"] == id) return row;
  }
  throw std::runtime_error("no case " + id);
}

std::string gunzipped(const std::string& path) {
  gzFile file = gzopen(path.c_str(), "rb");
  if (file == nullptr) throw std::runtime_error("cannot be read: " + path);
  std::string text(std::size_t{1} << 20, '\0'), all;
  for (int read = 0; (read = gzread(file, text.data(), static_cast<unsigned>(text.size()))) > 0;) {
    all.append(text, 0, static_cast<std::size_t>(read));
  }
  gzclose(file);
  return all;
}

/// Collectives alone: autograd's engine has waits of its own in PyTorch, which the plan does not name.
std::vector<DeviceCall> collectives_of(std::vector<DeviceCall> calls) {
  std::erase_if(calls, [](const DeviceCall& call) { return call.api.rfind("nccl", 0) != 0 || call.bytes == 0; });
  return calls;
}

/// The optimizer's kernels over lists of tensors, and how often each was launched. (Copies of other types are the
/// gathers'.)
std::map<std::string, int> list_kernels(const std::vector<DeviceCall>& calls) {
  std::map<std::string, int> kernels;
  for (const DeviceCall& call : calls) {
    const bool of_lists = call.name.find("multi_tensor_apply") != std::string::npos;
    if (of_lists && call.name.find("Functor<float") != std::string::npos) ++kernels[call.name.substr(0, 180)];
  }
  return kernels;
}

/// The calls between the marks "step N" and "step N + 1".
std::vector<std::vector<DeviceCall>> by_step(const std::vector<DeviceCall>& calls) {
  std::vector<std::vector<DeviceCall>> steps;
  for (const DeviceCall& call : calls) {
    if (call.api == "mark" && call.name.rfind("step ", 0) == 0) steps.emplace_back();
    if (!steps.empty()) steps.back().push_back(call);
  }
  return steps;
}

/// Streams (or communicators) of one log stand for those of the other, one to one.
class Same {
 public:
  bool same(std::int64_t a, std::int64_t b) {
    return there_.try_emplace(a, b).first->second == b && back_.try_emplace(b, a).first->second == a;
  }

 private:
  std::map<std::int64_t, std::int64_t> there_, back_;
};

class RecordedLogs : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(kFolder)) GTEST_SKIP() << "no shared material: " << kFolder;
    row_ = row_of(GetParam());
    made_ = oracle::read_memory_row(row_);
    if (!made_.unplanned.empty()) GTEST_SKIP() << made_.unplanned;
    auto plan = build_plan(made_.model, made_.job);
    ASSERT_TRUE(plan) << to_text(plan.error());
    plan_ = std::move(*plan);
    auto interpreter = OperatorInterpreter::create(made_.model, c10::kCUDA);
    ASSERT_TRUE(interpreter) << to_text(interpreter.error());
    interpreter_.emplace(std::move(*interpreter));
    at::cuda::clearCublasWorkspaces();  // of the case before
    c10::cuda::CUDACachingAllocator::emptyCache();
    auto backend = make_cuda_backend();
    ASSERT_TRUE(backend) << to_text(backend.error());
    backend_ = std::move(*backend);
    Communicators communicators;
    for (const CommunicatorId id : communicators_to_connect(plan_)) {
      const PlanCommunicator& group = plan_.communicators[id.index()];
      const auto place = std::find(group.ranks.begin(), group.ranks.end(), plan_.rank) - group.ranks.begin();
      const auto made = nccl_communicator(
          {.rank = static_cast<int>(place), .size = static_cast<int>(group.ranks.size())}, nccl_unique_id().value());
      ASSERT_TRUE(made) << to_text(made.error());
      communicators.set(id, *made);
    }
    const Model& model = made_.model;
    std::vector<at::Tensor> buffers;
    for (const BufferInfo& buffer : model.buffers) buffers.push_back(zeros(buffer.shape, buffer.dtype));
    // Whole parameters of any size: one element, seen many times.
    auto runner = PlanRunner::create(
        {model, plan_, *interpreter_, *backend_, communicators, made_.job.train.optimizer, buffers}, [&](ParamId id) {
          const ParamInfo& info = model.params[id.index()];
          return at::zeros({1}, scalar_type_of(info.dtype)).expand(info.shape);
        });
    ASSERT_TRUE(runner) << to_text(runner.error());
    runner_ = std::move(*runner);
  }

  static at::Tensor zeros(const Shape& shape, DType dtype) {
    return at::zeros(shape, at::TensorOptions(c10::kCUDA).dtype(scalar_type_of(dtype)));
  }

  void step(int number) {
    std::vector<MicroBatch> batches(static_cast<std::size_t>(made_.job.train.micro_batches));
    for (MicroBatch& batch : batches) {
      for (const ValueId input : made_.model.inputs) {
        const ValueInfo& info = made_.model.values[input.index()];
        batch.push_back(zeros(info.shape, info.dtype));
      }
    }
    mark_calls("step " + std::to_string(number));
    const auto result = runner_->step(batches, 1e-4);
    ASSERT_TRUE(result) << "instruction " << result.error().instruction.value << ": " << result.error().text;
  }

  oracle::Json row_;
  oracle::MemoryRow made_;
  Plan plan_;
  std::optional<OperatorInterpreter> interpreter_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<PlanRunner> runner_;
};

TEST_P(RecordedLogs, EqualThePlanAndPyTorch) {
  calls_since_last();
  const auto recorded = by_step(parse_calls(gunzipped(kFolder + "logs/" + GetParam() + ".jsonl.gz")));
  ASSERT_EQ(recorded.size(), 3u);
  DeviceNames names;
  Same streams, communicators;
  std::map<EventId, Stream> recorded_on;
  for (std::size_t number = 0; number < recorded.size(); ++number) {
    const std::string place = "step " + std::to_string(number);
    backend_->reset_peak_memory();
    step(static_cast<int>(number));
    if (HasFatalFailure()) return;
    const auto calls = calls_since_last();
    const auto planned =
        planned_calls(plan_, plan_.iterations[std::min(number, plan_.iterations.size() - 1)], recorded_on);
    // The executor's host has waits of its own around work in host memory (PyTorch's optimizer waits inside copies).
    if (!made_.job.fsdp.cpu_offload) {
      EXPECT_EQ(difference(planned, calls_of_interest(calls), names), "") << place;
    }
    const auto ours = collectives_of(calls), theirs = collectives_of(recorded[number]);
    ASSERT_EQ(ours.size(), theirs.size()) << place;
    for (std::size_t c = 0; c < ours.size(); ++c) {
      EXPECT_EQ(ours[c].api, theirs[c].api) << place << ", collective " << c;
      EXPECT_EQ(ours[c].bytes, theirs[c].bytes) << place << ", collective " << c;
      EXPECT_EQ(ours[c].ranks, theirs[c].ranks) << place << ", collective " << c;
      EXPECT_TRUE(streams.same(ours[c].stream, theirs[c].stream)) << place << ", collective " << c;
      EXPECT_TRUE(communicators.same(ours[c].communicator, theirs[c].communicator)) << place << ", collective " << c;
    }
    EXPECT_EQ(list_kernels(calls), list_kernels(recorded[number])) << place;
    const auto& memory = backend_->memory().allocator;
    const double peak = row_["result"]["steps"][number]["allocated_bytes.peak"].get<double>();
    std::printf("%s %s: allocated peak %lld, PyTorch %.0f (%+.3f %%)\n", GetParam(), place.c_str(),
                static_cast<long long>(memory->peak_allocated), peak,
                100 * (static_cast<double>(memory->peak_allocated) / peak - 1));
    // With offload, how long a copied shard is held depends on the clock, and these were recorded on another one.
    const double bound = made_.job.fsdp.cpu_offload ? 0.01 : 0.005;
    EXPECT_NEAR(static_cast<double>(memory->peak_allocated), peak, bound * peak) << place;
  }
}

INSTANTIATE_TEST_SUITE_P(GpuMemory, RecordedLogs,
                         ::testing::Values("m010", "m018", "m020", "m032", "m048", "m098", "m110", "m111"),
                         [](const auto& row) { return std::string(row.param); });

}  // namespace
}  // namespace foreshard::exec
