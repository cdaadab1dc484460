#include "core/lowering/lowering_views.h"

#include <utility>

#include "core/lowering/lowering_machine.h"

namespace foreshard::lowering {

BaseGradient take_base_gradient(Emitter& emit, const Node& node, std::vector<Ref>& grads) {
  BaseGradient base;
  if (!node.base || grads.empty() || !grads[0]) return base;
  base.whole = emit.fresh("aten.copy_.default", KernelClass::Copy, *node.base, {&grads[0]});
  base.part = emit.tape().alias(base.whole, node.in[0]);
  base.arrived = std::move(grads[0]);
  const Layout plain = contiguous_layout(node.in[0].sizes, node.in[0].dtype);
  grads[0] = emit.fresh("aten.clone.default", KernelClass::Copy, plain, {&base.part});
  return base;
}

Ref put_back(Emitter& emit, BaseGradient& base, const Ref& made) {
  Kernel kernel = emit.start("aten.copy_.default", KernelClass::Copy, emit.layout(base.part).dtype);
  emit.finish(kernel, {&made}, {&base.part});
  return std::move(base.whole);
}

void Machine::rebase(std::int32_t step, const std::unordered_map<std::int32_t, std::int32_t>& made_at) {
  const std::int32_t node_id = step_node_[static_cast<std::size_t>(step)];
  const auto first_value = [](const Op& op) {
    const auto* value = op.args.empty() ? nullptr : std::get_if<ValueRef>(&op.args.front().value);
    return value == nullptr ? ValueId() : value->id;
  };
  const auto op_at = [this](std::int32_t i) -> const Op& {
    return model_.ops[static_cast<std::size_t>(program_.steps[static_cast<std::size_t>(i)].op)];
  };
  ValueId written = first_value(op_at(step));
  if (node_id < 0 || !written.valid()) return;
  std::int32_t base = program_.resolve(written);
  const std::int32_t view = base;
  for (auto made = made_at.find(base); made != made_at.end(); made = made_at.find(base)) {
    const Step& maker = program_.steps[static_cast<std::size_t>(made->second)];
    const ValueId from = first_value(op_at(made->second));
    if (!is_view_form(maker.rule->form) || maker.rule->formula == OpFormula::None || !from.valid()) break;
    if (maker.rule->name == "aten._unsafe_view.default") break;  // no view to autograd
    base = program_.resolve(from);
  }
  const auto at = values_.find(base);
  if (base == view || at == values_.end()) return;
  Node& node = nodes_[static_cast<std::size_t>(node_id)];
  node.base = tape.layout(at->second);
  node.next[0] = edge_of(at->second);
  Tensor& tensor = tape.at(at->second);
  tensor.requires_grad = true;
  tensor.node = node_id;
  tensor.output_nr = 0;
}

}  // namespace foreshard::lowering
