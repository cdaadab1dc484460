// The contract on CUDA: with a GPU, or on the virtual device of shadow/device, which keeps memory and streams but
// runs host code at once.
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include "exec/communicators/nccl_communicator.h"
#include "exec/cuda/cuda_backend.h"
#include "exec/cuda/cuda_device.h"
#include "exec/record/cupti_recorder.h"
#include "exec/record/recorder.h"
#include "tests/exec/backend/backend_contract.h"

namespace foreshard::exec {
namespace {

bool virtual_device() { return dlsym(RTLD_DEFAULT, "fakegpu_mark") != nullptr; }

struct Cuda {
  static constexpr bool kWorkRunsOnStreams = false;
  static bool streams_wait_for_host_code() { return !virtual_device(); }
  static std::unique_ptr<Backend> make() {
    auto backend = make_cuda_backend();
    if (!backend) throw std::runtime_error(to_text(backend.error()));
    return std::move(*backend);
  }
  static void run(Backend& backend, const Issue& issue, Work work) {
    backend.launch(issue, [&work] {
      const auto call = [](void* data) {
        const std::unique_ptr<Work> owned(static_cast<Work*>(data));
        (*owned)();
      };
      if (cudaLaunchHostFunc(c10::cuda::getCurrentCUDAStream(), call, new Work(std::move(work))) != cudaSuccess) {
        throw std::runtime_error("cudaLaunchHostFunc");
      }
    });
  }
  static void write(Backend& backend, const Issue& issue, Buffer buffer, std::int64_t value) {
    backend.launch(issue, [&] {
      cudaMemcpyAsync(buffer.data(), &value, sizeof value, cudaMemcpyDefault, c10::cuda::getCurrentCUDAStream());
    });
  }
  static void read(Backend& backend, const Issue& issue, Buffer buffer, std::int64_t* to) {
    backend.launch(issue, [&] {
      cudaMemcpyAsync(to, buffer.data(), sizeof *to, cudaMemcpyDefault, c10::cuda::getCurrentCUDAStream());
    });
  }
};

INSTANTIATE_TYPED_TEST_SUITE_P(Cuda, BackendContract, Cuda);

TEST(CudaDevice, AnIndexBeyondTheVisibleOnesIsAnErrorThatSaysHowMany) {
  const auto device = cuda_device(1000);
  ASSERT_FALSE(device);
  EXPECT_NE(to_text(device.error()).find("0 to "), std::string::npos) << to_text(device.error());
}

TEST(CudaDevice, SaysWhatItIs) {
  const auto device = cuda_device(0);
  ASSERT_TRUE(device) << to_text(device.error());
  EXPECT_FALSE(device->name.empty());
  EXPECT_GT(device->total_memory, 0);
  EXPECT_GE(device->runtime_version, 13000);
}

/// One card has no peer, yet everything of NCCL can be called: it is loaded, takes memory, works on our streams.
TEST(NcclAlone, AGroupOfOneKeepsWhatItHas) {
  auto backend = make_cuda_backend();
  ASSERT_TRUE(backend) << to_text(backend.error());
  const StreamIndex gather = (*backend)->create_stream("A", -1);
  EXPECT_TRUE(nccl_serves(nccl_version(), nccl_built_version())) << nccl_version() << ", not " << nccl_built_version();
  for (const bool registers : {false, true}) {
    const auto id = nccl_unique_id();
    ASSERT_TRUE(id) << to_text(id.error());
    const auto group = nccl_communicator({.rank = 0, .size = 1, .register_buffers = registers}, *id);
    ASSERT_TRUE(group) << to_text(group.error());
    const Buffer from = (*backend)->allocate({gather, InstructionId(0)}, 1024, MemoryCategory::ReduceBuffers);
    const Buffer to = (*backend)->allocate({gather, InstructionId(1)}, 1024, MemoryCategory::ReduceBuffers);
    Cuda::write(**backend, {gather, InstructionId(2)}, from, 0x3f8000003f800000);  // 1.0 twice
    const Numel counts[] = {2};
    const CollectiveWork works[] = {
        [&](Communicator& g) { g.all_gather(to.data(), from.data(), 2, DType::Float32); },
        [&](Communicator& g) { g.all_gather_uneven(to.data(), from.data(), counts, DType::Float32); },
        [&](Communicator& g) { g.reduce_scatter(to.data(), from.data(), 2, DType::Float32, ReduceOp::Avg); },
        [&](Communicator& g) {
          g.reduce_scatter_uneven(to.data(), from.data(), counts, DType::Float32, ReduceOp::Sum);
        },
    };
    for (const CollectiveWork& work : works) {
      std::int64_t got = 0;
      Cuda::write(**backend, {gather, InstructionId(3)}, to, 0);
      (*backend)->collective({gather, InstructionId(4)}, *group, work);
      (*backend)->collective({gather, InstructionId(5)}, *group,
                             [&](Communicator& g) { g.all_reduce(to.data(), 2, DType::Float32, ReduceOp::Max); });
      Cuda::read(**backend, {gather, InstructionId(6)}, to, &got);
      const auto done = (*backend)->synchronize();
      ASSERT_TRUE(done) << done.error().text;
      EXPECT_EQ(got, 0x3f8000003f800000) << "call " << &work - works;
    }
  }
}

TEST(Cupti, WhatItRefusesIsToldAndNothingElseIsLost) {
  auto cupti = CuptiRecorder::start();
  if (!cupti) {  // the virtual device: the driver that CUPTI wants is not there
    EXPECT_NE(cupti.error().hint.find("goes on"), std::string::npos) << to_text(cupti.error());
  }
  Recorder recorder;
  auto backend = make_cuda_backend({.recorder = &recorder, .cupti = cupti ? cupti->get() : nullptr});
  ASSERT_TRUE(backend) << to_text(backend.error());
  const StreamIndex compute = (*backend)->create_stream("D", 0);
  (*backend)->at_instruction(0, InstructionId(0));
  const Buffer from = (*backend)->allocate({compute, InstructionId(0)}, 64, MemoryCategory::Temporaries);
  const Buffer to = (*backend)->allocate({compute, InstructionId(0)}, 64, MemoryCategory::Temporaries);
  (*backend)->at_instruction(0, InstructionId(1));
  (*backend)->copy({compute, InstructionId(1)}, to, from, 64);
  (*backend)->at_instruction(1, InstructionId());
  ASSERT_TRUE((*backend)->synchronize());
  if (cupti) recorder.device_recorded((*cupti)->finish());
  EXPECT_EQ(recorder.cost().spans, cupti ? 4 : 3) << "two turns of the host, its wait, and the copy if CUPTI saw it";
}

}  // namespace
}  // namespace foreshard::exec
