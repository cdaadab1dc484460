#include "sim/device/device_clock.h"

#include <algorithm>
#include <utility>

#include "core/result.h"

namespace foreshard {

DeviceClock::DeviceClock(ClockMode mode, int streams, std::size_t queue_depth)
    : mode_(mode),
      host_pays_(mode != ClockMode::Instant),
      streams_(streams),
      queue_depth_(mode == ClockMode::Model ? queue_depth : 0) {
  FORESHARD_CHECK(streams > 0, "a device has at least one stream");
  const auto n = static_cast<std::size_t>(streams);
  tails_.assign(n, 0);
  queues_.resize(n);
  if (mode == ClockMode::Lazy) {
    seen_.assign(n * n, 0);
    done_.assign(n, 0);
  }
}

SimTime DeviceClock::device_tail() const { return *std::max_element(tails_.begin(), tails_.end()); }

void DeviceClock::follow(std::vector<WorkSpan> schedule) {
  FORESHARD_CHECK(mode_ == ClockMode::Model, "only a clock that models time can follow a schedule");
  given_ = std::move(schedule);
  next_given_ = 0;
  for (WorkSpan& span : given_) {
    span.start += host_;
    span.end += host_;
  }
}

WorkSpan DeviceClock::enqueue_given(int stream, int communicator) {
  const WorkSpan span = given_[next_given_++];
  if (tape_ != nullptr) write_down(stream, span.end - span.start, communicator);
  SimTime& tail = tails_[static_cast<std::size_t>(stream)];
  tail = std::max(tail, span.end);
  return span;
}

std::uint32_t& DeviceClock::issued(int stream) {
  return seen_[static_cast<std::size_t>(stream) * static_cast<std::size_t>(streams_) +
               static_cast<std::size_t>(stream)];
}

EventStamp DeviceClock::record(int stream) {
  EventStamp event;
  event.stream = stream;
  event.time = tails_[static_cast<std::size_t>(stream)];
  if (tape_ != nullptr) event.snapshot = tape_->record(stream);
  if (mode_ == ClockMode::Lazy) {
    event.snapshot = static_cast<std::int32_t>(snapshots_.size() / static_cast<std::size_t>(streams_));
    const auto row = seen_.begin() + static_cast<std::ptrdiff_t>(stream) * streams_;
    snapshots_.insert(snapshots_.end(), row, row + streams_);
  }
  return event;
}

void DeviceClock::stream_wait(int stream, const EventStamp& event) {
  if (event.stream < 0) return;  // as CUDA: an event that was never recorded is no wait
  if (tape_ != nullptr && event.snapshot >= 0) tape_->stream_wait(stream, event.snapshot);
  SimTime& tail = tails_[static_cast<std::size_t>(stream)];
  tail = std::max(tail, event.time);
  if (mode_ != ClockMode::Lazy) return;
  const std::size_t n = static_cast<std::size_t>(streams_);
  std::uint32_t* row = &seen_[static_cast<std::size_t>(stream) * n];
  const std::uint32_t* other = &snapshots_[static_cast<std::size_t>(event.snapshot) * n];
  for (std::size_t i = 0; i < n; ++i) row[i] = std::max(row[i], other[i]);
}

bool DeviceClock::finished(const EventStamp& event) const {
  if (event.stream < 0 || mode_ == ClockMode::Instant) return true;
  if (mode_ == ClockMode::Model) return event.time <= host_;
  const std::size_t n = static_cast<std::size_t>(streams_);
  const auto stream = static_cast<std::size_t>(event.stream);
  return snapshots_[static_cast<std::size_t>(event.snapshot) * n + stream] <= done_[stream];
}

void DeviceClock::reach(SimTime time, const std::uint32_t* seen) {
  host_ = std::max(host_, time);
  if (mode_ != ClockMode::Lazy) return;
  for (std::size_t i = 0; i < done_.size(); ++i) done_[i] = std::max(done_[i], seen[i]);
}

SimDuration DeviceClock::host_wait(const EventStamp& event) {
  if (event.stream < 0) return 0;
  if (tape_ != nullptr && event.snapshot >= 0) tape_->host_wait(event.snapshot);
  const SimTime before = host_;
  reach(event.time, mode_ == ClockMode::Lazy
                        ? &snapshots_[static_cast<std::size_t>(event.snapshot) * static_cast<std::size_t>(streams_)]
                        : nullptr);
  return host_ - before;
}

SimDuration DeviceClock::stream_synchronize(int stream) {
  if (tape_ != nullptr) tape_->stream_synchronize(stream);
  const SimTime before = host_;
  const auto s = static_cast<std::size_t>(stream);
  reach(tails_[s], mode_ == ClockMode::Lazy ? &seen_[s * static_cast<std::size_t>(streams_)] : nullptr);
  return host_ - before;
}

SimDuration DeviceClock::device_synchronize() {
  const SimTime before = host_;
  for (int s = 0; s < streams_; ++s) stream_synchronize(s);
  return host_ - before;
}

}  // namespace foreshard
