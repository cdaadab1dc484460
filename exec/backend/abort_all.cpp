#include "exec/backend/abort_all.h"

#include <pthread.h>

#include <thread>

namespace foreshard::exec {

void abort_all(const std::vector<std::shared_ptr<Communicator>>& communicators, std::string_view why) {
  std::vector<std::thread> others;
  for (std::size_t i = 1; i < communicators.size(); ++i) {
    others.emplace_back([&, i] {
      pthread_setname_np(pthread_self(), "watchdog_abort");
      communicators[i]->abort(why);
    });
  }
  if (!communicators.empty()) communicators.front()->abort(why);
  for (std::thread& other : others) other.join();
}

}  // namespace foreshard::exec
