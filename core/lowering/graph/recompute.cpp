// A checkpointed region runs again: what its nodes were promised is brought to them.
#include <algorithm>
#include <utility>

#include "core/lowering/graph/graph_life.h"
#include "core/lowering/lowering_machine.h"
#include "core/lowering/lowering_opaque.h"
#include "core/lowering/mesh_rules.h"

namespace foreshard::lowering {
namespace {

/// What backward has done of a region's last segment when it first asks for something that was not saved.
void note_early_backward(Tape& tape, const Step& last) {
  RawInstance& raw = tape.instances()[static_cast<std::size_t>(last.instance)];
  raw.early_backward =
      static_cast<std::int32_t>(raw.passes[static_cast<std::size_t>(PassKind::Backward)].kernels.size());
}

/// Whether a region reads any value of this kind. The reentrant form is an autograd function of what it is called with:
/// without a gradient among that nothing inside has one, its parameters neither (torch/utils/checkpoint.py warns).
template <class IsKind>
bool is_called_with(const Model& model, const Program& program, const CheckpointFrame& frame, const IsKind& is_kind) {
  bool any = false;
  for (std::int32_t step = frame.first; step <= frame.last; ++step) {
    const Step& at = program.steps[static_cast<std::size_t>(step)];
    for_each_arg(model.ops[static_cast<std::size_t>(at.op)], [&](const Arg& arg) {
      const auto* value = std::get_if<ValueRef>(&arg.value);
      any = any || (value != nullptr && is_kind(program.resolve(value->id)));
    });
  }
  return any;
}

}  // namespace

/// Branches of the region that nobody will ask for anything: in the second run their graph stands, with what it saves,
/// for as long as it did in the first.
class BriefGraph {
 public:
  explicit BriefGraph(const std::vector<Node>& nodes)
      : life_(nodes, [this](std::int32_t node) { saved_.erase(node); }) {}

  void add(std::int32_t node) { life_.add(node); }
  void save(std::int32_t node, Ref tensor) { saved_[node].push_back(std::move(tensor)); }
  void settle(std::int32_t node) { life_.settle(node); }
  void name(std::int32_t value, std::int32_t node) {
    life_.name(node);
    named_.emplace(value, node);
  }
  void unname(std::int32_t value) {
    const auto at = named_.find(value);
    if (at == named_.end()) return;
    life_.unname(at->second);
    named_.erase(at);
  }

 private:
  GraphLife life_;
  std::unordered_map<std::int32_t, std::int32_t> named_;
  std::map<std::int32_t, std::vector<Ref>> saved_;
};

/// A checkpointed call keeps its arguments, used inside or not (position_ids).
void Machine::hold_arguments(CheckpointFrame& frame, const Op& first,
                             const std::unordered_map<std::int32_t, std::int32_t>& made_at) {
  frame.without_grad =
      frame.reentrant && !is_called_with(model_, program_, frame, [&](std::int32_t id) {
        const Ref* const named = values_.find(id);
        const auto made = made_at.find(id);
        const bool outside = made == made_at.end() || made->second < frame.first;
        const bool grows =
            model_.values[static_cast<std::size_t>(id)].requires_grad;  // an input's, which is no node here
        return outside && (grows || (named != nullptr && tape.at(*named).requires_grad));
      });
  const std::vector<ValueId>* args = nullptr;
  if (frame.module.valid()) {
    const ModuleCall* call = model_.find_call(frame.module, frame.call);
    if (call != nullptr) args = &call->args;
  } else if (first.region >= 0) {
    args = &model_.regions[static_cast<std::size_t>(first.region)].args;
  }
  if (args == nullptr) return;
  for (const ValueId id : *args) {
    const Ref* const named = values_.find(program_.resolve(id));
    if (named != nullptr && tape.storage_of(*named).instance >= 0)
      frame.inputs.try_emplace(program_.resolve(id), *named);
  }
}

void Machine::recompute_step(CheckpointFrame& frame, std::int32_t step, std::unordered_map<std::int32_t, Ref>& local,
                             BriefGraph& brief) {
  const Step& at = program_.steps[static_cast<std::size_t>(step)];
  const Op& op = model_.ops[static_cast<std::size_t>(at.op)];
  tape.begin(static_cast<std::size_t>(at.instance), PassKind::Recompute);
  std::vector<Ref> args = gather(op, &local, &frame);
  std::vector<Ref> results;
  wait_for(args);
  const auto kept = frame.kept.find(step);
  const bool stops = step == frame.stop_step && frame.stop_before_kernel;
  // Where PyTorch stops, a kept result is not taken either and stays with the frame; `run` on a host takes it.
  const bool takes = kept != frame.kept.end() && (!stops || options.cpu_threads > 0);
  if (takes) {
    if (op.name == "mesh.reduce_scatter") lay_out_again(*this, op, at.op, args[0]);
    results = std::move(kept->second);
    frame.kept.erase(kept);
  } else if (!stops) {
    inside.enter(&frame, op, step, true);
    results = run_op(step, args);
    inside.leave();
  }
  const std::int32_t node = step_node_[static_cast<std::size_t>(step)];
  const bool gone = node >= 0 && nodes_[static_cast<std::size_t>(node)].gone;
  if (node >= 0) {
    for (Saved& saved : nodes_[static_cast<std::size_t>(node)].saved) {
      Ref brought = written_over(step, saved, args);
      if (!brought) brought = saved_tensor(op, saved, args, results);
      if (!brought) continue;
      if (gone)
        brief.save(node, std::move(brought));
      else
        saved.tensor = std::move(brought);
    }
  }
  if (gone) brief.add(node);
  if (op.opaque >= 0 && node < 0 && !takes && !stops) {
    Emitter emit(*this, &op, at.op);
    opaque_unsaved(emit, model_.opaques[static_cast<std::size_t>(op.opaque)]);
  }
  std::size_t next = 0;
  for (const ValueId id : op.out) {
    if (!id.valid() || next >= results.size()) continue;
    local[id.value] = std::move(results[next++]);
    brief.unname(id.value);
    if (gone) brief.name(id.value, node);
  }
  args.clear();
  results.clear();
  if (gone) brief.settle(node);
  for (const std::int32_t dead : deaths_[static_cast<std::size_t>(step)]) {
    local.erase(dead);
    brief.unname(dead);
  }
}

void Machine::recompute(CheckpointFrame& frame) {
  frame.recomputed = true;
  note_early_backward(tape, program_.steps[static_cast<std::size_t>(frame.last)]);
  const bool was = in_backward;
  in_backward = false;
  casts_.clear();  // the region's autocast is the outermost one now
  if (!frame.packed.empty()) {
    const Step& first = program_.steps[static_cast<std::size_t>(frame.first)];
    tape.begin(static_cast<std::size_t>(first.instance), PassKind::Recompute);
    packed_.bring_inputs(frame, model_.ops[static_cast<std::size_t>(first.op)]);
  }
  std::unordered_map<std::int32_t, Ref> local;
  BriefGraph brief(nodes_);
  for (std::int32_t step = frame.first; step <= frame.stop_step; ++step) recompute_step(frame, step, local, brief);
  if (frame.reentrant) {  // what the function returned lives until the nested backward is done
    const Step& at = program_.steps[static_cast<std::size_t>(frame.last)];
    for (const ValueId id : model_.ops[static_cast<std::size_t>(at.op)].out) {
      const auto result = id.valid() ? local.find(id.value) : local.end();
      if (result != local.end()) frame.results.push_back(result->second);
    }
  }
  std::vector<std::int32_t> rest;  // early stop: the recomputed function's locals go at once
  for (const auto& [id, ref] : local) rest.push_back(id);
  std::sort(rest.begin(), rest.end());
  for (const std::int32_t id : rest) local.erase(id);
  PackedSaves::drop_inputs(frame);
  casts_.clear();
  in_backward = was;
}

}  // namespace foreshard::lowering
