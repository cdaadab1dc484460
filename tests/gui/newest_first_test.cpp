#include "gui/models/timeline/newest_first.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

namespace foreshard::gui {
namespace {

using std::chrono_literals::operator""s;
using std::chrono_literals::operator""ms;

TEST(NewestFirst, DropsWhatANewerRequestReplacesAndDoesTheNewest) {
  std::mutex gate;
  std::vector<int> done;
  NewestFirst worker;
  gate.lock();
  std::atomic<bool> began = false;
  worker.ask([&] {
    began = true;
    const std::lock_guard wait(gate);
    done.push_back(0);
  });
  while (!began) std::this_thread::yield();
  for (int k = 1; k <= 5; ++k) worker.ask([&, k] { done.push_back(k); });
  EXPECT_FALSE(worker.idle_within(1ms));
  gate.unlock();
  ASSERT_TRUE(worker.idle_within(10s));
  EXPECT_EQ(done, (std::vector<int>{0, 5}));
}

TEST(NewestFirst, EndsWithWorkStillAskedFor) {
  std::atomic<int> done = 0;
  {
    NewestFirst worker;
    for (int k = 0; k < 100; ++k) worker.ask([&] { ++done; });
  }
  EXPECT_LE(done.load(), 100);
}

}  // namespace
}  // namespace foreshard::gui
