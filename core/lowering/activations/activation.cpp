#include "core/lowering/activations/activation.h"

#include <algorithm>
#include <set>

#include "core/lowering/lowering_check.h"
#include "core/lowering/lowering_fold.h"

namespace foreshard {

namespace {

/// Index of the block that a module is in, -1 if in none.
std::vector<std::int32_t> block_of_module(const Model& model, const std::string& block_class,
                                          std::vector<std::string>& names) {
  std::vector<std::int32_t> block(model.modules.size(), -1);
  for (std::size_t m = 0; m < model.modules.size(); ++m) {
    const ModuleInfo& module = model.modules[m];
    if (module.parent.valid() && block[module.parent.index()] >= 0) {
      block[m] = block[module.parent.index()];
    } else if (!block_class.empty() && !module.alias_of.valid() &&
               (module.class_name == block_class ||
                std::find(module.bases.begin(), module.bases.end(), block_class) != module.bases.end())) {
      block[m] = static_cast<std::int32_t>(names.size());
      names.push_back(module.fqn);
    }
  }
  return block;
}

void add_share(std::vector<ActivationReport::Share>& shares, const std::string& name, Bytes bytes) {
  const auto at = std::find_if(shares.begin(), shares.end(), [&](const auto& share) { return share.name == name; });
  if (at == shares.end())
    shares.push_back({name, bytes});
  else
    at->bytes += bytes;
}

}  // namespace

Result<ActivationReport> activation_report(const Model& model, bool checkpoint_blocks, const std::string& block_class) {
  ActivationReport report;
  const auto block = block_of_module(model, block_class.empty() ? model.block_class : block_class, report.blocks);
  const auto block_at = [&](std::size_t op) {
    return model.ops[op].module.valid() ? block[model.ops[op].module.index()] : -1;
  };
  std::vector<SegmentRange> segments;
  if (auto whole = lowering::check_program(model, {{0, static_cast<std::int32_t>(model.ops.size())}}); !whole)
    return fail(whole.error());
  for (std::size_t op = 0; op < model.ops.size(); ++op) {
    if (segments.empty() || block_at(op) != block_at(op - 1)) {
      const bool checkpointed = checkpoint_blocks && block_at(op) >= 0;
      segments.push_back({static_cast<std::int32_t>(op), static_cast<std::int32_t>(op), checkpointed,
                          checkpointed ? static_cast<std::int32_t>(segments.size()) : -1});
      if (checkpointed)
        segments.back().module = model.find_module(report.blocks[static_cast<std::size_t>(block_at(op))]);
    }
    segments.back().op_end = static_cast<std::int32_t>(op) + 1;
  }
  std::vector<bool> trainable;
  for (const ParamInfo& param : model.params) trainable.push_back(param.requires_grad);
  const lowering::Fold whole = lowering::unfolded(model, segments);
  lowering::Machine machine(model, whole.program, trainable, {});
  machine.forward();
  report.per_block.assign(report.blocks.size(), 0);
  std::set<std::int32_t> counted;
  for (const auto& kept : machine.kept()) {
    if (!kept.slot || !counted.insert(kept.storage).second) continue;
    if (kept.block_kwarg) {
      report.held_by_block_arguments += kept.bytes;
      continue;
    }
    report.saved += kept.bytes;
    const auto op = static_cast<std::size_t>(whole.program.steps[static_cast<std::size_t>(kept.step)].op);
    const ModuleId module = model.ops[op].module;
    add_share(report.by_class, module.valid() ? model.modules[module.index()].class_name : std::string(), kept.bytes);
    add_share(report.by_operator, model.ops[op].name, kept.bytes);
    if (block_at(op) >= 0) {
      report.per_block[static_cast<std::size_t>(block_at(op))] += kept.bytes;
      continue;
    }
    const std::string& name =
        model.ops[op].module.valid() ? model.modules[model.ops[op].module.index()].fqn : std::string();
    const auto at = std::find_if(report.outside.begin(), report.outside.end(),
                                 [&](const auto& entry) { return entry.module == name; });
    if (at == report.outside.end())
      report.outside.push_back({name, kept.bytes});
    else
      at->bytes += kept.bytes;
  }
  machine.backward();
  for (const lowering::RawInstance& instance : machine.tape.instances()) {
    for (const Kernel& kernel : instance.passes[0].kernels) report.forward_flops += kernel.flops;
    for (const Kernel& kernel : instance.passes[2].kernels) report.backward_flops += kernel.flops;
  }
  report.unknown_ops = machine.unknown_ops;
  return report;
}

}  // namespace foreshard
