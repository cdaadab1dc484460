#include "gui/models/timeline/newest_first.h"

#include <utility>

namespace foreshard::gui {

NewestFirst::NewestFirst() : thread_([this] { run(); }) {}

NewestFirst::~NewestFirst() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    next_ = nullptr;
  }
  asked_.notify_one();
  thread_.join();
}

void NewestFirst::ask(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    next_ = std::move(work);
  }
  asked_.notify_one();
}

bool NewestFirst::idle_within(std::chrono::milliseconds most) {
  std::unique_lock lock(mutex_);
  return done_.wait_for(lock, most, [this] { return !running_ && !next_; });
}

void NewestFirst::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    asked_.wait(lock, [this] { return ending_ || next_; });
    if (ending_) return;
    {
      const std::function<void()> work = std::exchange(next_, nullptr);
      running_ = true;
      lock.unlock();
      work();
    }  // what the work holds is let go of without the lock
    lock.lock();
    running_ = false;
    done_.notify_all();
  }
}

}  // namespace foreshard::gui
