#include "exec/cuda/cuda_backend.h"

#include <ATen/Context.h>
#include <ATen/core/CachingHostAllocator.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

#include "core/plan.h"
#include "exec/backend/collective_order.h"
#include "exec/backend/failure_board.h"
#include "exec/communicators/communicator.h"
#include "exec/cuda/collective_watch.h"
#include "exec/cuda/cuda_check.h"
#include "exec/cuda/cuda_device.h"
#include "exec/cuda/device_operators.h"
#include "exec/cuda/repeated_work.h"
#include "exec/cuda/unit_ranges.h"
#include "exec/record/cupti_recorder.h"
#include "exec/record/memory_ledger.h"
#include "exec/record/recorder.h"

namespace foreshard::exec {
namespace {

constexpr Bytes kLeastFreeMemory = Bytes{512} << 20;  // a context and one buffer; below this nothing can be run

/// What LibTorch says; of memory that ran out, without its advice to Python programs but with ours.
std::string words_of(const std::string& text) {
  if (text.find("out of memory") == std::string::npos) return text;
  return text.substr(0, text.find(" If reserved but unallocated")) +
         " `foreshard simulate JOB` tells what holds the memory, and what would fit";
}

/// Events are made once and handed on: making one takes longer than recording it.
class EventPool {
 public:
  ~EventPool() {
    for (const cudaEvent_t event : free_) cudaEventDestroy(event);
  }
  cudaEvent_t take() {
    if (free_.empty()) {
      cudaEvent_t event = nullptr;
      check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
      return event;
    }
    const cudaEvent_t event = free_.back();
    free_.pop_back();
    return event;
  }
  void give_back(cudaEvent_t event) { free_.push_back(event); }

 private:
  std::vector<cudaEvent_t> free_;
};

class CudaEvent final : public Event::Record {
 public:
  explicit CudaEvent(std::shared_ptr<EventPool> pool) : pool_(std::move(pool)), event_(pool_->take()) {}
  ~CudaEvent() override { pool_->give_back(event_); }
  cudaEvent_t get() const { return event_; }

 private:
  std::shared_ptr<EventPool> pool_;
  cudaEvent_t event_;
};

cudaEvent_t cuda_event(const Event& event) { return static_cast<CudaEvent&>(*event.record()).get(); }

class CudaBuffer final : public Buffer::Record {
 public:
  CudaBuffer(StreamIndex pool, MemoryCategory category, Bytes bytes)
      : pool_(pool), category_(category), bytes_(bytes) {}

  void* data() const override {
    if (memory_.get() == nullptr && bytes_ > 0) {
      throw std::runtime_error("a buffer is used before its pool's stream has allocated it, or after it was freed");
    }
    return memory_.get();
  }
  Bytes bytes() const override { return bytes_; }
  StreamIndex pool() const { return pool_; }
  MemoryCategory category() const { return category_; }
  c10::DataPtr& memory() { return memory_; }
  bool is_part() const { return block_ != nullptr; }
  /// Lies in another one, which counts as a whole.
  void lie_in(std::shared_ptr<CudaBuffer> block, Bytes offset) {
    block_ = std::move(block);
    if (block_->memory_.get() == nullptr) return;  // never made: the backend has failed
    memory_ = c10::DataPtr(static_cast<std::byte*>(block_->data()) + offset, block_->memory_.device());
  }

 private:
  StreamIndex pool_;
  MemoryCategory category_;
  Bytes bytes_;
  std::shared_ptr<CudaBuffer> block_;
  c10::DataPtr memory_;
};

CudaBuffer& cuda_buffer(const Buffer& buffer) { return static_cast<CudaBuffer&>(*buffer.record()); }

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(const CudaBackendOptions& options)
      : device_(static_cast<c10::DeviceIndex>(options.device)),
        guard_(device_),
        board_(options.rank),
        watch_(board_, {.device = options.device, .timeout = options.timeout, .plan = options.plan}),
        recorder_(options.recorder),
        cupti_(options.recorder != nullptr ? options.cupti : nullptr),
        records_memory_(options.recorder != nullptr && options.recorded == RecordedKinds::All),
        events_(std::make_shared<EventPool>()),
        arena_(options.arena) {
    if (options.plan != nullptr) ranges_.emplace(*options.plan);
    if (records_memory_) {
      follow_allocator();
      operators_ = std::make_shared<DeviceOperators>(ledger_);
    }
    if (options.graphs) repeated_.emplace();
  }

  /// Nothing may run on buffers that go. The watch still sees to collectives that a peer never joins.
  ~CudaBackend() override {
    for (const Stream& stream : streams_) {
      if (stream.cuda) cudaStreamSynchronize(stream.cuda->stream());
    }
  }

  DeviceKind device() const override { return DeviceKind::Cuda; }

  StreamIndex create_stream(std::string_view name, int priority) override {
    ledger_->add_stream(/*host_memory=*/name == stream_name(foreshard::Stream::Host));
    RecordedLane* lane = recorder_ != nullptr ? &recorder_->add_lane(name, priority) : nullptr;
    streams_.push_back({std::string(name), std::nullopt, lane, nullptr});
    if (name != stream_name(foreshard::Stream::Host)) {
      streams_.back().cuda = name == "D" ? c10::cuda::getDefaultCUDAStream(device_)
                                         : c10::cuda::getStreamFromPool(std::min(priority, 0), device_);
      if (lane != nullptr) lanes_.emplace_back(streams_.back().cuda->stream(), lane);
    }
    return StreamIndex(streams_.size() - 1);
  }

  Buffer allocate(const Issue& issue, Bytes bytes, MemoryCategory category) override {
    auto buffer = std::make_shared<CudaBuffer>(issue.stream, category, bytes);
    const Bytes offset = arena_ != nullptr ? arena_->offset(issue.instruction) : Arena::kElsewhere;
    if (offset != Arena::kElsewhere) {
      buffer->lie_in(block_of(issue.stream), offset);
      return Buffer(std::move(buffer));
    }
    if (bytes > 0) {
      run(issue, [&] {
        c10::Allocator* allocator = stream(issue.stream).cuda
                                        ? c10::cuda::CUDACachingAllocator::get()
                                        : static_cast<c10::Allocator*>(at::getHostAllocator(c10::DeviceType::CUDA));
        buffer->memory() = allocator->allocate(static_cast<std::size_t>(bytes));
        count(*buffer, bytes);
      });
    }
    return Buffer(std::move(buffer));
  }

  void free(const Buffer& buffer, InstructionId) override {
    CudaBuffer& cuda = cuda_buffer(buffer);
    if (cuda.memory().get() == nullptr) return;  // of no bytes, or never made: the backend had failed
    cuda.memory().clear();
    if (!cuda.is_part()) count(cuda, -cuda.bytes());
  }

  void note_use(const Issue& issue, const Buffer& buffer) override {
    run(issue, [&] {
      if (buffer.bytes() > 0) {
        c10::cuda::CUDACachingAllocator::recordStream(cuda_buffer(buffer).memory(), *stream(issue.stream).cuda);
      }
    });
  }

  void launch(const Issue& issue, Work work) override { run(issue, work); }

  bool repeats() const override { return repeated_.has_value(); }
  void repeat(std::uint64_t key, const Work& work) override { repeated_ ? repeated_->run(key, work) : work(); }

  void copy(const Issue& issue, const Buffer& to, const Buffer& from, Bytes bytes) override {
    FORESHARD_CHECK(bytes <= to.bytes() && bytes <= from.bytes(), "a copy is larger than its buffers");
    run(issue, [&] {
      if (bytes == 0) return;
      const auto& cuda = stream(issue.stream).cuda;
      if (!cuda) {
        std::memcpy(to.data(), from.data(), static_cast<std::size_t>(bytes));
        return;
      }
      check(cudaMemcpyAsync(to.data(), from.data(), static_cast<std::size_t>(bytes), cudaMemcpyDefault, cuda->stream()),
            "cudaMemcpyAsync");
    });
  }

  void collective(const Issue& issue, std::shared_ptr<Communicator> communicator, CollectiveWork work) override {
    board_.tell(communicator);
    const auto& cuda = stream(issue.stream).cuda;
    order_.in_turn(*this, issue, communicator, [&] {
      note_errors(issue, [&] {
        watch_.during(communicator, issue.instruction, cuda ? cuda->stream() : nullptr,
                      [&] { run(issue, [&] { work(*communicator); }); });
      });
    });
  }

  /// Of the host: never recorded, so that nobody waits for it; its work was done when it was issued.
  Event record_event(const Issue& issue) override {
    auto event = std::make_shared<CudaEvent>(events_);
    const auto& cuda = stream(issue.stream).cuda;
    if (cuda) note_errors(issue, [&] { check(cudaEventRecord(event->get(), cuda->stream()), "cudaEventRecord"); });
    return Event(std::move(event));
  }

  void wait_event(const Issue& issue, const Event& event) override {
    const auto& cuda = stream(issue.stream).cuda;
    if (!cuda) return static_cast<void>(host_wait(event));
    note_errors(issue,
                [&] { check(cudaStreamWaitEvent(cuda->stream(), cuda_event(event), 0), "cudaStreamWaitEvent"); });
  }

  Outcome<void> host_wait(const Event& event) override {
    const std::int64_t start = wait_begins();
    note_errors({StreamIndex(0), instruction_},
                [&] { check(cudaEventSynchronize(cuda_event(event)), "cudaEventSynchronize"); });
    wait_ends(start);
    return board_.outcome();
  }

  Outcome<void> synchronize() override {
    const std::int64_t start = wait_begins();
    for (std::size_t s = 0; s < streams_.size(); ++s) {
      const auto& cuda = streams_[s].cuda;
      if (!cuda) continue;
      note_errors({StreamIndex(s), instruction_},
                  [&] { check(cudaStreamSynchronize(cuda->stream()), "cudaStreamSynchronize"); });
    }
    wait_ends(start);
    const std::vector<MemoryChange> changes = ledger_->settle();
    if (records_memory_) recorder_->memory_changed(changes);
    if (cupti_ != nullptr) recorder_->device_recorded(cupti_->collect(lanes_, recorder_->driver_calls()));
    return board_.outcome();
  }

  MemoryReport memory() const override {
    MemoryReport report = ledger_->report();
    const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(device_);
    const auto& [allocated, active, reserved] = std::tie(stats.allocated_bytes[0], stats.active_bytes[0],
                                                         stats.reserved_bytes[0]);  // [0]: all pools together
    report.allocator = AllocatorCount{allocated.current, allocated.peak, active.current,          active.peak,
                                      reserved.current,  reserved.peak,  stats.num_alloc_retries, stats.num_ooms};
    return report;
  }

  void reset_peak_memory() override {
    ledger_->reset_peaks();
    c10::cuda::CUDACachingAllocator::resetPeakStats(device_);
  }

  void at_instruction(std::int32_t step, InstructionId instruction) override {
    step_ = step;
    instruction_ = instruction;
    if (operators_) operators_->at({step, instruction.value});
    if (recorder_ != nullptr) recorder_->at_instruction(step, instruction);
    if (cupti_ != nullptr) cupti_->at_instruction(step, instruction);
    if (ranges_) ranges_->at_instruction(instruction);
  }

 private:
  struct Stream {
    std::string name;
    std::optional<c10::cuda::CUDAStream> cuda;  // none: the host's
    RecordedLane* lane;
    std::shared_ptr<CudaBuffer> block;  // the arena's, made for the first buffer in it
  };

  const std::shared_ptr<CudaBuffer>& block_of(StreamIndex index) {
    std::shared_ptr<CudaBuffer>& block = streams_[index.index()].block;
    if (block == nullptr) {
      const Buffer made = allocate({index, {}}, arena_->block(stream(index).name), MemoryCategory::ReduceBuffers);
      block = std::static_pointer_cast<CudaBuffer>(made.record());
    }
    return block;
  }

  std::int64_t wait_begins() const { return recorder_ != nullptr ? steady_now() : 0; }
  void wait_ends(std::int64_t start) {
    if (recorder_ != nullptr) recorder_->host_waited(start);
  }

  const Stream& stream(StreamIndex index) const { return streams_[index.index()]; }

  /// Also after a failure: events still fire.
  template <class F>
  void note_errors(const Issue& issue, F&& f) {
    try {
      f();
    } catch (const c10::Error& error) {
      board_.report({issue.instruction, stream(issue.stream).name, words_of(error.what_without_backtrace())});
    } catch (const std::exception& error) {
      board_.report({issue.instruction, stream(issue.stream).name, words_of(error.what())});
    } catch (...) {
      board_.report({issue.instruction, stream(issue.stream).name, "something that is no std::exception was thrown"});
    }
  }

  template <class F>
  void run(const Issue& issue, F&& f) {
    if (board_.failed()) return;
    const Stream& on = stream(issue.stream);
    note_errors(issue, [&] {
      if (on.cuda) {
        const c10::cuda::CUDAStreamGuard current(*on.cuda);
        const CountedHere counted(operators_);
        return f();
      }
      const std::int64_t start = on.lane != nullptr ? steady_now() : 0;
      f();
      if (on.lane != nullptr) on.lane->add({start, steady_now(), step_, issue.instruction.value});
    });
  }

  void count(const CudaBuffer& buffer, Bytes change) {
    ledger_->allocated(buffer.pool(), buffer.category(), change, {step_, instruction_.value});
    ledger_->resident(buffer.pool(), buffer.category(), change);
  }

  c10::DeviceIndex device_;
  c10::cuda::CUDAGuard guard_;
  FailureBoard board_;
  CollectiveWatch watch_;
  CollectiveOrder order_;
  Recorder* recorder_;
  CuptiRecorder* cupti_;
  bool records_memory_;
  std::vector<std::pair<CUstream_st*, RecordedLane*>> lanes_;
  std::optional<UnitRanges> ranges_;
  std::optional<RepeatedWork> repeated_;
  std::shared_ptr<MemoryLedger> ledger_ = std::make_shared<MemoryLedger>();
  std::shared_ptr<DeviceOperators> operators_;  // of a recorded run
  std::shared_ptr<EventPool> events_;           // outlives the backend where an Event does
  std::shared_ptr<const ArenaPlaces> arena_;
  std::vector<Stream> streams_;
  std::int32_t step_ = 0;
  InstructionId instruction_;
};

}  // namespace

Result<std::unique_ptr<Backend>> make_cuda_backend(const CudaBackendOptions& options) {
  const Result<CudaDevice> device = cuda_device(options.device);
  if (!device) return fail(device.error());
  if (device->free_memory < kLeastFreeMemory) {
    return fail(Error{.code = ErrorCode::OutOfRange,
                      .message = fmt::format("{} has no memory left", device->name),
                      .place = fmt::format("CUDA device {}", options.device),
                      .expected = fmt::format("at least {} MiB free", kLeastFreeMemory >> 20),
                      .got = fmt::format("{} MiB of {} MiB", device->free_memory >> 20, device->total_memory >> 20),
                      .hint = "nvidia-smi lists the processes that hold it"});
  }
  try {
    at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);  // LibTorch's allocator and generators
    return std::make_unique<CudaBackend>(options);
  } catch (const std::exception& error) {
    return fail(Error{.code = ErrorCode::Unsupported,
                      .message = fmt::format("it cannot be used: {}", error.what()),
                      .place = fmt::format("CUDA device {}", options.device),
                      .expected = "a device that LibTorch can initialise",
                      .hint = "`foreshard doctor` asks it without a job"});
  }
}

}  // namespace foreshard::exec
