#include "sim/device/made_again.h"

#include <algorithm>
#include <set>
#include <unordered_map>

#include "core/plan/graph/references.h"

namespace foreshard {
namespace {

class Cut {
 public:
  Cut(const Model& model, const SegmentRange& range, const KernelList& made, const KernelList& backward)
      : model_(model), begin_(static_cast<std::size_t>(range.op_begin)) {
    ops_.resize(static_cast<std::size_t>(range.op_end - range.op_begin));
    read_operators();
    const std::set<std::int32_t> saved = saved_slots(made, backward);
    for (const Kernel& kernel : made.kernels) {
      if (kernel.model_op < 0 || static_cast<std::size_t>(kernel.model_op) >= ops_.size()) continue;
      Operator& op = ops_[static_cast<std::size_t>(kernel.model_op)];
      op.runs = true;
      op.product = op.product || !is_fusible(kernel);
      for (std::int32_t e = kernel.before_begin; e < kernel.before_end; ++e) {
        const MemoryEvent& event = made.events[static_cast<std::size_t>(e)];
        if (event.alloc && saved.count(event.slot) > 0) op.saved.push_back(event.slot);
      }
    }
  }

  std::vector<std::int32_t> slots() {
    std::vector<std::int32_t> again;
    for (std::size_t i = 0; i < ops_.size(); ++i) {
      Operator& op = ops_[i];
      const bool made_of =
          std::all_of(op.sources.begin(), op.sources.end(), [&](std::size_t s) { return ops_[s].there; });
      op.there = !op.saved.empty() || (made_of && !op.product);
      if (op.saved.empty() || op.product || !made_of || is_read_by_product(i)) continue;
      again.insert(again.end(), op.saved.begin(), op.saved.end());
    }
    return again;
  }

 private:
  struct Operator {
    std::vector<std::size_t> sources, readers;  // of this segment
    std::vector<std::int32_t> saved;            // slots that it makes and backward finds
    bool runs = false, product = false;         // kernels; such as are not fused
    bool grows = false;                         // a gradient comes back to it
    bool there = false;                         // in backward: saved, or made of what is
  };

  static std::set<std::int32_t> saved_slots(const KernelList& made, const KernelList& backward) {
    std::set<std::int32_t> freed, saved;
    for (const MemoryEvent& event : backward.events)
      if (!event.alloc && !event.noted) freed.insert(event.slot);
    for (const MemoryEvent& event : made.events)
      if (event.alloc && freed.count(event.slot) > 0) saved.insert(event.slot);
    for (const MemoryEvent& event : made.events)
      if (!event.alloc && !event.noted) saved.erase(event.slot);
    return saved;
  }

  const Op& op_at(std::size_t i) const { return model_.ops[begin_ + i]; }

  bool grows(ParamId id) const { return model_.params[model_.storage_of(id).index()].requires_grad; }

  void read_operators() {
    std::unordered_map<std::int32_t, std::size_t> made_by;  // by value
    for (std::size_t i = 0; i < ops_.size(); ++i) {
      for_each_reference(
          op_at(i),
          [&](ValueId id) {
            const auto at = made_by.find(id.value);
            if (at == made_by.end()) {  // came in
              ops_[i].grows = true;
              return;
            }
            ops_[i].sources.push_back(at->second);
            ops_[at->second].readers.push_back(i);
            ops_[i].grows = ops_[i].grows || ops_[at->second].grows;
          },
          [&](ParamId id) { ops_[i].grows = ops_[i].grows || grows(id); });
      for (const ValueId out : op_at(i).out)
        if (out.valid()) made_by[out.value] = i;
    }
    made_by_ = std::move(made_by);
  }

  /// Its gradient for another operand than this result, or views of it, is asked for.
  bool needs(std::size_t reader, std::size_t operand) const {
    bool other = false;
    for_each_reference(
        op_at(reader),
        [&](ValueId id) {
          const auto at = made_by_.find(id.value);
          other = other || at == made_by_.end() || (at->second != operand && ops_[at->second].grows);
        },
        [&](ParamId id) { other = other || grows(id); });
    return other;
  }

  bool is_read_by_product(std::size_t i) const {
    return std::any_of(ops_[i].readers.begin(), ops_[i].readers.end(), [&](std::size_t reader) {
      if (!ops_[reader].runs) return is_read_by_product(reader);  // a view
      return ops_[reader].product && needs(reader, i);
    });
  }

  const Model& model_;
  const std::size_t begin_;
  std::vector<Operator> ops_;
  std::unordered_map<std::int32_t, std::size_t> made_by_;
};

}  // namespace

bool is_fusible(const Kernel& kernel) {
  if (kernel.collective != KernelCollective::None) return false;
  return kernel.kind == KernelClass::Elementwise || kernel.kind == KernelClass::Reduction ||
         kernel.kind == KernelClass::Copy || kernel.launches == 0;
}

std::vector<std::int32_t> slots_made_again(const Model& model, const SegmentRange& range, const KernelList& made,
                                           const KernelList& backward) {
  return Cut(model, range, made, backward).slots();
}

}  // namespace foreshard
