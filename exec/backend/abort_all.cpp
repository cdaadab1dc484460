#include "exec/backend/abort_all.h"

#include <pthread.h>

#include <exception>
#include <thread>

namespace foreshard::exec {
namespace {

/// What goes wrong here must not hide why it is done.
void abort_one(Communicator& communicator, std::string_view why) noexcept {
  try {
    communicator.abort(why);
  } catch (...) {
  }
}

}  // namespace

void abort_all(const std::vector<std::shared_ptr<Communicator>>& communicators, std::string_view why) noexcept {
  std::vector<std::jthread> others;  // joined as they go
  for (std::size_t i = 1; i < communicators.size(); ++i) {
    Communicator& other = *communicators[i];
    try {
      others.emplace_back([&other, why] {
        pthread_setname_np(pthread_self(), "watchdog_abort");
        abort_one(other, why);
      });
    } catch (const std::exception&) {  // no thread to be had
      abort_one(other, why);
    }
  }
  if (!communicators.empty()) abort_one(*communicators.front(), why);
}

}  // namespace foreshard::exec
