#include "core/lowering/offload/packed_saves.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "core/lowering/lowering_machine.h"
#include "core/lowering/segment_autograd.h"
#include "core/model/module_kind.h"

namespace foreshard::lowering {

namespace {
constexpr std::string_view kSaved = "saved_on_host", kContiguous = "saved_contiguous", kRegion = "region_on_host";
constexpr std::size_t kByName = 64;  // no operator has so many arguments

std::vector<std::int64_t> words_of(const Op& op, std::string_view name) {
  return op.kwargs.empty() ? std::vector<std::int64_t>() : list_arg(op, kByName, name);
}
}  // namespace

bool saves_through_hooks(const Model& model) {
  return std::any_of(model.ops.begin(), model.ops.end(), [](const Op& op) {
    return !words_of(op, kSaved).empty() || (op.region >= 0 && !words_of(op, kRegion).empty());
  });
}

PackedSaves::PackedSaves(Machine& machine, const Model& model, const Program& program,
                         const OffloadedActivations& options)
    : machine_(machine),
      model_(model),
      program_(program),
      offload_(machine, options),
      by_hooks_(saves_through_hooks(model)) {
  if (!on()) return;
  machine.tape.keep_numbers();
  if (options.on) head_ = output_head(model);
  if (by_hooks_) find_regions();
}

void PackedSaves::find_regions() {
  for (const Op& op : model_.ops) {
    if (op.region < 0) continue;
    const std::vector<ValueId>& args = model_.regions[static_cast<std::size_t>(op.region)].args;
    for (const std::int64_t place : words_of(op, kRegion))
      if (place >= 0 && static_cast<std::size_t>(place) < args.size())
        on_host_[op.region].insert(program_.resolve(args[static_cast<std::size_t>(place)]));
  }
}

/// Arguments by their places, results by -1 - their places.
bool PackedSaves::is_sent(const Op& op, const SaveRule& save) {
  const std::vector<std::int64_t> places = words_of(op, kSaved);
  const auto place = static_cast<std::int64_t>(save.index);
  return std::find(places.begin(), places.end(), save.result ? -1 - place : place) != places.end();
}

Emitter PackedSaves::emitter(const Op& op) {
  return {machine_, &op, static_cast<std::int32_t>(&op - model_.ops.data())};
}

bool PackedSaves::travels(const Op& op) const {
  if (!on()) return false;
  if (!offload_.on()) return !words_of(op, kSaved).empty();
  for (ModuleId at = op.module; at.valid(); at = model_.modules[at.index()].parent)
    if (at == head_) return false;
  return true;
}

bool PackedSaves::makes_node(const Op& op, const OpRule& rule, const std::vector<Ref>& args) {
  const auto wants = [this](const Ref& arg) { return machine_.tape.at(arg).requires_grad; };
  const auto floats = [this](ValueId id) { return id.valid() && is_floating(model_.values[id.index()].dtype); };
  return !is_constant(rule) && std::any_of(args.begin(), args.end(), wants) &&
         std::any_of(op.out.begin(), op.out.end(), floats);
}

/// As PyTorch's generated code saves them: a product without a bias is an mm, which keeps its matrix first.
std::vector<SaveRule> PackedSaves::saves_of(const Op& op, const OpRule& rule, const std::vector<Ref>& args) {
  std::uint8_t wants = 0;
  for (std::size_t i = 0; i < args.size() && i < 8; ++i)
    if (machine_.tape.at(args[i]).requires_grad) wants = static_cast<std::uint8_t>(wants | 1U << i);
  const auto results =
      static_cast<std::size_t>(std::count_if(op.out.begin(), op.out.end(), [](ValueId id) { return id.valid(); }));
  std::vector<SaveRule> saves = saves_of_call(rule, op, args.size(), results, wants);
  if (rule.formula == OpFormula::Linear && args.size() == 2) std::reverse(saves.begin(), saves.end());
  return saves;
}

Saved PackedSaves::pack(const Op& op, const OpRule& rule, const SaveRule& save, const Ref& tensor) {
  Emitter emit = emitter(op);
  Saved saved;
  saved.result = save.result;
  saved.index = save.index;
  saved.sizes = machine_.tape.layout(tensor).sizes;
  if (!offload_.on() && !is_sent(op, save)) {
    saved.tensor = tensor;
    return saved;
  }
  // A linear layer's matrix is kept as its transpose: a view, and no parameter.
  const bool matrix = rule.formula == OpFormula::Linear && !save.result && save.index == 1;
  const Ref seen = matrix ? emit.transpose(tensor, 0, 1) : tensor;
  saved.packed =
      offload_.on() ? offload_.pack(emit, seen) : offload_.send(emit, seen, bool_arg(op, kByName, kContiguous, false));
  if (saved.packed == 0) saved.tensor = tensor;
  return saved;
}

void PackedSaves::pack_arguments(const Op& op, const OpRule& rule, const std::vector<Ref>& args) {
  packed_.clear();
  if (op.opaque >= 0 || !travels(op) || !makes_node(op, rule, args)) return;
  for (const SaveRule& save : saves_of(op, rule, args)) {
    const bool written = rule.form == OpForm::InPlace && save.index == 0;  // its copy is packed instead
    if (!save.result && !written) packed_.push_back(pack(op, rule, save, args[save.index]));
  }
}

Saved PackedSaves::take(const SaveRule& save) {
  const auto at =
      std::find_if(packed_.begin(), packed_.end(), [&](const Saved& one) { return one.index == save.index; });
  Saved taken = std::move(*at);
  packed_.erase(at);
  return taken;
}

/// The first argument of the call that a region is.
bool PackedSaves::comes_first(const CheckpointFrame& frame, std::int32_t value) const {
  const ModuleCall* const call = model_.find_call(frame.module, frame.call);
  return call != nullptr && !call->args.empty() && program_.resolve(call->args.front()) == value;
}

void PackedSaves::pack_input(CheckpointFrame& frame, const Op& op, std::int32_t value) {
  if (!on()) return;
  const Ref& input = frame.inputs.at(value);
  if (!offload_.on()) {
    const auto sent = on_host_.find(op.region);
    if (sent == on_host_.end() || sent->second.count(value) == 0) return;
    Emitter emit = emitter(op);
    frame.packed.emplace(value, offload_.send(emit, input, false));
    frame.inputs.erase(value);
    return;
  }
  const bool by_name =
      frame.module.valid() && !machine_.tape.at(input).requires_grad && frame.handed_on.count(value) == 0;
  if (by_name && !comes_first(frame, value)) return;
  Emitter emit = emitter(op);
  const std::int32_t number = offload_.pack(emit, input);
  if (number == 0) return;
  frame.packed.emplace(value, number);
  frame.inputs.erase(value);
}

void PackedSaves::bring_inputs(CheckpointFrame& frame, const Op& first) {
  Emitter emit = emitter(first);
  for (const auto& [value, number] : frame.packed) {
    if (offload_.has_sent(number)) {
      const Ref& tensor = frame.inputs[value] = offload_.fetch(emit, number);
      if (frame.reentrant) frame.results.push_back(tensor);  // the function's own name for it
      continue;
    }
    const Ref brought = offload_.unpack(emit, number);
    frame.inputs[value] = machine_.tape.alias(brought, machine_.tape.layout(brought));
  }
}

void PackedSaves::drop_inputs(CheckpointFrame& frame) {
  for (const auto& [value, number] : frame.packed) frame.inputs.erase(value);
}

void PackedSaves::unpack(Emitter& emit, Node& node) {
  std::vector<Saved*> order;
  for (Saved& saved : node.saved)
    if (saved.packed > 0) order.push_back(&saved);
  std::sort(order.begin(), order.end(), [](const Saved* a, const Saved* b) { return a->packed < b->packed; });
  for (Saved* const saved : order) {
    const Ref brought =
        offload_.has_sent(saved->packed) ? offload_.fetch(emit, saved->packed) : offload_.unpack(emit, saved->packed);
    const Layout& layout = machine_.tape.layout(brought);
    saved->tensor = layout.sizes == saved->sizes
                        ? brought
                        : machine_.tape.alias(brought, contiguous_layout(saved->sizes, layout.dtype));
  }
}

}  // namespace foreshard::lowering
