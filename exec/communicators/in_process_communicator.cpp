#include "exec/communicators/in_process_communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <string>

#include "exec/communicators/reduce_parts.h"

namespace foreshard::exec {
namespace {

/// What one rank says when it comes to a collective. All ranks must say the same but for the pointers.
struct Call {
  const char* name = "";
  void* output = nullptr;
  const void* input = nullptr;
  std::vector<Numel> counts;  // elements of each rank's part
  DType dtype = DType::Float32;
  ReduceOp op = ReduceOp::None;
  int root = 0;
  std::vector<Numel> sends = {}, receives = {};  // of an exchange: to and from each rank; not the same on all

  bool matches(const Call& other) const {
    return std::string_view(name) == other.name && counts == other.counts && dtype == other.dtype && op == other.op &&
           root == other.root;
  }
  std::string text() const {
    const std::vector<Numel>& parts = sends.empty() ? counts : sends;
    return fmt::format("{} of {} {} elements", name, std::reduce(parts.begin(), parts.end(), Numel{0}),
                       dtype_name(dtype));
  }
};

/// What the ranks share. A collective is two meetings; `generation` counts them.
struct Meeting {
  Meeting(int size, std::chrono::milliseconds limit)
      : timeout(limit), calls(static_cast<std::size_t>(size)), here(static_cast<std::size_t>(size)) {}
  const std::chrono::milliseconds timeout;
  std::mutex mutex;
  std::condition_variable all_here;
  std::vector<Call> calls;
  std::vector<char> here;
  std::size_t arrived = 0;
  std::uint64_t generation = 0;
  std::string aborted;  // not empty: why

  void fail_locked(std::string why) {
    if (aborted.empty()) aborted = std::move(why);
    all_here.notify_all();
  }

  void meet(int rank, std::string_view doing) {
    std::unique_lock lock(mutex);
    if (!aborted.empty()) throw std::runtime_error(aborted);
    here[static_cast<std::size_t>(rank)] = 1;
    if (++arrived == here.size()) {
      std::fill(here.begin(), here.end(), char{0});
      arrived = 0;
      ++generation;
      all_here.notify_all();
      return;
    }
    const std::uint64_t mine = generation;
    const bool in_time = all_here.wait_for(lock, timeout, [&] { return generation != mine || !aborted.empty(); });
    if (generation != mine) return;
    if (!in_time) {
      std::string missing;
      for (std::size_t r = 0; r < here.size(); ++r) {
        if (!here[r]) missing += fmt::format("{}{}", missing.empty() ? "" : ", ", r);
      }
      fail_locked(fmt::format("rank {} waited {} ms in {}; missing: rank {}", rank, timeout.count(), doing, missing));
    }
    throw std::runtime_error(aborted);
  }
};

class InProcessCommunicator final : public Communicator {
 public:
  InProcessCommunicator(std::shared_ptr<Meeting> meeting, int rank) : meeting_(std::move(meeting)), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(meeting_->calls.size()); }

  void all_gather(void* output, const void* input, Numel numel, DType dtype) override {
    all_gather_uneven(output, input, even(numel), dtype);
  }

  void all_gather_uneven(void* output, const void* input, std::span<const Numel> counts, DType dtype) override {
    run({"all_gather", output, input, {counts.begin(), counts.end()}, dtype}, [&](const std::vector<Call>& calls) {
      std::byte* to = static_cast<std::byte*>(output);
      for (std::size_t r = 0; r < calls.size(); ++r) {
        const auto bytes = static_cast<std::size_t>(counts[r] * itemsize(dtype));
        if (to != calls[r].input && bytes != 0) std::memcpy(to, calls[r].input, bytes);
        to += bytes;
      }
    });
  }

  void reduce_scatter(void* output, const void* input, Numel numel, DType dtype, ReduceOp op) override {
    reduce_scatter_uneven(output, input, even(numel), dtype, op);
  }

  void reduce_scatter_uneven(void* output, const void* input, std::span<const Numel> counts, DType dtype,
                             ReduceOp op) override {
    run({"reduce_scatter", output, input, {counts.begin(), counts.end()}, dtype, op},
        [&](const std::vector<Call>& calls) {
          reduce_parts(static_cast<std::byte*>(output), parts_at(calls, own_offset(counts) * itemsize(dtype)),
                       counts[static_cast<std::size_t>(rank_)], dtype, op);
        });
  }

  void all_reduce(void* data, Numel numel, DType dtype, ReduceOp op) override {
    std::vector<Numel> counts(meeting_->calls.size(), numel / size());
    for (int r = 0; r < numel % size(); ++r) ++counts[static_cast<std::size_t>(r)];
    run({"all_reduce", data, data, counts, dtype, op}, [&](const std::vector<Call>& calls) {
      // Each rank reduces one part, in everybody's memory: nobody else touches that part.
      const Bytes offset = own_offset(counts) * itemsize(dtype);
      const Numel mine = counts[static_cast<std::size_t>(rank_)];
      reduce_parts(static_cast<std::byte*>(data) + offset, parts_at(calls, offset), mine, dtype, op);
      for (const Call& call : calls) {
        if (call.output == data || mine == 0) continue;
        std::memcpy(static_cast<std::byte*>(call.output) + offset, static_cast<std::byte*>(data) + offset,
                    static_cast<std::size_t>(mine * itemsize(dtype)));
      }
    });
  }

  void all_to_all(void* output, const void* input, std::span<const Numel> send, std::span<const Numel> receive,
                  DType dtype) override {
    Call call{"all_to_all", output, input, {}, dtype};
    call.sends.assign(send.begin(), send.end());
    call.receives.assign(receive.begin(), receive.end());
    run(std::move(call), [&](const std::vector<Call>& calls) {
      std::byte* to = static_cast<std::byte*>(output);
      for (const Call& from : calls) {
        const auto own = from.sends.begin() + rank_;
        const auto bytes = static_cast<std::size_t>(*own * itemsize(dtype));
        const Bytes offset = std::reduce(from.sends.begin(), own, Numel{0}) * itemsize(dtype);
        if (bytes != 0) std::memcpy(to, static_cast<const std::byte*>(from.input) + offset, bytes);
        to += bytes;
      }
    });
  }

  void broadcast(void* data, Numel numel, DType dtype, int root) override {
    run({"broadcast", data, data, {numel}, dtype, ReduceOp::None, root}, [&](const std::vector<Call>& calls) {
      if (rank_ == root || numel == 0) return;
      std::memcpy(data, calls[static_cast<std::size_t>(root)].input, static_cast<std::size_t>(numel * itemsize(dtype)));
    });
  }

  void barrier() override {
    run({"barrier"}, [](const std::vector<Call>&) {});
  }

  void abort(std::string_view why) override {
    std::lock_guard lock(meeting_->mutex);
    meeting_->fail_locked(fmt::format("rank {} gave up: {}", rank_, why));
  }

 private:
  std::vector<Numel> even(Numel numel) const { return std::vector<Numel>(meeting_->calls.size(), numel); }

  Numel own_offset(std::span<const Numel> counts) const {
    return std::reduce(counts.begin(), counts.begin() + rank_, Numel{0});
  }

  static std::vector<const std::byte*> parts_at(const std::vector<Call>& calls, Bytes offset) {
    std::vector<const std::byte*> parts;
    for (const Call& call : calls) parts.push_back(static_cast<const std::byte*>(call.input) + offset);
    return parts;
  }

  template <class F>
  void run(Call call, F own_part) {
    const std::string doing = call.text();
    meeting_->calls[static_cast<std::size_t>(rank_)] = std::move(call);
    meeting_->meet(rank_, doing);
    check_calls();
    own_part(meeting_->calls);
    meeting_->meet(rank_, doing);
  }

  void check_calls() {
    const std::vector<Call>& calls = meeting_->calls;
    for (std::size_t r = 1; r < calls.size(); ++r) {
      if (calls[r].matches(calls.front())) continue;
      disagree(fmt::format("rank 0 calls {}, rank {} calls {}", calls.front().text(), r, calls[r].text()));
    }
    for (std::size_t from = 0; from < calls.size() && !calls.front().sends.empty(); ++from) {
      for (std::size_t to = 0; to < calls.size(); ++to) {
        const Numel sent = calls[from].sends[to], expected = calls[to].receives[from];
        if (sent == expected) continue;
        disagree(fmt::format("rank {} sends {} elements to rank {}, which expects {}", from, sent, to, expected));
      }
    }
  }

  void disagree(const std::string& how) {
    const std::string why = "ranks disagree: " + how;
    std::lock_guard lock(meeting_->mutex);
    meeting_->fail_locked(why);
    throw std::runtime_error(why);
  }

  std::shared_ptr<Meeting> meeting_;
  int rank_;
};

}  // namespace

std::vector<std::shared_ptr<Communicator>> in_process_communicators(int size, std::chrono::milliseconds timeout) {
  auto meeting = std::make_shared<Meeting>(size, timeout);
  std::vector<std::shared_ptr<Communicator>> ranks;
  for (int rank = 0; rank < size; ++rank) ranks.push_back(std::make_shared<InProcessCommunicator>(meeting, rank));
  return ranks;
}

}  // namespace foreshard::exec
