#include "tests/core/lowering/replay.h"

#include <algorithm>

namespace foreshard::testing {

namespace {

struct Player {
  const LoweredProgram& program;
  Replay out;
  std::vector<std::vector<std::int64_t>> alive;  // per instance and slot: number of the allocation, -1 never, -2 freed
  Bytes now = 0;
  std::int64_t next = 0;

  explicit Player(const LoweredProgram& lowered) : program(lowered) {
    for (const SegmentInstance& instance : program.instances)
      alive.emplace_back(program.templates[static_cast<std::size_t>(instance.lowered)].slots.size(), -1);
  }

  const Slot& slot_of(std::int32_t instance, std::int32_t slot) const {
    const auto lowered = static_cast<std::size_t>(program.instances[static_cast<std::size_t>(instance)].lowered);
    return program.templates[lowered].slots[static_cast<std::size_t>(slot)];
  }

  void event(std::size_t instance, const MemoryEvent& event) {
    auto owner = static_cast<std::int32_t>(instance);
    std::int32_t slot = event.slot;
    if (slot < 0) {
      const ImportBinding& binding = program.instances[instance].imports[static_cast<std::size_t>(-slot - 1)];
      owner = binding.instance;
      slot = binding.slot;
    }
    std::int64_t& state = alive[static_cast<std::size_t>(owner)][static_cast<std::size_t>(slot)];
    const Bytes bytes = slot_of(owner, slot).bytes;
    if (event.noted) {
      if (state < 0) out.misuse.push_back("used while it is not there");
    } else if (event.alloc) {
      if (state != -1) out.misuse.push_back("allocated twice");
      state = next++;
      now += bytes;
      out.peak = std::max(out.peak, now);
      out.events.push_back({true, state, bytes});
    } else {
      if (state < 0) out.misuse.push_back(state == -1 ? "freed before it was made" : "freed twice");
      out.events.push_back({false, state, bytes});
      state = -2;
      now -= bytes;
    }
  }

  void run(std::size_t instance, const KernelList& list, std::vector<std::string>& names) {
    for (const Kernel& kernel : list.kernels) {
      for (std::int32_t e = kernel.before_begin; e < kernel.before_end; ++e)
        event(instance, list.events[static_cast<std::size_t>(e)]);
      if (kernel.launches > 0) names.push_back(program.op_names[static_cast<std::size_t>(kernel.op)]);
      for (std::int32_t e = kernel.after_begin; e < kernel.after_end; ++e)
        event(instance, list.events[static_cast<std::size_t>(e)]);
    }
  }
};

}  // namespace

Replay replay(const LoweredProgram& program, const std::vector<SegmentRange>& segments) {
  Player player(program);
  const auto lowered = [&](std::size_t i) -> const SegmentTemplate& {
    return program.templates[static_cast<std::size_t>(program.instances[i].lowered)];
  };
  for (std::size_t i = 0; i < segments.size(); ++i) player.run(i, lowered(i).forward, player.out.forward_kernels);
  player.out.after_forward = player.now;
  for (std::size_t i = segments.size(); i-- > 0;) {
    const bool last_of_region =
        segments[i].checkpointed && (i + 1 == segments.size() || segments[i + 1].region != segments[i].region);
    if (last_of_region) {
      std::size_t first = i;
      while (first > 0 && segments[first - 1].checkpointed && segments[first - 1].region == segments[i].region) --first;
      for (std::size_t s = first; s <= i; ++s) player.run(s, lowered(s).recompute, player.out.recompute_kernels);
    }
    player.run(i, lowered(i).backward, player.out.backward_kernels);
  }
  Replay& out = player.out;
  out.left = player.now;
  for (std::size_t i = 0; i < segments.size(); ++i)
    for (std::size_t s = 0; s < lowered(i).slots.size(); ++s)
      if (lowered(i).slots[s].category == SlotCategory::ParamGrad && player.alive[i][s] >= 0)
        out.param_grads += lowered(i).slots[s].bytes;
  out.left -= out.param_grads;
  for (const ImportBinding& held : program.held) out.left -= player.slot_of(held.instance, held.slot).bytes;
  return out;
}

std::vector<SegmentRange> segments_by_block(const Model& model, const std::string& block_class, bool checkpointed) {
  const auto block_of = [&](const Op& op) {
    for (ModuleId at = op.module; at.valid(); at = model.modules[at.index()].parent)
      if (model.modules[at.index()].class_name == block_class) return at;
    return ModuleId();
  };
  std::vector<SegmentRange> segments;
  ModuleId last;
  for (std::size_t i = 0; i < model.ops.size(); ++i) {
    const ModuleId block = block_of(model.ops[i]);
    if (segments.empty() || block != last) {
      const bool in_block = checkpointed && block.valid();
      segments.push_back({static_cast<std::int32_t>(i), static_cast<std::int32_t>(i), in_block,
                          in_block ? block.value : -1, false, block});
    }
    segments.back().op_end = static_cast<std::int32_t>(i) + 1;
    last = block;
  }
  return segments;
}

std::vector<bool> all_trainable(const Model& model) {
  std::vector<bool> trainable;
  for (const ParamInfo& param : model.params) trainable.push_back(param.requires_grad);
  return trainable;
}

std::vector<Bytes> made_by(const LoweredProgram& lowered, const KernelList& list, const SegmentTemplate& segment,
                           const std::string& op) {
  std::vector<Bytes> made;
  for (const Kernel& kernel : list.kernels) {
    if (lowered.op_names[static_cast<std::size_t>(kernel.op)] != op) continue;
    for (std::int32_t e = kernel.before_begin; e < kernel.before_end; ++e) {
      const MemoryEvent& event = list.events[static_cast<std::size_t>(e)];
      if (event.alloc) made.push_back(segment.slots[static_cast<std::size_t>(event.slot)].bytes);
    }
  }
  return made;
}

Bytes alive_at(const LoweredProgram& lowered, const std::string& op) {
  const SegmentTemplate& segment = lowered.templates[0];
  Bytes alive = 0;
  for (const Kernel& kernel : segment.forward.kernels) {
    const auto apply = [&](std::int32_t begin, std::int32_t end) {
      for (std::int32_t e = begin; e < end; ++e) {
        const MemoryEvent& event = segment.forward.events[static_cast<std::size_t>(e)];
        const Bytes bytes = segment.slots[static_cast<std::size_t>(event.slot)].bytes;
        alive += event.alloc ? bytes : -bytes;
      }
    };
    apply(kernel.before_begin, kernel.before_end);
    if (lowered.op_names[static_cast<std::size_t>(kernel.op)] == op) return alive;
    apply(kernel.after_begin, kernel.after_end);
  }
  return -1;
}

}  // namespace foreshard::testing
