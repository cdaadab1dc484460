#include "exec/cuda/collective_watch.h"

#include <c10/cuda/CUDAGuard.h>
#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace foreshard::exec {
namespace {

using std::chrono::milliseconds;

/// Often enough for short timeouts, and seldom enough that nobody feels it.
milliseconds interval_for(milliseconds timeout, milliseconds most) {
  return std::clamp(timeout / 8, milliseconds(10), most);
}

const Instruction* instruction_of(const Plan* plan, InstructionId id) {
  if (plan == nullptr || !id.valid()) return nullptr;
  std::size_t index = id.index();
  for (const PlanIteration& iteration : plan->iterations) {
    if (index < iteration.instructions.size()) return &iteration.instructions[index];
    index -= iteration.instructions.size();
  }
  return nullptr;
}

/// " of \"layers.0\"", as far as the plan tells.
std::string unit_text(const Plan* plan, InstructionId id) {
  const Instruction* instruction = instruction_of(plan, id);
  if (instruction == nullptr || !instruction->unit.valid()) return {};
  const std::string& name = plan->units[instruction->unit.index()].name;
  return fmt::format(" of \"{}\"", name.empty() ? "root" : name);
}

}  // namespace

CollectiveWatch::~CollectiveWatch() {
  {
    std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  if (watch_.joinable()) watch_.join();
  if (peers_.joinable()) peers_.join();
  for (const Queue& queue : queues_) {
    for (const Pending& pending : queue.pending) {
      if (pending.event != nullptr) cudaEventDestroy(pending.event);
    }
  }
  for (const cudaEvent_t event : free_events_) cudaEventDestroy(event);
}

CollectiveWatch::Queue& CollectiveWatch::queue_of(const Communicator* communicator) {
  return *std::find_if(queues_.begin(), queues_.end(),
                       [&](const Queue& queue) { return queue.communicator.get() == communicator; });
}

void CollectiveWatch::begins(const std::shared_ptr<Communicator>& communicator, InstructionId instruction) {
  const std::int64_t number = communicator->calls_made().ended + 1;
  std::lock_guard lock(mutex_);
  if (std::none_of(queues_.begin(), queues_.end(), [&](const Queue& q) { return q.communicator == communicator; })) {
    queues_.push_back({communicator, {}, {}});
  }
  queue_of(communicator.get()).pending.push_back({instruction, number, nullptr, Clock::now()});
  if (watch_.joinable()) return;
  watch_ = std::thread([this] { watch(); });
  peers_ = std::thread([this] { ask_peers(); });
}

/// A call that made nothing, or failed, leaves nothing to be watched.
void CollectiveWatch::issued(const std::shared_ptr<Communicator>& communicator, cudaStream_t stream) {
  const std::int64_t ended = communicator->calls_made().ended;
  bool made = false;
  {
    std::lock_guard lock(mutex_);
    Queue& queue = queue_of(communicator.get());
    made = queue.pending.back().number <= ended;
    if (!made) queue.pending.pop_back();
  }
  if (!made) return;
  const cudaEvent_t event = take_event();
  const cudaError_t recorded = cudaEventRecord(event, stream);
  std::lock_guard lock(mutex_);
  Queue& queue = queue_of(communicator.get());
  if (recorded == cudaSuccess) {
    queue.pending.back().event = event;
    return;
  }
  queue.pending.pop_back();
  free_events_.push_back(event);
  throw std::runtime_error(fmt::format("cudaEventRecord behind a collective: {}", cudaGetErrorString(recorded)));
}

cudaEvent_t CollectiveWatch::take_event() {
  {
    std::lock_guard lock(mutex_);
    if (!free_events_.empty()) {
      const cudaEvent_t event = free_events_.back();
      free_events_.pop_back();
      return event;
    }
  }
  cudaEvent_t event = nullptr;
  if (const cudaError_t made = cudaEventCreateWithFlags(&event, cudaEventDisableTiming); made != cudaSuccess) {
    throw std::runtime_error(fmt::format("cudaEventCreate behind a collective: {}", cudaGetErrorString(made)));
  }
  return event;
}

std::vector<CollectiveWatch::Oldest> CollectiveWatch::oldest() {
  std::vector<Oldest> all;
  std::lock_guard lock(mutex_);
  for (const Queue& queue : queues_) {
    all.push_back({queue.communicator, std::nullopt, queue.missing});
    if (!queue.pending.empty()) all.back().pending = queue.pending.front();
  }
  return all;
}

/// Whether the oldest is over: then it goes, and the time of the next begins. An error of the device is the issuer's.
bool CollectiveWatch::ended(const Oldest& oldest) {
  if (!oldest.pending || oldest.pending->event == nullptr) return false;
  if (cudaEventQuery(oldest.pending->event) == cudaErrorNotReady) return false;
  cudaGetLastError();  // of this thread
  std::lock_guard lock(mutex_);
  Queue& queue = queue_of(oldest.communicator.get());
  queue.pending.pop_front();
  queue.missing.clear();
  free_events_.push_back(oldest.pending->event);
  if (!queue.pending.empty()) queue.pending.front().since = Clock::now();
  return true;
}

std::string CollectiveWatch::timed_out(const Oldest& oldest) const {
  const std::string_view what = oldest.communicator->calls_made().last;
  const Instruction* instruction = instruction_of(options_.plan, oldest.pending->instruction);
  return fmt::format(
      "{}{} (call {} of its group of {}) {} for {} s: {}",
      instruction != nullptr ? instruction_kind_name(instruction->kind) : what,
      unit_text(options_.plan, oldest.pending->instruction), oldest.pending->number, oldest.communicator->size(),
      oldest.pending->event != nullptr ? "has not ended" : "has not come back",
      std::chrono::duration<double>(options_.timeout).count(),
      oldest.missing.empty() ? "a peer does not take part, which one is not known" : oldest.missing.c_str());
}

std::optional<Failure> CollectiveWatch::failure_of(const Oldest& oldest) const {
  const InstructionId at = oldest.pending ? oldest.pending->instruction : InstructionId();
  if (std::string why = oldest.communicator->asynchronous_error(); !why.empty()) return Failure{at, "", why};
  if (!oldest.pending || Clock::now() - oldest.pending->since <= options_.timeout) return std::nullopt;
  return Failure{at, "", timed_out(oldest)};
}

/// Ends both threads: there is nothing more to be watched.
void CollectiveWatch::report(const Failure& failure) {
  {
    std::lock_guard lock(mutex_);
    if (std::exchange(closing_, true)) return;
  }
  changed_.notify_all();
  board_.report(failure);
}

void CollectiveWatch::watch() {
  pthread_setname_np(pthread_self(), "watchdog");
  cudaSetDevice(options_.device);
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;  // what is asked here spoils no capture elsewhere
  cudaThreadExchangeStreamCaptureMode(&mode);
  const milliseconds interval = interval_for(options_.timeout, milliseconds(200));
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, interval, [this] { return closing_; })) {
    lock.unlock();
    for (bool again = true; again;) {
      again = false;
      for (const Oldest& one : oldest()) {
        if (ended(one)) {
          again = true;
        } else if (const auto failure = failure_of(one)) {
          return report(*failure);
        }
      }
    }
    lock.lock();
  }
}

/// What the store tells. Where it does not answer, this thread stands, and the watch goes on without it; the end waits
/// for the store's timeout.
void CollectiveWatch::ask_peers() {
  pthread_setname_np(pthread_self(), "watchdog_peers");
  cudaSetDevice(options_.device);  // for what an abort does
  const milliseconds interval = interval_for(options_.timeout, milliseconds(500));
  Clock::time_point next_question = Clock::now();
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, interval, [this] { return closing_; })) {
    lock.unlock();
    const bool asks = Clock::now() >= next_question;
    if (asks) next_question = Clock::now() + options_.timeout / 8;
    for (const Oldest& one : oldest()) {
      const InstructionId at = one.pending ? one.pending->instruction : InstructionId();
      if (const std::string word = one.communicator->word_of_peers(); !word.empty()) return report({at, "", word});
      if (!asks || !one.pending || Clock::now() - one.pending->since < options_.timeout / 4) continue;
      std::string missing = one.communicator->missing_at(one.pending->number);
      const std::lock_guard again(mutex_);
      queue_of(one.communicator.get()).missing = std::move(missing);
    }
    lock.lock();
  }
}

}  // namespace foreshard::exec
