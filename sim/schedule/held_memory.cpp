#include "sim/schedule/held_memory.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "sim/device/memory_book.h"

namespace foreshard {
namespace {

/// By segment of the plan, the block whose operators it has; none: it has no block's, several: kSeveral.
constexpr int kNone = -1, kSeveral = -2;
std::vector<int> blocks_of_segments(const Plan& plan, const Model& model, const UnitFrame& frame) {
  std::vector<int> of_module(model.modules.size(), kNone);
  for (std::size_t b = 0; b < frame.blocks.size(); ++b) {
    for (std::size_t m = 0; m < of_module.size(); ++m) {
      const std::vector<std::string>& own = frame.blocks[b].modules;
      const bool inside = std::any_of(own.begin(), own.end(),
                                      [&](const std::string& name) { return is_within(model.modules[m].fqn, name); });
      if (inside) of_module[m] = static_cast<int>(b);
    }
  }
  std::vector<int> of_segment;
  for (const Segment& segment : plan.segments) {
    int& block = of_segment.emplace_back(kNone);
    for (std::int32_t k = segment.op_begin; k < segment.op_end; ++k) {
      const int own = of_module[model.ops[static_cast<std::size_t>(k)].module.index()];
      if (own != kNone) block = block == kNone || block == own ? own : kSeveral;
    }
  }
  return of_segment;
}

/// By instruction of the iteration, which forwards it ends: from a micro-batch's last Forward until its backward comes
/// to a block or gives something back. Whatever is kept for backward is alive then. -1: none.
std::vector<int> ends_of_forwards(const Plan& plan, const std::vector<int>& block_of) {
  const std::vector<Instruction>& instructions = plan.iterations.back().instructions;
  std::vector<int> ends(instructions.size(), -1);
  int batch = 0;
  std::optional<std::size_t> last;
  bool backward = false;
  for (std::size_t k = 0; k < ends.size(); ++k) {
    const Instruction& i = instructions[k];
    const bool runs_back = i.kind == InstructionKind::Backward || i.kind == InstructionKind::Recompute;
    if (i.kind == InstructionKind::Forward) last = k, backward = false;
    if (!last) continue;
    const bool comes_to_a_block = runs_back && i.segment.valid() && block_of[i.segment.index()] != kNone;
    backward = backward || runs_back;
    if (!comes_to_a_block && !(backward && i.phase == Phase::PostBackward)) continue;
    std::fill(ends.begin() + static_cast<std::ptrdiff_t>(*last), ends.begin() + static_cast<std::ptrdiff_t>(k), batch);
    last.reset();
    ++batch;
  }
  return ends;
}

/// Where backward stands, by instruction of the last iteration.
struct Backwards {
  std::vector<int> block, batch;  // by instruction: the block that runs backward, in which micro-batch
  std::vector<int> order;         // blocks in the order of the last micro-batch
  std::map<int, int> reached;     // by block: the last place of UnitFrame::backward_at that has begun
};

Backwards backwards_of(const Plan& plan, const UnitFrame& frame, const std::vector<int>& block_of) {
  Backwards all;
  int batch = 0, reached = -1;
  bool backward = false;
  for (const Instruction& i : plan.iterations.back().instructions) {
    const bool runs_back = i.kind == InstructionKind::Backward || i.kind == InstructionKind::Recompute;
    if (i.kind == InstructionKind::Forward && backward) {
      ++batch;
      all.order.clear();
      reached = -1;
    }
    if (i.kind == InstructionKind::Forward || runs_back) backward = runs_back;
    if (i.kind == InstructionKind::Mark && i.unit.valid() && plan.name_of(i.name) == "begin pre_backward")
      reached = std::max(reached, frame.backward_at[i.unit.index()]);
    const int block = runs_back && i.segment.valid() ? block_of[i.segment.index()] : kNone;
    if (block >= 0 && std::find(all.order.begin(), all.order.end(), block) == all.order.end())
      all.order.push_back(block);
    if (block >= 0) {
      const auto [at, fresh] = all.reached.emplace(block, reached);
      if (!fresh) at->second = std::max(at->second, reached);
    }
    all.block.push_back(i.kind == InstructionKind::Backward && i.unit.valid() ? block : kNone);
    all.batch.push_back(batch);
  }
  return all;
}

/// What is allocated now, and of it the gathered parameters by unit.
class Held {
 public:
  void note(const MemoryLog& log, const MemoryLog::Event& event) {
    if (event.action == MemoryAction::FreeRequested) {
      now_ -= event.bytes;
      if (const auto at = full_.find(event.address); at != full_.end()) {
        of_unit_[at->second] -= event.bytes;
        all_full_ -= event.bytes;
        full_.erase(at);
      }
    }
    if (event.action != MemoryAction::Alloc) return;
    now_ += event.bytes;
    if (event.origin < 0) return;
    const MemoryOrigin& origin = log.origins[static_cast<std::size_t>(event.origin)];
    if (origin.category != memory_category_name(MemoryCategory::FullParams)) return;
    full_[event.address] = origin.unit;
    of_unit_[origin.unit] += event.bytes;
    all_full_ += event.bytes;
  }
  Bytes now() const { return now_; }
  Bytes beside_others(const std::string& unit) const {
    const auto own = of_unit_.find(unit);
    return now_ - all_full_ + (own == of_unit_.end() ? 0 : own->second);
  }

 private:
  Bytes now_ = 0, all_full_ = 0;
  std::unordered_map<Bytes, std::string> full_;  // by address: the unit
  std::unordered_map<std::string, Bytes> of_unit_;
};

/// `take(instruction of the last iteration, held)` at everything that is allocated in it.
template <class Take>
void each_allocation(const MemoryLog& log, std::int32_t begin, const Take& take) {
  Held held;
  for (const MemoryLog::Event& event : log.events) {
    held.note(log, event);
    if (event.action != MemoryAction::Alloc || event.origin < 0) continue;
    const std::int32_t at = log.origins[static_cast<std::size_t>(event.origin)].instruction - begin;
    if (at >= 0) take(static_cast<std::size_t>(at), held);
  }
}

}  // namespace

Bytes held_at_loss(const MemoryLog& log, const Plan& plan, const Model& model, const UnitFrame& frame,
                   std::int32_t begin) {
  const std::vector<int> ends = ends_of_forwards(plan, blocks_of_segments(plan, model, frame));
  std::map<int, Bytes> most;
  each_allocation(log, begin, [&](std::size_t at, const Held& held) {
    if (at < ends.size() && ends[at] >= 0) most[ends[at]] = std::max(most[ends[at]], held.now());
  });
  Bytes least = most.empty() ? 0 : most.begin()->second;
  for (const auto& [batch, bytes] : most) least = std::min(least, bytes);
  return least;
}

std::vector<BackwardMoment> held_in_backward(const MemoryLog& log, const Plan& plan, const Model& model,
                                             const UnitFrame& frame, std::int32_t begin) {
  const Backwards all = backwards_of(plan, frame, blocks_of_segments(plan, model, frame));
  const std::vector<Instruction>& instructions = plan.iterations.back().instructions;
  std::map<int, std::map<int, Bytes>> most;  // by block, by micro-batch
  each_allocation(log, begin, [&](std::size_t at, const Held& held) {
    if (at >= all.block.size() || all.block[at] < 0) return;
    Bytes& bytes = most[all.block[at]][all.batch[at]];
    bytes = std::max(bytes, held.beside_others(plan.units[instructions[at].unit.index()].name));
  });
  std::vector<BackwardMoment> moments;
  for (std::size_t place = 0; place < all.order.size(); ++place) {
    const auto found = most.find(all.order[place]);
    if (found == most.end()) continue;
    BackwardMoment& moment = moments.emplace_back();
    moment.block = found->first;
    moment.held = found->second.begin()->second;
    for (const auto& [batch, bytes] : found->second) moment.held = std::min(moment.held, bytes);
    moment.later_blocks.resize(frame.blocks.size());
    for (std::size_t k = place + 1; k < all.order.size(); ++k)
      moment.later_blocks[static_cast<std::size_t>(all.order[k])] = true;
    const int reached = all.reached.at(moment.block);
    for (const int backward : frame.backward_at) moment.later_units.push_back(backward > reached);
  }
  return moments;
}

}  // namespace foreshard
