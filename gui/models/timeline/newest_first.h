// One thread that does what it was asked for last: work that has not begun is replaced by newer work, so that a window
// that asks at every turn of the wheel is never behind by more than one answer.
//
// ask() and idle_within() may be called from any thread; the work runs on a thread of its own.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace foreshard::gui {

class NewestFirst {
 public:
  NewestFirst();
  /// Waits for the work that runs; drops what has not begun.
  ~NewestFirst();
  NewestFirst(const NewestFirst&) = delete;
  NewestFirst& operator=(const NewestFirst&) = delete;

  /// REQUIRES work that does not throw.
  void ask(std::function<void()> work);
  /// True once nothing runs and nothing waits; false if that takes longer than `most`.
  bool idle_within(std::chrono::milliseconds most);

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable asked_, done_;
  std::function<void()> next_;
  bool running_ = false, ending_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace foreshard::gui
