// What never ends until its communicator's abort: collectives that a peer does not join; what any abort ends: calls
// that connect such peers; and who waits for either. All with lock() held once; it is given up while somebody stands.
#include <condition_variable>
#include <map>
#include <utility>

#include "shadow/device/fakegpu.h"

namespace fakegpu {
namespace {

struct Hang {
  std::condition_variable_any changed;
  std::map<std::pair<int, int>, uint64_t> operations;  // by stream and communicator: the first that does not end
  int ended = 0;                                       // times
};

Hang& hang() {
  static Hang* h = new Hang;
  return *h;
}

}  // namespace

void hang_at(const Stream* s, int communicator) {
  hang().operations.emplace(std::pair(s->id, communicator), s->seen[s->id]);
}

void end_hang(int communicator) {
  std::erase_if(hang().operations, [&](const auto& entry) { return entry.first.second == communicator; });
  hang().ended++;
  hang().changed.notify_all();
}

bool hung(const std::vector<uint64_t>& seen) {
  for (const auto& [where, operation] : hang().operations) {
    const int stream = where.first;
    if ((size_t)stream < seen.size() && seen[stream] >= operation) return true;
  }
  return false;
}

void wait_while_hung(const std::vector<uint64_t>& seen) {
  hang().changed.wait(lock(), [seen] { return !hung(seen); });
}

void stall_host() {
  const int before = hang().ended;
  hang().changed.wait(lock(), [before] { return hang().ended != before; });
}

}  // namespace fakegpu
