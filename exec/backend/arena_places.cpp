#include "exec/backend/arena_places.h"

namespace foreshard::exec {

std::shared_ptr<const ArenaPlaces> arena_places(const Plan& plan, const Job& job) {
  if (!has_arena(plan, job.schedule)) return nullptr;
  const Arena arena = lay_out_arena(plan);
  auto places = std::make_shared<ArenaPlaces>();
  for (const std::vector<Bytes>& iteration : arena.offsets)
    places->offsets.insert(places->offsets.end(), iteration.begin(), iteration.end());
  for (std::size_t s = 0; s < kStreamCount; ++s) {
    if (arena.bytes[s] > 0) places->blocks.emplace(stream_name(static_cast<Stream>(s)), arena.bytes[s]);
  }
  return places;
}

}  // namespace foreshard::exec
