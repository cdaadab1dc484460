#include "exec/backend/failure_board.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "exec/backend/abort_all.h"

namespace foreshard::exec {

void FailureBoard::report(Failure failure) {
  std::vector<std::shared_ptr<Communicator>> to_abort;
  {
    std::lock_guard lock(mutex_);
    if (failed()) return;
    first_ = std::move(failure);
    failed_.store(true, std::memory_order_release);
    to_abort = communicators_;
  }
  const std::string why =
      fmt::format("rank {} failed in instruction {}: {}", rank_, first_.instruction.value, first_.text);
  abort_all(to_abort, why);
}

void FailureBoard::tell(const std::shared_ptr<Communicator>& communicator) {
  std::lock_guard lock(mutex_);
  if (std::find(communicators_.begin(), communicators_.end(), communicator) == communicators_.end()) {
    communicators_.push_back(communicator);
  }
}

Outcome<void> FailureBoard::outcome() const {
  if (failed()) return tl::unexpected<Failure>(first_);
  return {};
}

}  // namespace foreshard::exec
