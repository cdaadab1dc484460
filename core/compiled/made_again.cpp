#include "core/compiled/made_again.h"

#include <algorithm>
#include <limits>
#include <set>

#include "core/lowering/lowering_machine.h"
#include "core/lowering/segment_autograd.h"
#include "core/lowering/table/rule_finder.h"
#include "core/plan/graph/gradient_paths.h"

namespace foreshard {
namespace {

constexpr Bytes kSmallReduction = 4;  // config.ban_recompute_reductions: so many times less than it reads
constexpr int kFar = 12;              // operators behind a result that are looked at for what could be saved instead

constexpr Bytes kNever = std::numeric_limits<Bytes>::max() / 4;

constexpr std::size_t kNoMemory = static_cast<std::size_t>(-1);

/// Of the list whose results backward finds.
std::set<std::int32_t> saved_slots(const KernelList& made, const KernelList& backward) {
  std::set<std::int32_t> freed, saved;
  for (const MemoryEvent& event : backward.events)
    if (!event.alloc && !event.noted) freed.insert(event.slot);
  for (const MemoryEvent& event : made.events)
    if (event.alloc && freed.count(event.slot) > 0) saved.insert(event.slot);
  for (const MemoryEvent& event : made.events)
    if (!event.alloc && !event.noted) saved.erase(event.slot);
  return saved;
}

/// A loss is pointwise and sums to the compiler.
bool is_product(const Kernel& kernel) { return !is_fusible(kernel) && kernel.kind != KernelClass::Loss; }

bool runs_once(const Kernel& kernel) {
  const bool small = kernel.kind == KernelClass::Reduction && kernel.written * kSmallReduction < kernel.read;
  return is_product(kernel) || small;
}

}  // namespace

bool is_fusible(const Kernel& kernel) {
  if (kernel.collective != KernelCollective::None) return false;
  return kernel.kind == KernelClass::Elementwise || kernel.kind == KernelClass::Reduction ||
         kernel.kind == KernelClass::Copy || kernel.launches == 0;
}

/// Memory that a segment makes or is given.
struct MadeAgain::Memory {
  std::vector<std::size_t> sources;   // memories that it is made of
  std::vector<std::size_t> twins;     // further results of its operator, whose slots stand here
  std::vector<std::int32_t> slots;    // that backward finds
  std::vector<std::int32_t> dropped;  // others that its operators made; of what came in, the import
  Bytes bytes = 0;                    // that these would take
  std::int32_t made = -1, last = -1;  // operators that made it, and wrote it last; -1: came in
  bool once = false;                  // one of them is never run twice
  bool materialized = false;          // a product of backward reads it
  bool kept = false;                  // autograd keeps it for an operator of the segment
  bool there = false;                 // in backward: saved, or made of what is
};

/// What one operator does.
struct MadeAgain::Made {
  std::vector<std::int32_t> saved, dropped;  // slots that it makes: backward finds them, or not
  bool once = false;                         // it is never run twice
  bool product = false;                      // what its backward reads has to lie in memory
};

/// One segment's memories, by number; those that nothing of it touches are not there.
struct MadeAgain::Walk {
  std::vector<std::size_t> numbers;  // as they were met
  std::vector<std::int32_t> place;   // by memory: in `memories`
  std::vector<Memory> memories;

  Memory& at(std::size_t number) {
    std::int32_t& where = place[number];
    if (where < 0) {
      where = static_cast<std::int32_t>(memories.size());
      memories.emplace_back();
      numbers.push_back(number);
    }
    return memories[static_cast<std::size_t>(where)];
  }
  const Memory* find(std::size_t number) const {
    return place[number] < 0 ? nullptr : &memories[static_cast<std::size_t>(place[number])];
  }
};

MadeAgain::MadeAgain(const Model& model, const std::vector<bool>& trainable) : model_(model) {
  const std::vector<const OpRule*> rules = rules_of(model.ops);
  const SharedMemory shared(model, rules, References(model.ops));
  for (std::size_t v = 0; v < model.values.size(); ++v) memory_.push_back(shared.of(ValueId(v)));
  given_.assign(model.values.size(), false);
  bytes_.assign(model.values.size(), 0);
  for (std::size_t v = 0; v < model.values.size(); ++v) {
    const ValueInfo& value = model.values[v];
    bytes_[memory_[v]] = std::max(bytes_[memory_[v]], numel_of(value.shape) * itemsize(value.dtype));
  }
  for (const ValueId id : model.inputs) given_[memory_[id.index()]] = true;
  const std::vector<std::vector<std::uint8_t>> kept = kept_arguments(model, trainable);
  for (std::size_t i = 0; i < model.ops.size(); ++i) {
    std::vector<std::size_t>& reads = reads_.emplace_back();
    lowering::for_each_arg(model.ops[i], [&](const Arg& arg) {
      if (const auto* value = std::get_if<ValueRef>(&arg.value))
        reads.push_back(memory_[value->id.index()]);
      else if (std::holds_alternative<ParamRef>(arg.value) || std::holds_alternative<BufferRef>(arg.value))
        reads.push_back(kNoMemory);
    });
    kept_.emplace_back();
    for (const std::uint8_t place : kept[i])
      if (place < reads.size() && reads[place] != kNoMemory) kept_.back().push_back(reads[place]);
    const bool random = rules[i] != nullptr && rules[i]->formula == OpFormula::Dropout;
    once_.push_back(rules[i] == nullptr || random);
  }
}

MadeAgain::Cut MadeAgain::cut(const SegmentRange& range, const SegmentTemplate& segment) const {
  const KernelList& list = segment.recompute.kernels.empty() ? segment.forward : segment.recompute;
  const std::set<std::int32_t> saved = saved_slots(list, segment.backward);
  const auto begin = static_cast<std::size_t>(range.op_begin), count = static_cast<std::size_t>(range.op_end) - begin;
  std::vector<Made> made(count);
  for (std::size_t i = 0; i < count; ++i) made[i].once = made[i].product = once_[begin + i];
  const auto is_own = [count](const Kernel& kernel) {
    return kernel.model_op >= 0 && static_cast<std::size_t>(kernel.model_op) < count;
  };
  for (const Kernel& kernel : segment.forward.kernels) {  // a recomputation may leave out what it ends before
    if (!is_own(kernel)) continue;
    Made& own = made[static_cast<std::size_t>(kernel.model_op)];
    own.once = own.once || runs_once(kernel);
    own.product = own.product || is_product(kernel);
  }
  for (const Kernel& kernel : list.kernels) {
    for (std::int32_t e = kernel.before_begin; is_own(kernel) && e < kernel.before_end; ++e) {
      const MemoryEvent& event = list.events[static_cast<std::size_t>(e)];
      if (!event.alloc) continue;
      Made& own = made[static_cast<std::size_t>(kernel.model_op)];
      (saved.count(event.slot) > 0 ? own.saved : own.dropped).push_back(event.slot);
    }
  }
  Walk walk;
  walk.place.assign(memory_.size(), -1);
  for (std::size_t i = 0; i < count; ++i) read(walk, i, begin + i, made[i]);
  note_imports(walk, list, begin, count);
  return decide(walk, segment.slots);
}

/// What the operator reads, keeps and makes.
void MadeAgain::read(Walk& walk, std::size_t at, std::size_t op, const Made& made) const {
  for (const std::size_t number : kept_[op]) {
    Memory& memory = walk.at(number);
    memory.kept = true;
    memory.materialized = memory.materialized || made.product;
  }
  const std::vector<std::size_t>& reads = reads_[op];
  std::size_t first = kNoMemory;
  for (const ValueId out : model_.ops[op].out) {
    if (!out.valid()) continue;
    const std::size_t number = memory_[out.index()];
    const bool is_view = std::find(reads.begin(), reads.end(), number) != reads.end();
    Memory& memory = walk.at(number);
    if (!is_view) memory.made = static_cast<std::int32_t>(at);
    if (is_view && made.saved.empty() && !made.once && reads.size() == 1) continue;  // nothing is written
    memory.last = static_cast<std::int32_t>(at);
    memory.once = memory.once || made.once;
    for (const std::size_t source : reads)
      if (source != number && source != kNoMemory) memory.sources.push_back(source);
    if (first == kNoMemory) {
      first = number;
      memory.slots.insert(memory.slots.end(), made.saved.begin(), made.saved.end());
      memory.dropped.insert(memory.dropped.end(), made.dropped.begin(), made.dropped.end());
      memory.bytes = bytes_[number];
    } else if (number != first) {
      walk.at(first).twins.push_back(number);
    }
  }
}

/// What came in and is let go of behind the last operator that reads it could be saved as well.
void MadeAgain::note_imports(Walk& walk, const KernelList& list, std::size_t begin, std::size_t count) const {
  for (const Kernel& kernel : list.kernels) {
    if (kernel.model_op < 0 || static_cast<std::size_t>(kernel.model_op) >= count) continue;
    std::vector<std::int32_t> freed;
    for (std::int32_t e = kernel.after_begin; e < kernel.after_end; ++e) {
      const MemoryEvent& event = list.events[static_cast<std::size_t>(e)];
      if (!event.alloc && !event.noted && event.slot < 0) freed.push_back(event.slot);
    }
    std::vector<std::size_t> came_in;
    for (const std::size_t number : reads_[begin + static_cast<std::size_t>(kernel.model_op)]) {
      if (number == kNoMemory || given_[number] || walk.at(number).made >= 0) continue;
      if (std::find(came_in.begin(), came_in.end(), number) == came_in.end()) came_in.push_back(number);
    }
    if (freed.size() != 1 || came_in.size() != 1) continue;  // which is which, nobody says
    Memory& memory = walk.at(came_in.front());
    memory.dropped = freed;
    memory.bytes = bytes_[came_in.front()];
  }
}

/// The least that has to be saved to have the memory in backward, whose sum it returns; kNever: it cannot be had.
Bytes MadeAgain::price(Walk& walk, std::size_t number, int far, std::vector<Memory*>& saved) const {
  if (is_there(walk, number)) return 0;
  if (walk.find(number) == nullptr) return kNever;
  Memory& memory = walk.at(number);
  const Bytes whole = memory.dropped.size() == 1 ? memory.bytes : kNever;
  Bytes parts = memory.once || memory.made < 0 || far == 0 ? kNever : 0;
  std::vector<Memory*> of_parts;
  for (const std::size_t source : memory.sources) {
    if (parts >= whole) break;
    parts = std::min(kNever, parts + price(walk, source, far - 1, of_parts));
  }
  if (parts < whole) {
    saved.insert(saved.end(), of_parts.begin(), of_parts.end());
    return parts;
  }
  if (whole < kNever) saved.push_back(&memory);
  return whole;
}

bool MadeAgain::is_there(const Walk& walk, std::size_t number) const {
  const Memory* const found = walk.find(number);
  return found != nullptr ? found->there : given_[number];
}

/// Whether what it is made of can be saved for less than the memory itself; notes what.
bool MadeAgain::save_instead(Walk& walk, const Memory& memory, const std::vector<Slot>& slots, Cut& cut) const {
  std::vector<Memory*> saved;
  Bytes needed = 0, own = 0;
  for (const std::size_t source : memory.sources) needed = std::min(kNever, needed + price(walk, source, kFar, saved));
  for (const std::int32_t slot : memory.slots) own += slots[static_cast<std::size_t>(slot)].bytes;
  if (needed >= own) return false;
  for (Memory* const instead : saved) {
    if (!instead->there) cut.instead.emplace_back(instead->dropped.front(), memory.slots.front());
    instead->there = true;
  }
  return true;
}

MadeAgain::Cut MadeAgain::decide(Walk& walk, const std::vector<Slot>& slots) const {
  std::vector<std::size_t> order;  // by what wrote it last: what it is made of stands before it
  for (std::size_t m = 0; m < walk.memories.size(); ++m) {
    Memory& memory = walk.memories[m];
    if (memory.made < 0) memory.there = memory.kept || given_[walk.numbers[m]];
    if (memory.last >= 0) order.push_back(m);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return walk.memories[a].last < walk.memories[b].last; });
  Cut cut;
  for (const std::size_t m : order) {
    Memory& memory = walk.memories[m];
    const bool wanted = memory.materialized || std::any_of(memory.twins.begin(), memory.twins.end(),
                                                           [&](std::size_t t) { return walk.find(t)->materialized; });
    bool possible = !memory.once && std::all_of(memory.sources.begin(), memory.sources.end(),
                                                [&](std::size_t source) { return is_there(walk, source); });
    const bool saved = !memory.slots.empty() && memory.made >= 0;
    if (saved && !possible && !wanted && !memory.once) possible = save_instead(walk, memory, slots, cut);
    memory.there = memory.there || possible || !memory.slots.empty();
    if (saved && possible && !wanted) cut.again.insert(cut.again.end(), memory.slots.begin(), memory.slots.end());
  }
  std::sort(cut.again.begin(), cut.again.end());
  cut.again.erase(std::unique(cut.again.begin(), cut.again.end()), cut.again.end());
  return cut;
}

}  // namespace foreshard
