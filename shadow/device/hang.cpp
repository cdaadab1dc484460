// What never ends until an abort: collectives that a peer does not join, calls that connect such peers, and who waits
// for either. All with lock() held once; it is given up while somebody stands.
#include <condition_variable>
#include <map>

#include "shadow/device/fakegpu.h"

namespace fakegpu {
namespace {

struct Hang {
  std::condition_variable_any changed;
  std::map<int, uint64_t> operations;  // by stream: the first that does not end
  int ended = 0;                       // times
};

Hang& hang() {
  static Hang* h = new Hang;
  return *h;
}

}  // namespace

void hang_at(const Stream* s) { hang().operations.emplace(s->id, s->seen[s->id]); }

void end_hang() {
  hang().operations.clear();
  hang().ended++;
  hang().changed.notify_all();
}

bool hung(const std::vector<uint64_t>& seen) {
  for (const auto& [stream, operation] : hang().operations) {
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
