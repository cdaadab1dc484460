#include "shadow/device/collective_time.h"

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>

namespace fakegpu {
namespace {

using Times = std::map<double, double>;                                      // bytes -> nanoseconds
using Table = std::map<std::string, std::map<int, Times>, std::less<void>>;  // call -> ranks -> times

Table read_table() {
  Table table;
  const char* path = getenv("FAKEGPU_COLLECTIVES");
  std::FILE* file = path && *path ? fopen(path, "r") : nullptr;
  if (!file) return table;
  char api[64];
  int ranks = 0;
  double bytes = 0, ns = 0;
  while (fscanf(file, "%63s %d %lf %lf", api, &ranks, &bytes, &ns) == 4) table[api][ranks][bytes] = ns;
  fclose(file);
  return table;
}

double between(const Times& times, double bytes) {
  const auto above = times.lower_bound(bytes);
  if (above == times.begin()) return above->second;
  if (above == times.end()) return times.rbegin()->second * bytes / times.rbegin()->first;
  const auto below = std::prev(above);
  return below->second + (above->second - below->second) * (bytes - below->first) / (above->first - below->first);
}

}  // namespace

double collective_us(const char* api, int ranks, std::size_t bytes) {
  static const Table* table = new Table(read_table());
  const auto call = table->find(api);
  if (call == table->end() || ranks < 2) return -1;
  auto group = call->second.lower_bound(ranks);
  if (group == call->second.end()) group = std::prev(group);
  return between(group->second, (double)bytes) / 1000;
}

}  // namespace fakegpu
