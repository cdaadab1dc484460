#include "sim/play/resident_state.h"

#include <algorithm>
#include <set>
#include <utility>

#include "core/plan/graph/gradient_paths.h"
#include "core/plan/runtime/muon_params.h"
#include "core/plan/units/unit_params.h"
#include "core/plan/units/unit_selection.h"
#include "core/runtime_layouts.h"
#include "sim/play/instructions/step_calls.h"

namespace foreshard {
namespace {

constexpr std::int64_t kMaxBlocks = 320;  // blocks of one launch

std::int64_t rank_in_group(const Plan& plan) {
  const auto& shard = plan.groups.shard;
  const auto it = std::find(shard.begin(), shard.end(), plan.rank);
  return it == shard.end() ? 0 : it - shard.begin();
}

/// By ParamId: what autograd gives no gradient in the plan is not stepped and has no state (fsdp2's layouts, and none;
/// fsdp1's flat gradients are zero there). Empty: the plan does not say.
std::vector<bool> without_gradient(const Plan& plan, const Model& model) {
  if (plan.runtime == Runtime::None) {  // no unit marks them
    std::vector<bool> without = params_with_gradient(model);
    without.flip();
    return without;
  }
  if (!has_fsdp2_layouts(plan.runtime)) return {};
  std::vector<bool> without(model.params.size(), true);
  bool any = false;
  for (const PlanIteration& iteration : plan.iterations) {
    for (const Instruction& i : iteration.instructions) {
      if (i.kind != InstructionKind::Mark || i.buffer.what != BufferWhat::Grad || !i.buffer.param.valid()) continue;
      without[i.buffer.param.index()] = false;
      any = true;
    }
  }
  return any ? without : std::vector<bool>();
}

/// By unit: FSDP1's flat gradient is None where no call of the unit has run, and what it holds is not stepped. Another
/// runtime's units all count.
std::vector<bool> units_with_gradient(const Plan& plan) {
  std::vector<bool> with(plan.units.size(), plan.runtime != Runtime::Fsdp1);
  if (plan.runtime != Runtime::Fsdp1) return with;
  std::size_t found = 0;
  for (const PlanIteration& iteration : plan.iterations) {
    for (const Instruction& i : iteration.instructions) {
      if (i.buffer.what != BufferWhat::GradPiece || !i.buffer.unit.valid() || with[i.buffer.unit.index()]) continue;
      with[i.buffer.unit.index()] = true;
      if (++found == with.size()) return with;
    }
  }
  if (found == 0) with.assign(with.size(), true);  // the plan does not say
  return with;
}

/// By ParamId: what fsdp.frozen leaves, with which the script makes its optimizer. FSDP1's original parameters are
/// frozen one by one, whatever their flat one is.
std::vector<bool> trainable_params(const Model& model, const Job& job) {
  std::vector<bool> trainable;
  if (job.fsdp.ignored.empty() && job.fsdp.frozen.empty() && !model.modules.empty()) {
    for (std::size_t p = 0; p < model.params.size(); ++p)
      trainable.push_back(model.params[model.storage_of(ParamId(p)).index()].requires_grad);
  } else if (const auto tree = build_module_tree(model)) {
    if (auto part = read_participation(model, *tree, job)) trainable = std::move(part->trainable);
  }
  if (trainable.empty()) {  // of another model's job: a plan that was read
    for (const ParamInfo& param : model.params) trainable.push_back(param.requires_grad);
    return trainable;
  }
  const auto tied = tied_when_sharded(model, job);
  for (std::size_t p = 0; tied && p < tied->size(); ++p)
    if ((*tied)[p].valid()) trainable[p] = false;  // stepped with the one whose shards it has
  return trainable;
}

/// In the order of their numbers, which is that of model.parameters(); equal ones as they stand.
void sort_by_param(std::vector<LocalParam>& all) {
  std::vector<std::pair<ParamId, std::size_t>> order;
  order.reserve(all.size());
  for (std::size_t i = 0; i < all.size(); ++i) order.emplace_back(all[i].param, i);
  std::sort(order.begin(), order.end());
  std::vector<LocalParam> sorted;
  sorted.reserve(all.size());
  for (const auto& [param, i] : order) sorted.push_back(all[i]);
  all = std::move(sorted);
}

/// fsdp.ignored: whole, and the script's to step (N1, N2), where a gradient comes to them.
void add_unmanaged(const Plan& plan, const Model& model, const std::vector<bool>& trainable,
                   std::vector<LocalParam>& all) {
  std::vector<bool> managed(model.params.size(), false);
  for (const PlanUnit& unit : plan.units)
    for (const ParamId param : unit.params) managed[model.storage_of(param).index()] = true;
  const auto is_left = [&](const ParamInfo& info) {
    return !info.shares.valid() && !managed[static_cast<std::size_t>(&info - model.params.data())];
  };
  if (std::none_of(model.params.begin(), model.params.end(), is_left)) return;
  const std::vector<bool> used = params_with_gradient(model);
  for (std::size_t p = 0; p < managed.size(); ++p) {
    const ParamInfo& info = model.params[p];
    if (managed[p] || !used[p] || info.shares.valid() || !trainable[p] || numel_of(info.shape) <= 0) continue;
    LocalParam local{numel_of(info.shape), numel_of(info.shape) * itemsize(info.dtype), info.dtype, -1, ParamId(p)};
    if (info.shape.size() > 1) {
      local.rows = local.numel / info.shape.back();
      local.columns = local.numel / info.shape[info.shape.size() - 2];
    }
    all.push_back(local);
  }
}

}  // namespace

std::vector<LocalParam> local_params(const Plan& plan, const Model& model, const Job& job) {
  std::vector<LocalParam> all;
  all.reserve(plan.param_names.size());
  const std::int64_t rank = rank_in_group(plan);
  std::int32_t at = -1;
  // Not a part of it, nor a stretch of a flat parameter: the optimizer sees its dimensions.
  const bool views =
      plan.runtime == Runtime::Fsdp1 && job.fsdp.strategy == Strategy::NoShard && job.fsdp.use_orig_params;
  const bool whole = plan.runtime == Runtime::None || views;
  const auto add = [&](ParamId id, Numel numel, DType dtype) {
    if (numel <= 0) return;
    const MeshPart& part = model.params[id.index()].part;
    LocalParam local{numel, numel * itemsize(dtype), dtype, at, id, part.dimension, part.dim >= 0};
    const Shape& shape = model.params[id.index()].shape;
    if (whole && shape.size() > 1) {
      local.rows = numel / shape.back();
      local.columns = numel / shape[shape.size() - 2];
    }
    // SGD keeps the first gradient as it lies: of all rows of a table that ranks have parts of.
    const bool as_it_lies =
        part.gradient == MeshPart::Gradient::Whole && job.train.optimizer.name == OptimizerKind::Sgd;
    if (whole && !views && as_it_lies) local.momentum = local.bytes / shape.front() * part.whole;
    all.push_back(local);
  };
  const std::vector<bool> unused = without_gradient(plan, model), reached = units_with_gradient(plan);
  const std::vector<bool> trainable = trainable_params(model, job);
  const auto trains = [&](ParamId id) { return trainable[id.index()] && (unused.empty() || !unused[id.index()]); };
  for (const PlanUnit& unit : plan.units) {
    ++at;
    if (!unit.requires_grad || !reached[static_cast<std::size_t>(at)]) continue;
    if (!unit.sharded.empty()) {  // F2-1
      for (const ShardedParam& param : unit.sharded) {
        if (trains(param.param)) add(param.param, numel_of(param.local_shape), unit.orig_dtype);
      }
    } else if (plan.runtime == Runtime::Fsdp1 && !job.fsdp.use_orig_params) {
      add(unit.params.empty() ? ParamId() : unit.params.front(), unit.shard_numel, unit.orig_dtype);
    } else if (plan.runtime == Runtime::Fsdp1) {  // H6: each parameter's part of this rank's range
      const bool cut = unit.strategy != Strategy::NoShard && unit.shard_size > 1;
      const Numel begin = cut ? rank * unit.shard_numel : 0;
      const Numel end = cut ? begin + unit.shard_numel : unit.flat_numel;
      for (const FlatEntry& entry : unit.flat) {
        if (!entry.param.valid() || !trains(entry.param)) continue;
        add(entry.param, std::min(end, entry.offset + entry.numel) - std::max(begin, entry.offset), unit.orig_dtype);
      }
    } else {
      for (const ParamId param : unit.params) {
        if (trains(param)) add(param, numel_of(model.params[param.index()].shape), unit.orig_dtype);
      }
    }
  }
  add_unmanaged(plan, model, trainable, all);
  // model.parameters(): registration order; a flat parameter stands where its module does, before what is inside.
  const bool flat = plan.runtime == Runtime::Fsdp1 && !job.fsdp.use_orig_params;
  if (!flat) sort_by_param(all);
  return all;
}

// ------------------------------------------------------------------------------------------------ clip and step

void list_call(Device& device, Stream stream, const ActivitySpan& what, int passes,
               const std::vector<LocalParam>& list) {
  std::int64_t blocks = 0;
  Bytes bytes = 0;
  for (const LocalParam& param : list) {
    blocks += ceil_div(param.numel, kListChunk);
    bytes += param.bytes;
  }
  const std::int64_t launches = std::max<std::int64_t>(1, ceil_div(blocks, kMaxBlocks));
  device.launch(stream, device.cost.op_ns() + launches * device.cost.launch_ns(),
                device.cost.list(bytes * passes, launches), what);
}

bool OptimizerState::temporaries(Device& device, std::vector<BlockHandle>& blocks) {
  for (const LocalParam& param : params_) {
    const BlockHandle block = device.book.allocate(param.bytes, pool(), MemoryCategory::Temporaries);
    if (block == kNoBlock) return false;
    blocks.push_back(block);
  }
  return true;
}

void OptimizerState::scalar_calls(Device& device, const ActivitySpan& what, int count) {
  for (int call = 0; call < count; ++call) {
    device.launch(stream_, device.cost.op_ns() + device.cost.launch_ns(), device.cost.copy(0, DType::Float32), what);
  }
}

bool OptimizerState::scale_loss(Device& device, const ActivitySpan& what) {
  if (!has_scale_) {  // the scale, and how many good steps there were
    for (int i = 0; i < 2; ++i) {
      if (device.book.allocate(4, pool(), MemoryCategory::OptimizerState) == kNoBlock) return false;
    }
    scalar_calls(device, what, 2);
    has_scale_ = true;
  }
  scalar_calls(device, what, 2);  // of the loss, and of its gradient
  return true;
}

bool OptimizerState::unscale(Device& device, const ActivitySpan& what, bool on_host) {
  found_inf_ = device.book.allocate(4, pool(), MemoryCategory::Temporaries);
  if (found_inf_ == kNoBlock) return false;
  scalar_calls(device, what, 4);  // zero; the reciprocal, in double
  if (!on_host) {
    if (!params_.empty()) foreach_call(device, what, 2);
    return true;
  }
  for (int copy = 0; copy < 2; ++copy) {  // the reciprocal and the zero go to the host, which works with them
    device.launch(stream_, device.cost.op_ns() + device.cost.launch_ns(), device.cost.transfer(4), what);
  }
  device.clock.stream_synchronize(pool());
  host_pass(device, 2);
  return true;
}

void OptimizerState::host_pass(Device& device, int passes) {
  Bytes bytes = 0;
  for (const LocalParam& param : params_) bytes += param.bytes;
  device.clock.host_cost(device.cost.host_pass(passes * bytes));
}

void OptimizerState::update_scale(Device& device, const ActivitySpan& what) {
  scalar_calls(device, what, 1);
  if (found_inf_ != kNoBlock) device.book.free(std::exchange(found_inf_, kNoBlock));
}

bool OptimizerState::make_state(Device& device, const ActivitySpan& what) {
  const OptimizerOptions& options = options_;
  const OptimizerFacts facts = optimizer_facts(options);
  const auto moments = static_cast<int>(facts.states.size());
  const bool step_on_device = !facts.scalars.empty() && options.impl == OptimizerImpl::Fused;
  for (const LocalParam& param : params_) {
    if (step_on_device && device.book.allocate(4, pool(), MemoryCategory::OptimizerState) == kNoBlock) return false;
    if (step_on_device) {
      device.launch(stream_, device.cost.op_ns() + device.cost.launch_ns(), device.cost.fill(4), what);
    }
    const bool narrow = options.name == OptimizerKind::AdamW8bit;
    if (narrow ? !make_byte_moments(device, param, what) : !make_moments(device, param, moments, what)) return false;
  }
  has_state_ = true;
  return true;
}

/// torchao's OptimState8bit: a byte an element, a scale for every 256 of them, a table; small and odd tensors stay
/// wide.
bool OptimizerState::make_byte_moments(Device& device, const LocalParam& param, const ActivitySpan& what) {
  constexpr Numel kBlock = 256, kLeast = 4096;
  if (param.numel < kLeast || param.numel % kBlock != 0) return make_moments(device, param, 2, what);
  device.book.set_unit(param.unit);
  for (int moment = 0; moment < 2; ++moment) {
    for (const Bytes bytes : {param.numel, param.numel / kBlock * 4, kBlock * 4}) {
      if (device.book.allocate(bytes, pool(), MemoryCategory::OptimizerState) == kNoBlock) return false;
      device.launch(stream_, device.cost.op_ns() + device.cost.launch_ns(), device.cost.fill(bytes), what);
    }
  }
  device.book.set_unit(-1);
  return true;
}

bool OptimizerState::make_moments(Device& device, const LocalParam& param, int count, const ActivitySpan& what) {
  device.book.set_unit(param.unit);
  for (int i = 0; i < count; ++i) {
    const Bytes bytes = std::max(param.bytes, param.momentum);
    if (device.book.allocate(bytes, pool(), MemoryCategory::OptimizerState) == kNoBlock) return false;
    device.launch(stream_, device.cost.op_ns() + device.cost.launch_ns(), device.cost.fill(bytes), what);
  }
  device.book.set_unit(-1);
  return true;
}

/// One compiled kernel for each parameter: reads it, its gradient and its moments, writes all but the gradient.
bool OptimizerState::byte_adamw(Device& device, const ActivitySpan& what) {
  for (const LocalParam& param : params_) {
    device.launch(stream_, device.cost.op_ns() + device.cost.launch_ns(),
                  device.cost.copy(3 * param.bytes + 4 * param.numel, param.dtype), what);
  }
  return true;
}

bool OptimizerState::adamw(Device& device, const ActivitySpan& what) {
  const OptimizerImpl impl = options_.impl;
  if (impl == OptimizerImpl::Fused) {
    foreach_call(device, what, 1);  // the steps
    foreach_call(device, what, 7);  // reads parameter, gradient, two moments; writes three of them
    return true;
  }
  std::vector<BlockHandle> roots;
  if (impl == OptimizerImpl::Foreach) {
    // decay, lerp, scale and add the squares; then the root of the second moment is a copy of every parameter.
    for (const int passes : {2, 3, 2, 3}) foreach_call(device, what, passes);
    if (!temporaries(device, roots)) return false;
    for (const int passes : {2, 2, 2, 4}) foreach_call(device, what, passes);
    free_list(device, roots);
    return true;
  }
  BlockHandle last = kNoBlock;  // the loop's variable still names the parameter before
  for (const LocalParam& param : params_) {
    const BlockHandle root = device.book.allocate(param.bytes, pool(), MemoryCategory::Temporaries);
    if (root == kNoBlock) return false;
    const BlockHandle scaled = device.book.allocate(param.bytes, pool(), MemoryCategory::Temporaries);
    if (scaled == kNoBlock) return false;
    device.book.free(root);
    device.book.free(std::exchange(last, scaled));
    for (const int passes : {2, 3, 2, 3, 2, 2, 2, 4}) {
      device.launch(stream_, device.cost.op_ns() + device.cost.launch_ns(),
                    device.cost.copy(param.bytes * passes, param.dtype), what);
    }
  }
  device.book.free(last);
  return true;
}

void free_list(Device& device, const std::vector<BlockHandle>& blocks) {
  for (std::size_t k = blocks.size(); k-- > 0;) device.book.free(blocks[k]);
}

/// Momentum buffers are copies of the first decayed gradients, so these come first.
bool OptimizerState::sgd(Device& device, const ActivitySpan& what) {
  const OptimizerOptions& options = options_;
  if (options.impl == OptimizerImpl::ForLoop) return looped_sgd(device, what);
  const bool decays = options.weight_decay != 0;
  std::vector<BlockHandle> decayed;
  if (decays && options.impl != OptimizerImpl::Fused) {  // grad + decay * param is a new tensor
    if (!temporaries(device, decayed)) return false;
    foreach_call(device, what, 3);
  }
  if (!has_state_ && !make_state(device, what)) return false;
  if (options.momentum != 0) foreach_call(device, what, 3);
  if (options.momentum != 0) free_list(device, std::exchange(decayed, {}));
  foreach_call(device, what, 3);
  free_list(device, decayed);
  return true;
}

/// A parameter's decayed gradient goes before the next one's is made.
bool OptimizerState::looped_sgd(Device& device, const ActivitySpan& what) {
  const OptimizerOptions& options = options_;
  const auto call = [&](const LocalParam& param, int passes) {
    device.launch(stream_, device.cost.op_ns() + device.cost.launch_ns(),
                  device.cost.copy(param.bytes * passes, param.dtype), what);
  };
  for (const LocalParam& param : params_) {
    BlockHandle decayed = kNoBlock;
    if (options.weight_decay != 0) {
      decayed = device.book.allocate(param.bytes, pool(), MemoryCategory::Temporaries);
      if (decayed == kNoBlock) return false;
      call(param, 3);
    }
    if (options.momentum != 0) {
      if (!has_state_ && !make_moments(device, param, 1, what)) return false;
      if (has_state_) call(param, 3);
      if (has_state_) call(param, 3);
    }
    call(param, 3);
    if (decayed != kNoBlock) device.book.free(decayed);
  }
  has_state_ = true;
  return true;
}

void OptimizerState::zero(Device& device, const ActivitySpan& what) {
  if (options_.impl != OptimizerImpl::ForLoop) {
    if (!params_.empty()) foreach_call(device, what, 1);
    return;
  }
  for (const LocalParam& param : params_)
    device.launch(stream_, device.cost.op_ns() + device.cost.launch_ns(), device.cost.fill(param.bytes), what);
}

/// FSDP1's parameters of a unit lie side by side in its shard.
std::vector<LocalParam> OptimizerState::taken_at_once() const {
  std::vector<LocalParam> blocks;
  for (const LocalParam& param : params_) {
    const bool joins = flat_ && !blocks.empty() && blocks.back().unit == param.unit;
    if (!joins) {
      blocks.push_back(param);
      continue;
    }
    blocks.back().numel += param.numel;
    blocks.back().bytes += param.bytes;
  }
  return blocks;
}

namespace {

/// What one block's step takes in the executor's loop (exec/step).
struct HostStep {
  int passes = 0;       // reads and writes of a tensor of its size
  int temporaries = 0;  // at once
};

HostStep host_step(const OptimizerOptions& options, std::int64_t step) {
  const bool fused = options.impl == OptimizerImpl::Fused;
  if (options.name == OptimizerKind::AdamW) return {20, 1};  // the root of the second moment
  if (options.name == OptimizerKind::Adagrad && fused) return {5, 0};
  if (!is_other_elementwise(options.name))
    return {options.momentum != 0 ? 6 : 3, options.weight_decay != 0 ? 1 : 0};  // grad + decay * param
  HostStep taken;
  const bool lists = options.impl != OptimizerImpl::ForLoop;
  const std::vector<StepCall> calls = step_calls(options, lists, step);
  std::set<int> named;
  for (const StepCall& call : calls) {
    taken.passes += call.passes;
    if (call.makes != StepCall::kNone) named.insert(call.makes);
    taken.temporaries = std::max(taken.temporaries, static_cast<int>(named.size()));
    for (const int variable : call.drops) named.erase(variable);
  }
  if (lists) return taken;
  // The executor goes on in place where PyTorch's expressions take tensors.
  const bool adapts = options.name == OptimizerKind::RAdam && averaged_length(options.beta2, step) > 5;
  taken.temporaries = (decays_gradients(options) ? 1 : 0) + (adapts ? 2 : 1);
  return taken;
}

}  // namespace

/// Our executor's loop on a host, whatever train.optimizer.impl says short of "fused": a block's temporary is gone
/// before the next one's comes.
bool OptimizerState::step_by_blocks(Device& device, const ActivitySpan& what) {
  const OptimizerOptions& options = options_;
  const HostStep step = host_step(options, steps_);
  for (const LocalParam& block : taken_at_once()) {
    std::vector<BlockHandle> held;
    for (int k = 0; k < step.temporaries; ++k) {
      held.push_back(device.book.allocate(block.bytes, pool(), MemoryCategory::Temporaries));
      if (held.back() == kNoBlock) return false;
    }
    device.launch(stream_, device.cost.op_ns() + device.cost.launch_ns(),
                  device.cost.copy(block.bytes * step.passes, block.dtype), what);
    free_list(device, held);
  }
  return true;
}

bool OptimizerState::measured_step(Device& device, const ActivitySpan& what, bool on_host) {
  if (!on_host && !has_state_ && !make_state(device, what)) return false;
  const bool adam = options_.name == OptimizerKind::AdamW;
  const bool other = is_other_elementwise(options_.name);
  const HostStep own = host_step(options_, steps_);
  const bool roots = !on_host && (adam || other) && options_.impl != OptimizerImpl::Fused;
  SimDuration time = 0;
  for (const LocalParam& block : taken_at_once()) {
    const SimDuration known = device.cost.work().of(adam || other ? TensorWork::AdamW : TensorWork::Sgd, block.bytes);
    // Nobody has measured these: as AdamW's, by what they read and write.
    time += other ? known * own.passes / host_step({}, steps_).passes : known;
    std::vector<BlockHandle> held;
    for (int k = 0; roots && k < own.temporaries; ++k) {
      held.push_back(device.book.allocate(block.bytes, pool(), MemoryCategory::Temporaries));
      if (held.back() == kNoBlock) return false;
    }
    free_list(device, held);
  }
  if (on_host)
    device.clock.host_cost(device.cost.launch_ns() + time);
  else
    device.launch(stream_, device.cost.launch_ns(), time, what);
  return true;
}

bool OptimizerState::measured_clip(Device& device, bool norms, bool scales, const ActivitySpan& what) {
  constexpr int kScalarCalls = 5;  // sum, root, add, reciprocal, clamp
  const WorkTimes& work = device.cost.work();
  SimDuration measured = 0, scaled = kScalarCalls * work.of(TensorWork::Scale, 4);
  for (const LocalParam& block : taken_at_once()) {
    measured += work.of(TensorWork::Norm, block.bytes);
    scaled += work.of(TensorWork::Scale, block.bytes);
  }
  if (norms) device.launch(stream_, device.cost.launch_ns(), measured, what);
  if (scales) device.launch(stream_, device.cost.launch_ns(), scaled, what);
  return true;
}

bool OptimizerState::step(Device& device, const ActivitySpan& what, bool on_host) {
  if (params_.empty()) return true;
  ++steps_;
  const bool measured = device.cost.work().measured() && options_.name != OptimizerKind::Adafactor &&
                        options_.name != OptimizerKind::Watched;
  if (measured) return measured_step(device, what, on_host);
  if (on_host) {  // C6: the parameters live on the host, and so does the step
    host_pass(device, 7);
    return true;
  }
  const bool by_blocks = device.profile.kind == "cpu" && options_.impl != OptimizerImpl::Fused;
  if (options_.name == OptimizerKind::Watched) return watched_step(device, what);
  if (options_.name == OptimizerKind::Adafactor) return adafactor(device, what);
  if (!by_blocks && options_.name == OptimizerKind::Sgd) return sgd(device, what);
  if (!has_state_ && !make_state(device, what)) return false;
  if (options_.name == OptimizerKind::AdamW8bit) return byte_adamw(device, what);
  if (by_blocks) return step_by_blocks(device, what);
  if (!is_other_elementwise(options_.name)) return adamw(device, what);
  if (options_.impl == OptimizerImpl::Fused) {  // Adagrad's: reads parameter, gradient and sum, writes two of them
    for (const int passes : {1, 5}) foreach_call(device, what, passes);
    return true;
  }
  const bool lists = options_.impl == OptimizerImpl::Foreach;
  return play_step_calls(device, stream_, what, params_, step_calls(options_, lists, steps_), lists);
}

std::vector<LocalParam> params_beside_muon(const Model& model, std::vector<LocalParam> params) {
  std::erase_if(params, [&](const LocalParam& p) { return is_block_matrix(model, p.param); });
  return params;
}

bool StepsInBackward::step(Device& device, const ActivitySpan& what, ParamId param, Stream stream, bool on_host) {
  auto known = optimizers_.find(param);
  if (known == optimizers_.end()) {
    const auto at = std::find_if(params_.begin(), params_.end(), [&](const LocalParam& p) { return p.param == param; });
    if (at == params_.end()) return true;  // no elements on this rank
    known = optimizers_.emplace(param, OptimizerState(job_, {*at}, nullptr, stream)).first;
  }
  return known->second.step(device, what, on_host);
}

}  // namespace foreshard
