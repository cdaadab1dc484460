#include "exec/communicators/nccl_communicator.h"

#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <fmt/format.h>
#include <nccl.h>

#include <cstdio>
#include <cstring>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "exec/communicators/nccl_buffers.h"

namespace foreshard::exec {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kBetweenWords{200};

ncclDataType_t nccl_type(DType dtype) {
  switch (dtype) {
    case DType::Float32: return ncclFloat32;
    case DType::Float64: return ncclFloat64;
    case DType::Float16: return ncclFloat16;
    case DType::BFloat16: return ncclBfloat16;
    case DType::Float8E4M3: return ncclFloat8e4m3;
    case DType::Float8E5M2: return ncclFloat8e5m2;
    case DType::Int8: return ncclInt8;
    case DType::UInt8:
    case DType::Bool: return ncclUint8;
    case DType::Int32: return ncclInt32;
    case DType::Int64: return ncclInt64;
    default: throw std::runtime_error(fmt::format("NCCL does not carry {}", dtype_name(dtype)));
  }
}

ncclRedOp_t nccl_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::Sum:
    case ReduceOp::PremulSum: return ncclSum;  // the plan's divide instructions carry the factors
    case ReduceOp::Avg: return ncclAvg;
    case ReduceOp::Max: return ncclMax;
    case ReduceOp::None: break;
  }
  throw std::runtime_error("a reduction without an operation");
}

std::string version_text(int code) { return fmt::format("{}.{}.{}", code / 10000, code % 10000 / 100, code % 100); }

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(const NcclOptions& options, ncclComm_t comm) : options_(options), comm_(comm) {
    if (options_.register_buffers) register_allocator(comm_, options_.device);
  }

  ~NcclCommunicator() override {
    std::lock_guard lock(mutex_);
    if (comm_ == nullptr) return;
    if (options_.register_buffers) deregister_allocator(comm_);
    ncclCommFinalize(comm_);
    ncclResult_t state = ncclInProgress;
    const auto end = Clock::now() + options_.timeout;
    while (ncclCommGetAsyncError(comm_, &state) == ncclSuccess && state == ncclInProgress && Clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    state == ncclSuccess ? ncclCommDestroy(comm_) : ncclCommAbort(comm_);
  }

  int rank() const override { return options_.rank; }
  int size() const override { return options_.size; }
  bool orders_streams() const override { return true; }  // by events of its own, as PyTorch relies on

  void all_gather(void* output, const void* input, Numel numel, DType dtype) override {
    call("all_gather", [&](ncclComm_t comm, cudaStream_t stream) {
      return ncclAllGather(input, output, static_cast<std::size_t>(numel), nccl_type(dtype), comm, stream);
    });
  }

  void all_gather_uneven(void* output, const void* input, std::span<const Numel> counts, DType dtype) override {
    call("all_gather", [&](ncclComm_t comm, cudaStream_t stream) {
      return for_each_part(counts, dtype, [&](std::size_t offset, std::size_t count, int root) {
        void* part = static_cast<std::byte*>(output) + offset;
        return ncclBroadcast(root == options_.rank ? input : part, part, count, nccl_type(dtype), root, comm, stream);
      });
    });
  }

  void reduce_scatter(void* output, const void* input, Numel numel, DType dtype, ReduceOp op) override {
    call("reduce_scatter", [&](ncclComm_t comm, cudaStream_t stream) {
      return ncclReduceScatter(input, output, static_cast<std::size_t>(numel), nccl_type(dtype), nccl_op(op), comm,
                               stream);
    });
  }

  void reduce_scatter_uneven(void* output, const void* input, std::span<const Numel> counts, DType dtype,
                             ReduceOp op) override {
    call("reduce_scatter", [&](ncclComm_t comm, cudaStream_t stream) {
      return for_each_part(counts, dtype, [&](std::size_t offset, std::size_t count, int root) {
        const void* part = static_cast<const std::byte*>(input) + offset;
        return ncclReduce(part, root == options_.rank ? output : nullptr, count, nccl_type(dtype), nccl_op(op), root,
                          comm, stream);
      });
    });
  }

  void all_reduce(void* data, Numel numel, DType dtype, ReduceOp op) override {
    call("all_reduce", [&](ncclComm_t comm, cudaStream_t stream) {
      return ncclAllReduce(data, data, static_cast<std::size_t>(numel), nccl_type(dtype), nccl_op(op), comm, stream);
    });
  }

  void broadcast(void* data, Numel numel, DType dtype, int root) override {
    call("broadcast", [&](ncclComm_t comm, cudaStream_t stream) {
      return ncclBroadcast(data, data, static_cast<std::size_t>(numel), nccl_type(dtype), root, comm, stream);
    });
  }

  /// On the device, as everything here: the stream goes on when all ranks' streams have come.
  void barrier() override {
    void* word = nullptr;
    if (cudaMallocAsync(&word, sizeof(float), c10::cuda::getCurrentCUDAStream()) != cudaSuccess) {
      cudaGetLastError();
      throw std::runtime_error("no memory for a barrier");
    }
    all_reduce(word, 1, DType::Float32, ReduceOp::Sum);
    cudaFreeAsync(word, c10::cuda::getCurrentCUDAStream());
  }

  void abort(std::string_view why) override {
    std::lock_guard lock(mutex_);
    if (comm_ == nullptr) return;
    why_ = why;
    if (options_.register_buffers) deregister_allocator(comm_);
    ncclCommAbort(comm_);
    comm_ = nullptr;
  }

  std::string asynchronous_error() const override {
    const std::unique_lock lock(mutex_, std::try_to_lock);  // taken: a call is under way and sees errors itself
    ncclResult_t state = ncclSuccess;
    if (!lock || comm_ == nullptr || ncclCommGetAsyncError(comm_, &state) != ncclSuccess) return {};
    if (state != ncclSuccess && state != ncclInProgress) return text_of("a collective", state, comm_);
    return options_.word_of_others ? options_.word_of_others() : std::string();
  }

  /// Waits until what was begun is done, as communicators that do not block ask for.
  static ncclResult_t settled(ncclComm_t comm, ncclResult_t begun, const NcclOptions& options) {
    const auto end = Clock::now() + options.timeout;
    auto next_word = Clock::now() + kBetweenWords;
    while (begun == ncclInProgress) {
      if (const ncclResult_t asked = ncclCommGetAsyncError(comm, &begun); asked != ncclSuccess) return asked;
      if (begun != ncclInProgress) break;
      if (Clock::now() > end) return ncclInProgress;
      if (options.word_of_others && Clock::now() > next_word) {
        if (!options.word_of_others().empty()) return ncclInProgress;
        next_word = Clock::now() + kBetweenWords;
      }
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    return begun;
  }

  static std::string text_of(const char* what, ncclResult_t result, ncclComm_t comm) {
    if (result == ncclInProgress) return fmt::format("{}: the peers did not come within the timeout", what);
    std::string text = fmt::format("{}: NCCL says \"{}\"", what, ncclGetErrorString(result));
    const char* last = ncclGetLastError(comm);
    if (last != nullptr && *last != 0) text += fmt::format(", last: {}", last);
    return text + " (NCCL_DEBUG=INFO tells more)";
  }

 private:
  template <class F>
  void call(const char* what, F&& enqueue) {
    std::lock_guard lock(mutex_);
    if (comm_ == nullptr) throw std::runtime_error(fmt::format("{} after an abort: {}", what, why_));
    const ncclResult_t result = settled(comm_, enqueue(comm_, c10::cuda::getCurrentCUDAStream().stream()), options_);
    if (result != ncclSuccess) throw std::runtime_error(text_of(what, result, comm_));
  }

  /// Parts of uneven length go as one collective per rank, inside one group, as PyTorch sends them.
  template <class F>
  static ncclResult_t for_each_part(std::span<const Numel> counts, DType dtype, F&& send) {
    if (const ncclResult_t begun = ncclGroupStart(); begun != ncclSuccess) return begun;
    std::size_t offset = 0;
    ncclResult_t first_error = ncclSuccess;
    for (std::size_t r = 0; r < counts.size(); ++r) {
      const ncclResult_t sent = send(offset, static_cast<std::size_t>(counts[r]), static_cast<int>(r));
      if (sent != ncclSuccess && sent != ncclInProgress && first_error == ncclSuccess) first_error = sent;
      offset += static_cast<std::size_t>(counts[r] * itemsize(dtype));
    }
    const ncclResult_t ended = ncclGroupEnd();
    return first_error == ncclSuccess ? ended : first_error;
  }

  NcclOptions options_;
  mutable std::mutex mutex_;
  ncclComm_t comm_;
  std::string why_;  // of the abort
};

}  // namespace

Result<std::string> nccl_unique_id() {
  ncclUniqueId id;
  if (const ncclResult_t result = ncclGetUniqueId(&id); result != ncclSuccess) {
    return fail(Error{.code = ErrorCode::Unsupported,
                      .message = fmt::format("NCCL cannot make an id: {}", ncclGetErrorString(result)),
                      .hint = "NCCL_DEBUG=INFO tells more; NCCL_SOCKET_IFNAME chooses the network interface"});
  }
  return std::string(id.internal, sizeof id.internal);
}

Result<std::shared_ptr<Communicator>> nccl_communicator(const NcclOptions& options, const std::string& unique_id) {
  ncclUniqueId id;
  FORESHARD_CHECK(unique_id.size() == sizeof id.internal, "an id is what nccl_unique_id gave");
  std::memcpy(id.internal, unique_id.data(), sizeof id.internal);
  const c10::cuda::CUDAGuard device(static_cast<c10::DeviceIndex>(options.device));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t comm = nullptr;
  ncclResult_t result = ncclCommInitRankConfig(&comm, options.size, id, options.rank, &config);
  if (comm != nullptr) result = NcclCommunicator::settled(comm, result, options);
  if (result == ncclSuccess) return std::make_shared<NcclCommunicator>(options, comm);
  std::string text = NcclCommunicator::text_of("the ranks do not meet", result, comm);
  if (const std::string word = options.word_of_others ? options.word_of_others() : ""; !word.empty()) text = word;
  if (comm != nullptr) ncclCommAbort(comm);
  return fail(
      Error{.code = ErrorCode::Unsupported,
            .message = fmt::format("rank {} of {}: {}", options.rank, options.size, text),
            .hint = "all ranks need the same NCCL version and must reach each other; this one has " + nccl_version()});
}

std::string nccl_version() {
  int version = 0;
  return ncclGetVersion(&version) == ncclSuccess ? version_text(version) : "unknown";
}

std::string nccl_built_version() { return version_text(NCCL_VERSION_CODE); }

bool nccl_serves(const std::string& loaded, const std::string& built) {
  int of_loaded[3] = {0, 0, 0}, of_built[3] = {0, 0, 0};
  std::sscanf(loaded.c_str(), "%d.%d.%d", &of_loaded[0], &of_loaded[1], &of_loaded[2]);
  std::sscanf(built.c_str(), "%d.%d.%d", &of_built[0], &of_built[1], &of_built[2]);
  return of_loaded[0] == of_built[0] && of_loaded[1] >= of_built[1];
}

}  // namespace foreshard::exec
