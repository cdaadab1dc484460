#include "tests/sim/laws/asked_memory.h"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <vector>

namespace foreshard::testing {
namespace {

struct Asked {
  Bytes rounded = 0, rest = 0;
  bool kept = true;
};

}  // namespace

Bytes largest_rest(Bytes rounded, const AllocatorSettings& settings) {
  if (settings.exact || settings.expandable_segments || rounded <= kMiB) return 0;
  return rounded < settings.max_split_size ? kMiB : settings.max_non_split_rounding;
}

AskedMemory asked_memory(const MemoryLog& log, const AllocatorSettings& settings) {
  std::vector<bool> kept;
  for (const MemoryOrigin& origin : log.origins) {
    kept.push_back(origin.category != "temporaries" && origin.category != "workspace");
  }
  AskedMemory answer;
  Bytes now = 0, rests = 0, kept_now = 0;
  std::unordered_map<Bytes, Asked> live;  // by address
  const auto count = [&](const Asked& block, int sign) {
    now += sign * block.rounded;
    rests += sign * block.rest;
    kept_now += block.kept ? sign * block.rounded : 0;
  };
  for (const MemoryLog::Event& event : log.events) {
    if (event.action == MemoryAction::Alloc) {
      const Bytes rounded = round_request(event.bytes, settings);
      const bool is_kept = event.origin < 0 || kept[static_cast<std::size_t>(event.origin)];
      const Asked& block = live[event.address] = {rounded, largest_rest(rounded, settings), is_kept};
      count(block, 1);
      answer.peak = std::max(answer.peak, now);
      answer.most = std::max(answer.most, now + rests);
      answer.kept_peak = std::max(answer.kept_peak, kept_now);
    } else if (event.action == MemoryAction::FreeRequested) {
      const auto found = live.find(event.address);
      if (found == live.end()) continue;
      count(found->second, -1);
      live.erase(found);
    }
  }
  return answer;
}

}  // namespace foreshard::testing
