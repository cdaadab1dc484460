#include "exec/communicators/nccl_communicator.h"

#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <nccl.h>

#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>

#include "exec/communicators/nccl_buffers.h"

namespace foreshard::exec {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kBetweenWords{200};
constexpr std::chrono::milliseconds kCallTakes{50};  // at most, where it does not wait for peers

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

std::string text_of(const char* what, ncclResult_t result, ncclComm_t comm) {
  if (result == ncclInProgress) return fmt::format("{}: the peers did not come within the timeout", what);
  std::string text = fmt::format("{}: NCCL says \"{}\"", what, ncclGetErrorString(result));
  const char* last = ncclGetLastError(comm);
  if (last != nullptr && *last != 0) text += fmt::format(", last: {}", last);
  return text + " (NCCL_DEBUG=INFO tells more)";
}

/// How long something is waited for: until the timeout, or until somebody leaves word that it will not come.
class Patience {
 public:
  explicit Patience(const NcclOptions& options) : options_(options), end_(Clock::now() + options.timeout) {}
  bool over() {
    const auto now = Clock::now();
    if (now > end_) return true;
    if (!options_.peers.failure || now < next_word_) return false;
    next_word_ = now + kBetweenWords;
    return !options_.peers.failure().empty();
  }

 private:
  const NcclOptions& options_;
  Clock::time_point end_;
  Clock::time_point next_word_ = Clock::now() + kBetweenWords;
};

/// For a thread that may outlive whoever answers for the peers.
NcclOptions alone(NcclOptions options) {
  options.peers = {};
  return options;
}

/// Does on a thread of its own what nothing can end while it stands: NCCL has no way to give up a communicator that is
/// still being made. Not in time: ncclInProgress, and the thread is left to itself.
template <class F>
ncclResult_t in_time(const NcclOptions& options, F&& f) {
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    std::optional<ncclResult_t> result;
  };
  auto shared = std::make_shared<Shared>();
  std::thread([shared, f = std::forward<F>(f), index = options.device] {
    static_cast<void>(cudaSetDevice(index));  // unchecked: nobody catches here, and NCCL says what is wrong
    static_cast<void>(cudaGetLastError());
    const ncclResult_t result = f();
    const std::lock_guard lock(shared->mutex);
    shared->result = result;
    shared->changed.notify_all();
  }).detach();
  Patience patience(options);
  std::unique_lock lock(shared->mutex);
  while (!shared->changed.wait_for(lock, kBetweenWords, [&] { return shared->result.has_value(); })) {
    lock.unlock();
    const bool over = patience.over();
    lock.lock();
    if (over && !shared->result) return ncclInProgress;
  }
  return *shared->result;
}

/// Waits until what was begun is done, as communicators that do not block ask for. `ask` gives its state, or an error.
template <class F>
ncclResult_t settled(ncclResult_t begun, const NcclOptions& options, F&& ask) {
  Patience patience(options);
  while (begun == ncclInProgress) {
    begun = ask();
    if (begun != ncclInProgress) break;
    if (patience.over()) return ncclInProgress;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return begun;
}

ncclResult_t state_of(ncclComm_t comm) {
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = ncclCommGetAsyncError(comm, &state);
  return asked == ncclSuccess ? state : asked;
}

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(const NcclOptions& options, ncclComm_t comm) : options_(options), comm_(comm) {
    if (options_.register_buffers) register_allocator(comm_, options_.device);
  }

  /// No call is under way any more; what it put on streams is over, as backends see to before they go.
  ~NcclCommunicator() override {
    if (aborted_) return;
    if (options_.register_buffers) deregister_allocator(comm_);
    static_cast<void>(in_time(options_, [comm = comm_, options = alone(options_)] {
      const ncclResult_t finalized = settled(ncclCommFinalize(comm), options, [comm] { return state_of(comm); });
      return finalized == ncclSuccess ? ncclCommDestroy(comm) : ncclCommAbort(comm);
    }));
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
    call("all_gather", [&, type = nccl_type(dtype)](ncclComm_t comm, cudaStream_t stream) {
      return for_each_part(counts, dtype, [&](std::size_t offset, std::size_t count, int root) {
        void* part = static_cast<std::byte*>(output) + offset;
        return ncclBroadcast(root == options_.rank ? input : part, part, count, type, root, comm, stream);
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
    call("reduce_scatter", [&, type = nccl_type(dtype), by = nccl_op(op)](ncclComm_t comm, cudaStream_t stream) {
      return for_each_part(counts, dtype, [&](std::size_t offset, std::size_t count, int root) {
        const void* part = static_cast<const std::byte*>(input) + offset;
        return ncclReduce(part, root == options_.rank ? output : nullptr, count, type, by, root, comm, stream);
      });
    });
  }

  void all_reduce(void* data, Numel numel, DType dtype, ReduceOp op) override {
    call("all_reduce", [&](ncclComm_t comm, cudaStream_t stream) {
      return ncclAllReduce(data, data, static_cast<std::size_t>(numel), nccl_type(dtype), nccl_op(op), comm, stream);
    });
  }

  void all_to_all(void* output, const void* input, std::span<const Numel> send, std::span<const Numel> receive,
                  DType dtype) override {
    call("all_to_all", [&, type = nccl_type(dtype)](ncclComm_t comm, cudaStream_t stream) {
      if (const ncclResult_t begun = ncclGroupStart(); begun != ncclSuccess) return begun;
      const ncclResult_t sent = for_each_part(send, dtype, [&](std::size_t offset, std::size_t count, int peer) {
        const void* part = static_cast<const std::byte*>(input) + offset;
        return count == 0 ? ncclSuccess : ncclSend(part, count, type, peer, comm, stream);
      });
      const ncclResult_t received = for_each_part(receive, dtype, [&](std::size_t offset, std::size_t count, int peer) {
        void* part = static_cast<std::byte*>(output) + offset;
        return count == 0 ? ncclSuccess : ncclRecv(part, count, type, peer, comm, stream);
      });
      const ncclResult_t ended = ncclGroupEnd();
      const bool fails = sent != ncclSuccess && sent != ncclInProgress;
      return fails ? sent : received != ncclSuccess && received != ncclInProgress ? received : ended;
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

  /// Ends a call that stands, too: NCCL's own waiting looks at the flags that this sets. One that does not stand gets
  /// the time to end, since it works on what goes here.
  void abort(std::string_view why) noexcept override {
    {
      std::unique_lock lock(mutex_);
      if (std::exchange(aborted_, true)) return;
      why_ = why;
      call_ended_.wait_for(lock, kCallTakes, [this] { return !in_call_; });
    }
    // The thread that aborts may never have had a device: NCCL goes back to that thread's own, which makes a context on
    // it. Unchecked, and no guard: after an illegal access of this process's own every call says so, this one too.
    int before = -1;
    if (cudaGetDevice(&before) != cudaSuccess) before = -1;
    static_cast<void>(cudaSetDevice(options_.device));
    static_cast<void>(cudaGetLastError());
    if (options_.register_buffers) forget_allocator(comm_);
    ncclCommAbort(comm_);
    if (before >= 0) static_cast<void>(cudaSetDevice(before));
    static_cast<void>(cudaGetLastError());
  }

  std::string asynchronous_error() const override {
    std::lock_guard lock(mutex_);
    if (aborted_) return {};
    const ncclResult_t state = state_of(comm_);
    return state == ncclSuccess || state == ncclInProgress ? std::string() : text_of("a collective", state, comm_);
  }

  CallsMade calls_made() const override {
    std::lock_guard lock(mutex_);
    return made_;
  }
  std::string word_of_peers() override {
    if (options_.peers.answer) options_.peers.answer(calls_made().ended);
    return options_.peers.failure ? options_.peers.failure() : std::string();
  }
  std::string missing_at(std::int64_t call) override {
    return options_.peers.missing_at ? options_.peers.missing_at(call) : std::string();
  }

 private:
  /// The lock is never held over a call that may stand: abort() would wait for what it is to end.
  template <class F>
  void call(const char* what, F&& enqueue) {
    begin(what);
    const ncclResult_t begun = enqueue_in_call(enqueue);
    const ncclResult_t result = settled(begun, options_, [this] {
      std::lock_guard lock(mutex_);
      return aborted_ ? ncclInternalError : state_of(comm_);
    });
    std::lock_guard lock(mutex_);
    in_call_ = false;
    call_ended_.notify_all();
    if (aborted_) throw std::runtime_error(fmt::format("{} was aborted: {}", what, why_));
    if (result != ncclSuccess) throw std::runtime_error(text_of(what, result, comm_));
    ++made_.ended;
  }

  /// Types that NCCL does not carry are thrown of before it is called.
  template <class F>
  ncclResult_t enqueue_in_call(F& enqueue) {
    try {
      return enqueue(comm_, c10::cuda::getCurrentCUDAStream().stream());
    } catch (...) {
      std::lock_guard lock(mutex_);
      in_call_ = false;
      call_ended_.notify_all();
      throw;
    }
  }

  void begin(const char* what) {
    std::lock_guard lock(mutex_);
    if (aborted_) throw std::runtime_error(fmt::format("{} after an abort: {}", what, why_));
    made_.last = what;
    in_call_ = true;
  }

  /// Parts of uneven length go as one collective per rank, inside one group, as PyTorch sends them. REQUIRES that send
  /// does not throw: NCCL would hold back every later call of the thread, an abort too, for the end of the group.
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
  ncclComm_t comm_;           // gone once aborted_
  mutable std::mutex mutex_;  // of what follows
  std::condition_variable call_ended_;
  bool aborted_ = false, in_call_ = false;
  std::string why_;
  CallsMade made_;
};

}  // namespace

Result<std::string> nccl_unique_id() {
  ncclUniqueId id;
  if (const ncclResult_t result = ncclGetUniqueId(&id); result != ncclSuccess) {
    return fail(Error{.code = ErrorCode::Unsupported,
                      .message = fmt::format("NCCL cannot make an id: {}", ncclGetErrorString(result)),
                      .place = "the first rank of a group",
                      .expected = "an id, made of this machine's network address",
                      .hint = "NCCL_DEBUG=INFO tells more; NCCL_SOCKET_IFNAME chooses the network interface"});
  }
  return std::string(id.internal, sizeof id.internal);
}

Result<std::shared_ptr<Communicator>> nccl_communicator(const NcclOptions& options, const std::string& unique_id) {
  ncclUniqueId id;
  FORESHARD_CHECK(unique_id.size() == sizeof id.internal, "an id is what nccl_unique_id gave");
  std::memcpy(id.internal, unique_id.data(), sizeof id.internal);
  const auto comm = std::make_shared<ncclComm_t>();
  const ncclResult_t result = in_time(options, [comm, id, options = alone(options)] {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = options.blocking ? 1 : 0;
    if (options.max_ctas > 0) config.maxCTAs = options.max_ctas;
    const ncclResult_t begun = ncclCommInitRankConfig(comm.get(), options.size, id, options.rank, &config);
    return *comm == nullptr ? begun : settled(begun, options, [comm] { return state_of(*comm); });
  });
  if (result == ncclSuccess) return std::make_shared<NcclCommunicator>(options, *comm);
  const bool stands = result == ncclInProgress;  // whatever is there belongs to the thread that makes it
  std::string text = text_of("the ranks do not meet", result, stands ? nullptr : *comm);
  if (const std::string word = options.peers.failure ? options.peers.failure() : ""; !word.empty()) text = word;
  if (!stands && *comm != nullptr) ncclCommAbort(*comm);
  return fail(
      Error{.code = ErrorCode::Unsupported,
            .message = text,
            .place = fmt::format("rank {} of a group of {}", options.rank, options.size),
            .expected = fmt::format("all {} ranks within {} s", options.size,
                                    std::chrono::duration_cast<std::chrono::seconds>(options.timeout).count()),
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
