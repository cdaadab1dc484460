#include "exec/host/host_stream.h"

#include <ATen/Parallel.h>

#include <exception>
#include <utility>

#include "core/text/utf8.h"

namespace foreshard::exec {
namespace {

thread_local HostStream::Running running_here;
thread_local std::shared_ptr<OperatorMemory> operator_memory_of_thread;

}  // namespace

void HostEvent::fire() {
  {
    std::lock_guard lock(mutex_);
    fired_.store(true, std::memory_order_release);
  }
  changed_.notify_all();
}

// Not std::atomic::wait, which calls sched_yield() before it sleeps: a thread that yields on full cores is put behind
// all others for a slice of the scheduler's (docs/measurements/2026-11-30-waiting-threads.md).
void HostEvent::wait() const {
  if (fired()) return;
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return fired(); });
}

const HostStream::Running& HostStream::running() { return running_here; }
const std::shared_ptr<OperatorMemory>& HostStream::operator_memory_here() { return operator_memory_of_thread; }

std::shared_ptr<OperatorMemory> OperatorMemory::make_current(std::shared_ptr<OperatorMemory> memory) {
  return std::exchange(operator_memory_of_thread, std::move(memory));
}

HostStream::HostStream(HostStreamOptions options, FailureBoard& board)
    : options_(std::move(options)), board_(board), worker_([this] { run(); }) {}

HostStream::~HostStream() {
  {
    std::lock_guard lock(mutex_);
    closing_ = true;
  }
  filled_.notify_one();
  worker_.join();
}

void HostStream::push(HostEntry entry) {
  ++issued_;
  bool was_empty;
  {
    std::lock_guard lock(mutex_);
    was_empty = entries_.empty();
    entries_.push_back(std::move(entry));
  }
  if (was_empty) filled_.notify_one();
}

void HostStream::run() {
  if (options_.intra_op_threads > 0) at::set_num_threads(options_.intra_op_threads);
  running_here.stream = this;
  operator_memory_of_thread = options_.operator_memory;
  std::vector<HostEntry> batch;
  while (take(batch)) {
    for (HostEntry& entry : batch) {
      run_entry(entry);
      entry = HostEntry();  // what it held goes now, not with the batch
      done_.fetch_add(1, std::memory_order_release);
    }
    batch.clear();
  }
  operator_memory_of_thread.reset();
}

bool HostStream::take(std::vector<HostEntry>& batch) {
  std::unique_lock lock(mutex_);
  filled_.wait(lock, [this] { return closing_ || !entries_.empty(); });
  batch.swap(entries_);
  return !batch.empty();
}

void HostStream::run_entry(HostEntry& entry) {
  running_here.place = entry.place;
  switch (entry.what) {
    case HostEntry::What::Fire: return entry.event->fire();
    case HostEntry::What::Wait: return entry.event->wait();
    case HostEntry::What::Release: return entry.memory->passed();
    case HostEntry::What::Allocate:
    case HostEntry::What::Run: break;
  }
  if (board_.failed()) return;
  const InstructionId instruction(entry.place.instruction);
  try {
    if (entry.what == HostEntry::What::Allocate)
      entry.memory->come_to_be();
    else
      run_work(entry);
  } catch (const std::exception& error) {
    board_.report({instruction, options_.name, first_line(error.what())});
  } catch (...) {
    board_.report({instruction, options_.name, "something that is no std::exception was thrown"});
  }
}

void HostStream::run_work(HostEntry& entry) {
  if (options_.lane == nullptr) return entry.work();
  const std::int64_t start = steady_now();
  entry.work();
  options_.lane->add({start, steady_now(), entry.place.step, entry.place.instruction});
}

}  // namespace foreshard::exec
