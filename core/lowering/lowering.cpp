// lower(): fold, run the machine, turn what the tape holds into templates and instances.
#include "core/lowering/lowering.h"

#include <algorithm>
#include <map>
#include <utility>

#include "core/lowering/folding/folded_products.h"
#include "core/lowering/kernels/host_values.h"
#include "core/lowering/lowering_check.h"
#include "core/lowering/lowering_fold.h"
#include "core/lowering/offload/packed_saves.h"

namespace foreshard {

namespace {

using lowering::Fold;
using lowering::FoldedRun;
using lowering::Machine;
using lowering::RawInstance;
using lowering::RawPass;

/// A template and where its imports come from, as instances of the folded program.
struct Extract {
  SegmentTemplate made;
  std::vector<ImportBinding> imports;
  std::vector<ImportBinding> left_out;  // further imports, of blocks that were left out: instances of the real program
};

std::vector<ParamId> params_in_order(const Model& model, const SegmentRange& segment) {
  std::vector<ParamId> params;
  for (std::int32_t at = segment.op_begin; at < segment.op_end; ++at) {
    lowering::for_each_arg(model.ops[static_cast<std::size_t>(at)], [&](const Arg& arg) {
      const auto* ref = std::get_if<ParamRef>(&arg.value);
      if (ref == nullptr) return;
      const ParamId storage = model.storage_of(ref->id);
      if (std::find(params.begin(), params.end(), storage) == params.end()) params.push_back(storage);
    });
  }
  return params;
}

std::int32_t position_of(const std::vector<ParamId>& params, ParamId param) {
  const auto at = std::find(params.begin(), params.end(), param);
  return at == params.end() ? -1 : static_cast<std::int32_t>(at - params.begin());
}

/// The first kernel of an operator that hands values to the host: what follows is sized by them.
void mark_waits(KernelList& list, const Model& model, const SegmentRange& segment) {
  std::int32_t before = -1;
  for (Kernel& kernel : list.kernels) {
    const std::int32_t op = std::exchange(before, kernel.model_op) == kernel.model_op ? -1 : kernel.model_op;
    kernel.waits = op >= 0 && hands_to_host(model, model.ops[static_cast<std::size_t>(segment.op_begin + op)]);
  }
}

Extract extract(RawInstance& raw, std::int32_t instance, const Model& model, const SegmentRange& segment) {
  Extract out;
  const std::vector<ParamId> params = params_in_order(model, segment);
  std::map<std::pair<std::int32_t, std::int32_t>, std::int32_t> import_of;
  KernelList* const lists[] = {&out.made.forward, &out.made.recompute, &out.made.backward};
  for (std::size_t pass = 0; pass < 3; ++pass) {
    RawPass& from = raw.passes[pass];
    KernelList& to = *lists[pass];
    to.kernels = std::move(from.kernels);
    for (Kernel& kernel : to.kernels)
      if (kernel.model_op >= 0) kernel.model_op -= segment.op_begin;
    if (&to != &out.made.backward) mark_waits(to, model, segment);
    to.events.reserve(from.events.size());
    for (const lowering::RawEvent& event : from.events) {
      if (event.instance == instance) {
        to.events.push_back({event.slot, event.alloc, event.noted});
        continue;
      }
      const auto [at, added] =
          import_of.emplace(std::pair{event.instance, event.slot}, static_cast<std::int32_t>(out.imports.size()));
      if (added) out.imports.push_back({event.instance, event.slot});
      to.events.push_back({-at->second - 1, false, event.noted});
    }
  }
  out.made.slots = std::move(raw.slots);
  for (Slot& slot : out.made.slots) {
    if (slot.category != SlotCategory::ParamGrad) continue;
    const ParamId param = slot.param;
    slot.param = ParamId(position_of(params, param));
    if (!slot.param.valid()) slot.foreign = param;
  }
  out.made.gradients = std::move(raw.gradients);
  for (std::size_t g = 0; g < raw.param_grads.size(); ++g)
    out.made.gradients[g].param = position_of(params, raw.param_grads[g]);
  out.made.import_count = static_cast<std::int32_t>(out.imports.size());
  out.made.early_backward = raw.early_backward;
  return out;
}

/// What a segment outside of a run frees of its second block, it frees of the blocks that were left out too: casts that
/// autocast kept until it exited.
void free_left_out(const Fold& fold, std::int32_t instance, Extract& extract) {
  const auto added = [&](const MemoryEvent& event, std::vector<MemoryEvent>& to) {
    to.push_back(event);
    if (event.slot >= 0) return;
    const ImportBinding import = extract.imports[static_cast<std::size_t>(-event.slot - 1)];
    const FoldedRun* const run = fold.run_of(import.instance);
    if (run == nullptr || !run->is_copied(import.instance) || run->has(instance)) return;
    for (std::int32_t block = 1; block <= run->removed; ++block) {
      extract.left_out.push_back({fold.real(import.instance) + block * run->period, import.slot});
      to.push_back({-static_cast<std::int32_t>(extract.imports.size() + extract.left_out.size()), false, event.noted});
    }
  };
  for (KernelList* list : {&extract.made.forward, &extract.made.recompute, &extract.made.backward}) {
    std::vector<MemoryEvent> events;
    events.reserve(list->events.size());
    std::vector<std::int32_t> moved_to(list->events.size() + 1, 0);  // for gradients
    const auto move = [&](std::int32_t& begin, std::int32_t& end) {
      const auto first = static_cast<std::int32_t>(events.size());
      for (std::int32_t at = begin; at < end; ++at) {
        added(list->events[static_cast<std::size_t>(at)], events);
        moved_to[static_cast<std::size_t>(at) + 1] = static_cast<std::int32_t>(events.size());
      }
      begin = first;
      end = static_cast<std::int32_t>(events.size());
    };
    for (Kernel& kernel : list->kernels) {
      move(kernel.before_begin, kernel.before_end);
      move(kernel.after_begin, kernel.after_end);
    }
    list->events = std::move(events);
    if (list != &extract.made.backward) continue;
    for (FinishedGradient& gradient : extract.made.gradients)
      gradient.events = moved_to[static_cast<std::size_t>(gradient.events)];
  }
  extract.made.import_count = static_cast<std::int32_t>(extract.imports.size() + extract.left_out.size());
}

/// A block frees what lies near it: itself, its neighbours, and what is outside of the run.
bool frees_nearby(const Fold& fold, const std::vector<Extract>& extracts) {
  for (std::size_t i = 0; i < extracts.size(); ++i) {
    const FoldedRun* const run = fold.run_of(static_cast<std::int32_t>(i));
    if (run == nullptr) continue;
    for (const ImportBinding& import : extracts[i].imports)
      if (run->has(import.instance) && std::abs(import.instance - static_cast<std::int32_t>(i)) >= 2 * run->period)
        return false;
  }
  return true;
}

/// The second and third kept block must be one template, equal but for where imports come from.
bool alike(const FoldedRun& run, const std::vector<Extract>& extracts) {
  for (std::int32_t s = 0; s < run.period; ++s) {
    const auto a = static_cast<std::size_t>(run.begin + run.period + s), b = a + static_cast<std::size_t>(run.period);
    if (!(extracts[a].made == extracts[b].made)) return false;
    for (std::size_t i = 0; i < extracts[a].imports.size(); ++i) {
      const ImportBinding& x = extracts[a].imports[i];
      const ImportBinding& y = extracts[b].imports[i];
      const bool moved = run.has(x.instance) && y.instance == x.instance + run.period;
      if (x.slot != y.slot || !(moved || x.instance == y.instance)) return false;
      if (moved && std::abs(x.instance - static_cast<std::int32_t>(a)) >= 2 * run.period) return false;
    }
  }
  return true;
}

bool alike(const Fold& fold, const std::vector<Extract>& extracts) {
  return frees_nearby(fold, extracts) &&
         std::all_of(fold.runs.begin(), fold.runs.end(), [&](const FoldedRun& run) { return alike(run, extracts); });
}

LoweredProgram assemble(const Fold& fold, std::vector<Extract>& extracts, Machine& machine, std::size_t segments) {
  LoweredProgram out;
  std::vector<std::int32_t> template_of(extracts.size());
  for (std::size_t i = 0; i < extracts.size(); ++i) {
    std::int32_t found = -1;
    for (std::size_t t = 0; t < out.templates.size() && found < 0; ++t)
      if (out.templates[t].slots.size() == extracts[i].made.slots.size() && out.templates[t] == extracts[i].made)
        found = static_cast<std::int32_t>(t);
    if (found < 0) {
      found = static_cast<std::int32_t>(out.templates.size());
      out.templates.push_back(std::move(extracts[i].made));
    }
    template_of[i] = found;
  }
  out.instances.resize(segments);
  const auto place = [&](std::int32_t folded, std::int32_t real) {
    SegmentInstance& instance = out.instances[static_cast<std::size_t>(real)];
    instance.lowered = template_of[static_cast<std::size_t>(folded)];
    const FoldedRun* const run = fold.run_of(folded);
    for (const ImportBinding& import : extracts[static_cast<std::size_t>(folded)].imports) {
      const bool relative = run != nullptr && run->has(import.instance);
      instance.imports.push_back(
          {relative ? real + import.instance - folded : fold.real(import.instance), import.slot});
    }
    const std::vector<ImportBinding>& further = extracts[static_cast<std::size_t>(folded)].left_out;
    instance.imports.insert(instance.imports.end(), further.begin(), further.end());
  };
  for (std::size_t i = 0; i < extracts.size(); ++i)
    place(static_cast<std::int32_t>(i), fold.real(static_cast<std::int32_t>(i)));
  const auto each_copy = [&fold](std::int32_t folded, const auto& take) {  // of an instance, among what was left out
    const FoldedRun* const run = fold.run_of(folded);
    if (run == nullptr || !run->is_copied(folded)) return;
    for (std::int32_t block = 1; block <= run->removed; ++block) take(fold.real(folded) + block * run->period);
  };
  for (std::size_t i = 0; i < extracts.size(); ++i) {
    const auto folded = static_cast<std::int32_t>(i);
    each_copy(folded, [&](std::int32_t real) { place(folded, real); });
  }
  const auto each = [&](std::int32_t folded, const auto& take) {
    take(fold.real(folded));
    each_copy(folded, take);
  };
  for (const ImportBinding& binding : machine.held)
    each(binding.instance, [&](std::int32_t real) { out.held.push_back({real, binding.slot}); });
  for (std::size_t k = 0; k < machine.held_until_next.size(); ++k) {
    const ImportBinding& binding = machine.held_until_next[k];
    each(binding.instance, [&](std::int32_t real) {
      out.held_until_next.push_back({real, binding.slot});
      out.replaced.push_back(machine.replaced[k]);
    });
  }
  for (const auto& [instance, bytes] : machine.kept_for_run)
    each(instance, [&, kept = bytes](std::int32_t) { out.kept_for_run.push_back(kept); });
  out.op_names = std::move(machine.names);
  out.unknown_ops = std::move(machine.unknown_ops);
  return out;
}

LoweredProgram lower_checked(const Model& model, const std::vector<SegmentRange>& segments,
                             const std::vector<bool>& trainable, const LoweringOptions& options) {
  constexpr std::size_t kAsManyAsThereAre = 1000;
  // What is copied to the host is ordered behind the block before last, across where a run ends.
  const bool offloads = options.offload.on || lowering::saves_through_hooks(model);
  for (std::size_t most = offloads ? 1 : kAsManyAsThereAre;;) {
    const Fold fold = lowering::fold(model, segments, trainable, most);
    Machine machine(model, fold.program, trainable, options);
    machine.forward();
    machine.backward();
    std::vector<Extract> extracts;
    extracts.reserve(fold.program.instance_count);
    for (std::size_t i = 0; i < fold.program.instance_count; ++i) {
      const auto real = static_cast<std::size_t>(fold.real(static_cast<std::int32_t>(i)));
      extracts.push_back(extract(machine.tape.instances()[i], static_cast<std::int32_t>(i), model, segments[real]));
    }
    if (!alike(fold, extracts)) {  // rare: blocks that look alike but do not behave so
      most = fold.runs.size() > 1 ? 1 : 0;
      continue;
    }
    for (std::size_t i = 0; i < extracts.size() && !fold.runs.empty(); ++i)
      free_left_out(fold, static_cast<std::int32_t>(i), extracts[i]);
    LoweredProgram out = assemble(fold, extracts, machine, segments.size());
    out.offloads = offloads;
    return out;
  }
}

}  // namespace

namespace {

/// What ran inside an opaque operator where this storage was made; empty: it is no such storage.
std::string_view made_inside(const Op& op) {
  if (op.opaque < 0 && op.name != "aten.empty.memory_format") return {};
  for (const NamedArg& named : op.kwargs)
    if (const auto* name = named.name == "dispatched" ? std::get_if<std::string>(&named.arg.value) : nullptr)
      return *name;
  return {};
}

}  // namespace

std::string_view dispatched_name(const Op& op) {
  if (const std::string_view inside = made_inside(op); !inside.empty()) return inside;
  // A ring runs inside of DTensor's handler, below the modes: these see the one call of attention.
  if (op.name == "mesh.flash_attention") return "aten._scaled_dot_product_flash_attention.default";
  if (op.name == "mesh.flash_attention_for_cpu") return "aten._scaled_dot_product_flash_attention_for_cpu.default";
  if (op.name != "aten.linear.default") return op.name;
  std::size_t tensors = 0;
  lowering::for_each_arg(op, [&](const Arg& arg) {
    tensors += std::holds_alternative<ValueRef>(arg.value) || std::holds_alternative<ParamRef>(arg.value) ? 1 : 0;
  });
  return tensors == 2 ? "aten.mm.default" : "aten.addmm.default";
}

Result<LoweredProgram> lower(const Model& model, const std::vector<SegmentRange>& segments,
                             const std::vector<bool>& trainable, const LoweringOptions& options) {
  if (auto checked = lowering::check_program(model, segments); !checked) return fail(checked.error());
  const auto folded = lowering::with_folded_products(model, trainable);
  return lower_checked(folded ? *folded : model, segments, trainable, options);
}

}  // namespace foreshard
