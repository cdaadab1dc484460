// The backward pass of lowering_machine.h, as autograd's engine runs it: nodes by their number, gradients summed where
// they meet.
#include "core/lowering/lowering_machine.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/lowering/backward/backward.h"
#include "core/lowering/lowering_opaque.h"
#include "core/model/op_keywords.h"

namespace foreshard::lowering {

namespace {

/// Nodes are numbered by the thread that makes them (at::sequence_number), from the first step on: what the engine's
/// own thread has made in the midst of a forward has numbers of its own. Those of the thread that makes more of them in
/// a step are ahead soon.
void number_nodes(std::vector<Node>& nodes, bool one_thread) {
  std::int64_t script = 0, engine = 0;
  for (Node& node : nodes)
    if (node.rule != nullptr)
      node.number = one_thread ? node.position : is_run_by_engine(*node.op) ? engine++ : script++;
  constexpr std::int64_t kSteps = 2;  // where both make about as many, their order drifts from step to step
  for (Node& node : nodes)
    if (node.rule != nullptr && !one_thread && !is_run_by_engine(*node.op)) node.number += kSteps * (script - engine);
}

/// What hooks unpacked is named by the formula alone: it goes when that returns, before the engine sums and casts. What
/// autograd itself keeps goes when the node is done with.
void drop_unpacked(Node& node) {
  for (Saved& kept : node.saved) {
    if (kept.promised || kept.packed > 0) kept.tensor.reset();
  }
}

}  // namespace

// ---------------------------------------------------------------------------------------------------------------
// backward

void Machine::count_dependencies(std::int32_t root) {
  Node& first = nodes_[static_cast<std::size_t>(root)];
  if (first.visited) return;
  first.visited = true;
  std::vector<std::int32_t> stack{root};
  while (!stack.empty()) {
    const std::int32_t id = stack.back();
    stack.pop_back();
    for (const Edge& edge : nodes_[static_cast<std::size_t>(id)].next) {
      if (edge.node < 0) continue;
      Node& next = nodes_[static_cast<std::size_t>(edge.node)];
      ++next.waiting_for;
      if (!next.visited) {
        next.visited = true;
        stack.push_back(edge.node);
      }
    }
  }
}

void Machine::push(std::int32_t id) {
  Node& node = nodes_[static_cast<std::size_t>(id)];
  if (node.queued) return;
  node.queued = true;
  // Newest node first; accumulation before everything.
  ready_.emplace(node.rule == nullptr ? std::numeric_limits<std::int64_t>::max() : node.number, id);
}

void Machine::send(const Edge& edge, Ref gradient) {
  Node& next = nodes_[static_cast<std::size_t>(edge.node)];
  if (next.grads.empty()) next.grads.resize(std::max<std::size_t>(next.out.size(), 1));
  if (gradient) {
    Ref& old = next.grads[static_cast<std::size_t>(edge.input_nr)];
    if (!old) {
      old = std::move(gradient);
    } else {
      const Step& at = program_.steps[static_cast<std::size_t>(current_step_)];
      Emitter emit(*this, &model_.ops[static_cast<std::size_t>(at.op)], at.op);
      if (!on_their_way_.empty()) wait_for({old, gradient});
      // InputBuffer::accumulate: in place where nobody else sees it, but never for tensor subclasses.
      const bool of_mesh = next.op != nullptr
                               ? distributed_.made_by(*next.op)
                               : next.param.valid() && model_.params[next.param.index()].part.dimension >= 0;
      const bool distributed = options.cpu_threads == 0 && of_mesh;
      if (!distributed && tape.sole_owner(old) && !tape.at(old).view && tape.layout(old).dense()) {
        Kernel kernel = emit.start("aten.add_.Tensor", KernelClass::Elementwise, tape.layout(old).dtype);
        emit.finish(kernel, {&old, &gradient}, {&old});
      } else {
        old = emit.elementwise("aten.add.Tensor", {&old, &gradient});
      }
      gradient.reset();
    }
  }
  if (--next.waiting_for == 0) push(edge.node);
}

void Machine::accumulate_param(Node& node) {
  Ref gradient = node.grads.empty() ? Ref() : std::move(node.grads[0]);
  node.grads.clear();
  if (!gradient) return;
  if (trace_ != nullptr && node.param.valid())
    trace_->gradients.push_back({node.param, {tape.at(gradient).storage, tape.layout(gradient)}});
  if (current_step_ < 0) return;  // nothing ran: the program's result is the parameter itself
  const Step& at = program_.steps[static_cast<std::size_t>(current_step_)];
  // AccumulateGrad keeps a tensor that nobody else names, if it is laid out as the contract says; another tensor may
  // share its storage (the slices of a concatenation's gradient), which then goes to the first parameter of them.
  const Layout& own = node.out[0];
  const Layout& made = tape.layout(gradient);
  bool steps = true;  // obeys_layout_contract takes a stride of zero for a view, were it of one element
  for (std::int32_t i = 0; i < made.sizes.n; ++i) steps = steps && (made.sizes[i] != 1 || made.strides[i] != 0);
  const bool stealable = steps && tape.at(gradient).refs == 1 && tape.storage_of(gradient).slot >= 0 &&
                         (own.dense() ? tape.layout(gradient).same_steps(own) : tape.layout(gradient).contiguous());
  if (!stealable) {
    Trace* const traced = std::exchange(trace_, nullptr);  // no kernel of the operator's
    Emitter emit(*this, &model_.ops[static_cast<std::size_t>(at.op)], at.op);
    const Layout kept = own.dense() ? own : contiguous_layout(own.sizes, own.dtype);
    gradient = emit.fresh("aten.copy_.default", KernelClass::Copy, kept, {&gradient});
    trace_ = traced;
  }
  if (node.param.valid())
    tape.finish_gradient(gradient, node.param, !stealable);
  else
    leaves_.push_back(std::move(gradient));
}

void Machine::forget_saved(Node& node) {
  CheckpointFrame* frame = node.frame >= 0 ? &frames_[static_cast<std::size_t>(node.frame)] : nullptr;
  const bool runs = frame != nullptr && forward_step_ >= 0 && forward_step_ < frame->last;  // its caller has it
  for (Saved& kept : node.saved) {
    kept.tensor.reset();
    if (kept.promised && frame != nullptr && --frame->promises == 0 && !runs) release(*frame);
  }
}

/// Nobody will ask the region for anything any more.
void Machine::release(CheckpointFrame& frame) {
  frame.results.clear();
  frame.kept.clear();
  frame.kept_inside.clear();
  if (options.named_stay && frame.reentrant) {  // the function that autograd's node names is bound to them
    for (const auto& [id, input] : frame.inputs)
      if (!tape.at(input).requires_grad && frame.handed_on.count(id) == 0) leaves_.push_back(input);
  }
  frame.inputs.clear();
}

namespace {

/// CopySlices: a copy of the base's gradient, in which the view's is replaced, and what came.
struct CopiedSlice {
  Ref arrived, whole, part;
};

CopiedSlice copy_slice(Emitter& emit, const Node& node, Ref& gradient) {
  CopiedSlice out;
  out.whole = emit.fresh("aten.copy_.default", KernelClass::Copy, *node.base, {&gradient});
  out.part = emit.tape().alias(out.whole, node.in[0]);
  out.arrived = std::move(gradient);
  const Layout plain = contiguous_layout(node.in[0].sizes, node.in[0].dtype);
  gradient = emit.fresh("aten.clone.default", KernelClass::Copy, plain, {&out.part});
  return out;
}

}  // namespace

void Machine::run_node(std::int32_t id) {
  Node& node = nodes_[static_cast<std::size_t>(id)];
  if (node.rule == nullptr) {
    accumulate_param(node);
    return;
  }
  current_step_ = node.position;
  const Step& at = program_.steps[static_cast<std::size_t>(node.position)];
  CheckpointFrame* frame = node.frame >= 0 ? &frames_[static_cast<std::size_t>(node.frame)] : nullptr;
  if (packed_.on()) packed_.node_begins();
  const bool again = frame != nullptr && !frame->recomputed && !node.saved.empty();
  if (again && !node.base) recompute(*frame);
  tape.begin(static_cast<std::size_t>(at.instance), PassKind::Backward);
  Emitter emit(*this, node.op, at.op);
  std::vector<Ref> outs;
  {
    std::vector<Ref> grads = std::move(node.grads);
    node.grads.clear();
    wait_for(grads);
    CopiedSlice slice;
    if (node.base && !grads.empty() && grads[0]) slice = copy_slice(emit, node, grads[0]);
    if (again && node.base) {  // what works on the slice asks for what was saved
      recompute(*frame);
      tape.begin(static_cast<std::size_t>(at.instance), PassKind::Backward);
    }
    packed_.unpack(emit, node);
    std::vector<Ref> saved;
    for (const Saved& kept : node.saved) saved.push_back(kept.tensor);
    BackwardInput in{node, grads, saved};
    outs = node.op->opaque >= 0 ? opaque_backward(emit, model_.opaques[static_cast<std::size_t>(node.op->opaque)], in)
                                : backward_of(emit, in);
    outs.resize(node.next.size());
    if ((frame != nullptr && !frame->reentrant) || packed_.on()) {
      saved.clear();
      drop_unpacked(node);
    }
    for (std::size_t i = 0; i < outs.size();
         ++i) {  // the engine checks shapes and types: broadcast operands are summed here
      if (!outs[i] || node.next[i].node < 0 || node.rule->formula == OpFormula::Mesh) continue;
      outs[i] = emit.sum_to(outs[i], node.in[i].sizes);
      if (is_floating(node.in[i].dtype)) outs[i] = emit.cast(outs[i], node.in[i].dtype);
    }
    if (slice.whole) {
      Kernel kernel = emit.start("aten.copy_.default", KernelClass::Copy, node.in[0].dtype);
      emit.finish(kernel, {&outs[0]}, {&slice.part});
      outs[0] = std::move(slice.whole);
    }
    for (Ref& grad : grads) grad.reset();
    saved.clear();
  }
  if (packed_.on()) packed_.node_done(emit);
  forget_saved(node);
  for (std::size_t i = 0; i < outs.size(); ++i) {
    if (node.next[i].node < 0) outs[i].reset();
  }
  for (std::size_t i = 0; i < outs.size(); ++i)
    if (node.next[i].node >= 0) send(node.next[i], std::move(outs[i]));
}

void Machine::backward_from(const std::vector<Ref>& roots, const std::vector<Ref>& gradients) {
  in_backward = true;
  for (const Ref& root : roots) {
    const std::int32_t node = tape.at(root).node;
    count_dependencies(node);
    ++nodes_[static_cast<std::size_t>(node)].waiting_for;
    current_step_ = std::max(current_step_, nodes_[static_cast<std::size_t>(node)].position);
  }
  if (current_step_ >= 0) {
    const Step& at = program_.steps[static_cast<std::size_t>(current_step_)];
    tape.begin(static_cast<std::size_t>(at.instance), PassKind::Backward);
  }
  for (std::size_t i = 0; i < roots.size(); ++i) {
    const Tensor root = tape.at(roots[i]);
    send({root.node, root.output_nr}, gradients[i]);
  }
  while (!ready_.empty()) {
    const std::int32_t id = ready_.top().second;
    ready_.pop();
    run_node(id);
  }
  if (!packed_.on() || current_step_ < 0) return;
  const Step& at = program_.steps[static_cast<std::size_t>(current_step_)];
  Emitter emit(*this, &model_.ops[static_cast<std::size_t>(at.op)], at.op);
  packed_.backward_done(emit);
}

void Machine::backward() {
  in_backward = true;
  number_nodes(nodes_, options.cpu_threads > 0);
  if (!outputs_.empty() && tape.at(outputs_[0]).requires_grad) {
    const Tensor root = tape.at(outputs_[0]);
    const Node& node = nodes_[static_cast<std::size_t>(root.node)];
    if (node.rule != nullptr) {
      const Step& at = program_.steps[static_cast<std::size_t>(node.position)];
      tape.begin(static_cast<std::size_t>(at.instance), PassKind::Backward);
      Emitter emit(*this, &model_.ops[static_cast<std::size_t>(at.op)], at.op);
      const Layout* like[] = {&root.layout};  // without its holes
      root_grad_ = emit.fresh("aten.ones_like.default", KernelClass::Elementwise,
                              elementwise_layout(like, root.layout.sizes, root.layout.dtype), {});
      backward_from({outputs_[0]}, {root_grad_});
    }
  }
  tape.end();
  for (const Ref* ref : {outputs_.empty() ? &root_grad_ : &outputs_[0], &root_grad_}) {
    if (!*ref) continue;
    const Storage& storage = tape.storage_of(*ref);
    if (storage.instance < 0) continue;
    const ImportBinding binding{storage.instance, storage.slot};
    if (std::find(held.begin(), held.end(), binding) != held.end()) continue;
    tape.instances()[static_cast<std::size_t>(storage.instance)]
        .slots[static_cast<std::size_t>(storage.slot)]
        .category = SlotCategory::Output;
    held.push_back(binding);
  }
  const auto hold = [&](const Ref& ref) {
    const Storage& storage = tape.storage_of(ref);
    const ImportBinding binding{storage.instance, storage.slot};
    if (storage.instance >= 0 && std::find(held.begin(), held.end(), binding) == held.end()) held.push_back(binding);
  };
  for (std::size_t i = 1; i < outputs_.size(); ++i) hold(outputs_[i]);
  for (const auto& [ref, buffer] : until_next_)
    if (const Storage& storage = tape.storage_of(ref); storage.instance >= 0) {
      held_until_next.push_back({storage.instance, storage.slot});
      replaced.push_back(buffer);
    }
  for (const Ref& leaf : leaves_) hold(leaf);
  // What was returned beside the loss has a graph that no backward has run.
  for (const Node& node : nodes_)
    for (const Saved& saved : node.saved)
      if (saved.tensor) hold(saved.tensor);
  for (const CheckpointFrame& frame : frames_) {
    if (frame.promises == 0) continue;
    for (const auto& [id, input] : frame.inputs) hold(input);
  }
}

}  // namespace foreshard::lowering
