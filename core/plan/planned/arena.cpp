#include "core/plan/planned/arena.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <span>
#include <tuple>
#include <utility>

#include "core/result.h"

namespace foreshard {
namespace {

bool allocates(const Instruction& i) {
  return i.bytes > 0 && (i.kind == InstructionKind::Alloc || i.kind == InstructionKind::Resize);
}
bool frees(const Instruction& i) {
  return i.kind == InstructionKind::Free || (i.kind == InstructionKind::Resize && i.bytes == 0);
}

/// Of a parameter there is one buffer of a kind, whichever unit is named with it.
using BufferKey = std::tuple<BufferWhat, UnitId, ParamId, std::int32_t>;
BufferKey key_of(const Instruction& i) {
  return {i.buffer.what, i.buffer.param.valid() ? UnitId() : i.buffer.unit, i.buffer.param, i.arg};
}

/// From the instruction that allocates to the one that frees.
struct Life {
  std::size_t begin = 0, end = 0;
  Bytes bytes = 0;  // whole multiples of the alignment
  Bytes offset = 0;
  bool operator==(const Life&) const = default;
};
using Lives = std::array<std::vector<Life>, kStreamCount>;  // by stream, in order of their begins

Bytes aligned(Bytes bytes) { return ceil_div(bytes, Arena::kAlignment) * Arena::kAlignment; }

Lives lives_of(const PlanIteration& iteration) {
  struct Open {
    std::size_t begin = 0;
    bool stays = false;  // with the allocator
  };
  std::map<BufferKey, Open> open;
  std::vector<std::size_t> ends(iteration.instructions.size(), 0);
  for (std::size_t at = 0; at < iteration.instructions.size(); ++at) {
    const Instruction& i = iteration.instructions[at];
    if (allocates(i)) {
      const auto [entry, fresh] = open.emplace(key_of(i), Open{at});
      if (!fresh) entry->second.stays = true;  // two of one name: which of them a free means is not ours to say
      if (i.buffer.what == BufferWhat::PostForwardShard) entry->second.stays = true;  // F2-13: their numbers change
    } else if (i.kind == InstructionKind::NoteUse) {
      if (const auto entry = open.find(key_of(i)); entry != open.end()) entry->second.stays = true;
    } else if (frees(i)) {
      const auto entry = open.find(key_of(i));
      if (entry == open.end()) continue;
      if (!entry->second.stays) ends[entry->second.begin] = at;
      open.erase(entry);
    }
  }
  Lives lives;
  for (std::size_t at = 0; at < ends.size(); ++at) {
    const Instruction& i = iteration.instructions[at];
    if (ends[at] == 0 || i.stream == Stream::Host) continue;
    lives[static_cast<std::size_t>(i.stream)].push_back({at, ends[at], aligned(i.bytes)});
  }
  return lives;
}

Bytes most_at_once(std::span<const Life> lives) {
  std::vector<std::pair<std::size_t, Bytes>> changes;
  for (const Life& life : lives) {
    changes.emplace_back(life.begin, life.bytes);
    changes.emplace_back(life.end, -life.bytes);
  }
  std::sort(changes.begin(), changes.end());
  Bytes now = 0, most = 0;
  for (const auto& [at, change] : changes) most = std::max(most, now += change);
  return most;
}

/// Each to the lowest place that is free for its whole life. Returns how far up that reaches.
Bytes place(std::span<Life> lives, std::span<const std::size_t> order) {
  std::vector<const Life*> placed, beside;
  Bytes top = 0;
  for (const std::size_t k : order) {
    Life& life = lives[k];
    beside.clear();
    for (const Life* other : placed) {
      if (other->begin < life.end && life.begin < other->end) beside.push_back(other);
    }
    std::sort(beside.begin(), beside.end(), [](const Life* a, const Life* b) { return a->offset < b->offset; });
    Bytes offset = 0;
    for (const Life* other : beside) {
      if (other->offset - offset >= life.bytes) break;
      offset = std::max(offset, other->offset + other->bytes);
    }
    life.offset = offset;
    top = std::max(top, offset + life.bytes);
    placed.push_back(&life);
  }
  return top;
}

/// The best of: as they come, the largest first, the longest first, the most bytes times time first.
void choose(std::vector<Life>& lives, Bytes at_once) {
  std::vector<std::size_t> order(lives.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::vector<Life> tried = lives;
  Bytes least = place(lives, order);
  const auto length = [&](std::size_t k) { return lives[k].end - lives[k].begin; };
  const auto area = [&](std::size_t k) { return static_cast<double>(lives[k].bytes) * static_cast<double>(length(k)); };
  const auto try_order = [&](const auto& before) {
    if (least <= at_once) return;
    std::stable_sort(order.begin(), order.end(), before);
    const Bytes top = place(tried, order);
    if (top < least) lives = tried;
    least = std::min(least, top);
  };
  try_order([&](std::size_t a, std::size_t b) { return lives[a].bytes > lives[b].bytes; });
  try_order([&](std::size_t a, std::size_t b) { return length(a) > length(b); });
  try_order([&](std::size_t a, std::size_t b) { return area(a) > area(b); });
}

Bytes top_of(std::span<const Life> lives) {
  Bytes top = 0;
  for (const Life& life : lives) top = std::max(top, life.offset + life.bytes);
  return top;
}

}  // namespace

Arena lay_out_arena(const Plan& plan) {
  Arena arena;
  Lives before, before_placed;
  for (const PlanIteration& iteration : plan.iterations) {
    Lives lives = lives_of(iteration);
    const Lives as_found = lives;
    std::vector<Bytes>& offsets = arena.offsets.emplace_back(iteration.instructions.size(), Arena::kElsewhere);
    for (std::size_t s = 0; s < kStreamCount; ++s) {
      const Bytes at_once = most_at_once(lives[s]);
      if (lives[s] == before[s])
        lives[s] = before_placed[s];  // the steady iteration is the one before again
      else
        choose(lives[s], at_once);
      arena.at_once[s] = std::max(arena.at_once[s], at_once);
      arena.bytes[s] = std::max(arena.bytes[s], top_of(lives[s]));
      for (const Life& life : lives[s]) offsets[life.begin] = life.offset;
    }
    before = as_found;
    before_placed = std::move(lives);
  }
  FORESHARD_CHECK(!arena_clash(plan, arena), "no two buffers of an arena share bytes while both live");
  return arena;
}

std::optional<std::string> arena_clash(const Plan& plan, const Arena& arena) {
  struct Held {
    Bytes end = 0;
    std::size_t by = 0;
  };
  using Places = std::map<Bytes, Held>;  // by offset
  for (std::size_t k = 0; k < plan.iterations.size(); ++k) {
    std::array<Places, kStreamCount> alive;
    std::map<BufferKey, std::pair<std::size_t, Bytes>> place_of;  // stream, offset
    const std::vector<Instruction>& all = plan.iterations[k].instructions;
    const auto words = [&](std::size_t at) {
      return "#" + std::to_string(at) + " of iteration " + std::to_string(k) + " (" +
             buffer_name(plan, all[at].buffer) + ")";
    };
    for (std::size_t at = 0; at < all.size(); ++at) {
      if (frees(all[at])) {
        if (const auto found = place_of.find(key_of(all[at])); found != place_of.end()) {
          alive[found->second.first].erase(found->second.second);
          place_of.erase(found);
        }
        continue;
      }
      const Bytes offset = arena.offset(k, at);
      if (offset == Arena::kElsewhere) continue;
      const auto s = static_cast<std::size_t>(all[at].stream);
      const Bytes end = offset + all[at].bytes;
      if (!allocates(all[at]) || offset < 0 || end > arena.bytes[s]) return words(at) + " lies beyond its block";
      Places& places = alive[s];
      const auto above = places.lower_bound(offset);
      if (above != places.end() && above->first < end) return words(at) + " lies over " + words(above->second.by);
      if (above != places.begin() && std::prev(above)->second.end > offset)
        return words(at) + " lies over " + words(std::prev(above)->second.by);
      places.emplace(offset, Held{end, at});
      place_of.insert_or_assign(key_of(all[at]), std::pair{s, offset});
    }
    for (std::size_t s = 0; s < kStreamCount; ++s) {
      if (!alive[s].empty()) return words(alive[s].begin()->second.by) + " lives on into the next iteration";
    }
  }
  return std::nullopt;
}

}  // namespace foreshard
