// clip_grad_norm_ on the device: the norms of all gradients, what completes them, one factor for all (G9, F2-29).
#include <algorithm>
#include <map>
#include <utility>

#include "core/lowering/lowering_autograd.h"
#include "sim/play/resident_state.h"

namespace foreshard {
namespace {

bool shards_parameters(const Plan& plan) {
  return std::any_of(plan.units.begin(), plan.units.end(),
                     [](const PlanUnit& unit) { return unit.strategy != Strategy::NoShard && unit.shard_size > 1; });
}

/// Whether gradients are DTensors over a dimension of data, whose norms are partial sums.
bool has_partial_norms(const Plan& plan) {
  return plan.runtime != Runtime::None && plan.runtime != Runtime::Fsdp1 && plan.groups.shard.size() > 1;
}

}  // namespace

bool OptimizerState::clip(Device& device, const Plan& plan, const Instruction& i, const ActivitySpan& what) {
  if (params_.empty()) return true;
  const bool norms = plan.runtime != Runtime::Fsdp1 || i.arg == 0;  // FSDP1 has a reduction between both parts
  const bool scales = plan.runtime != Runtime::Fsdp1 || i.arg == 1;
  if (device.cost.work().measured()) return measured_clip(device, norms, scales, what);
  if (plan.runtime != Runtime::Fsdp1) return clip_lists(device, plan, what);
  if (norms && !copy_zero(device, what)) return false;
  // Where nothing is sharded it hands all over to torch.nn.utils (FullyShardedDataParallel.clip_grad_norm_), which
  // stays where the gradients are.
  const bool shards = shards_parameters(plan);
  if (i.on_host && shards) return clip_on_host(device, norms, what);
  if (i.on_host) return host_pass(device, 1), true;
  if (!shards) return !norms || clip_lists(device, plan, what);
  return (!norms || norms_one_by_one(device, what)) && (!scales || scale_one_by_one(device, what));
}

/// The root keeps a zero for norms of nothing: made on the host at the first clip and copied over, which blocks.
bool OptimizerState::copy_zero(Device& device, const ActivitySpan& what) {
  if (std::exchange(has_zero_, true)) return true;
  if (device.book.allocate(4, pool(), MemoryCategory::OptimizerState) == kNoBlock) return false;
  device.launch(stream_, device.cost.launch_ns(), device.cost.transfer(4), what);
  device.clock.stream_synchronize(pool());
  device.clock.host_cost(device.cost.call_ns());
  return true;
}

/// The norm goes to the device, which sums it with the other ranks', and comes back.
bool OptimizerState::clip_on_host(Device& device, bool norms, const ActivitySpan& what) {
  if (norms) host_pass(device, 1);
  const BlockHandle norm = norms ? device.book.allocate(4, pool(), MemoryCategory::Temporaries) : kNoBlock;
  if (norms && norm == kNoBlock) return false;
  if (!norms && !short_lived_numbers(device, 1, what)) return false;  // root
  device.launch(stream_, device.cost.launch_ns(), device.cost.transfer(4), what);
  device.clock.stream_synchronize(pool());
  const bool room = !norms || short_lived_numbers(device, 1, what);  // power
  device.book.free(norm);
  if (!norms) host_pass(device, 1);
  return room;
}

bool OptimizerState::norms_one_by_one(Device& device, const ActivitySpan& what) {
  std::vector<BlockHandle> norms;
  for (const LocalParam& param : params_) {
    const NormBlock norm = norm_of(device, pool(), param.numel, param.dtype);
    if (norm.block == kNoBlock) return false;
    norms.push_back(norm.block);
    if (norm.split) device.launch(stream_, device.cost.launch_ns(), device.cost.clear(4), what);
    device.launch(stream_, device.cost.op_ns() + device.cost.launch_ns(),
                  device.cost.copy(param.bytes / 8, param.dtype), what);
  }
  const bool room = short_lived_numbers(device, 3, what);  // stack, norm, power
  free_list(device, norms);
  return room;
}

bool OptimizerState::scale_one_by_one(Device& device, const ActivitySpan& what) {
  if (!short_lived_numbers(device, 5, what)) return false;  // root, add, reciprocal, multiply, clamp
  for (const LocalParam& param : params_) {
    // The factor in the gradient's type.
    if (param.dtype != DType::Float32 && !short_lived_numbers(device, 1, what)) return false;
    device.launch(stream_, device.cost.op_ns() + device.cost.launch_ns(), device.cost.scaled(param.bytes, param.dtype),
                  what);
  }
  return true;
}

bool OptimizerState::short_lived_numbers(Device& device, int count, const ActivitySpan& what) {
  for (int k = 0; k < count; ++k) {
    const BlockHandle number = device.book.allocate(4, pool(), MemoryCategory::Temporaries);
    if (number == kNoBlock) return false;
    scalar_calls(device, what, 1);
    device.book.free(number);
  }
  return true;
}

std::optional<bool> reduction_splits(Device& device, int pool, const Layout& input, std::int32_t dim) {
  const auto split =
      lowering::reduce_workspace("aten.linalg_vector_norm.default", input, {dim}, device.profile.sm_count);
  if (split.buffer == 0) return false;
  const BlockHandle buffer = device.book.allocate(split.buffer, pool, MemoryCategory::Temporaries);
  if (buffer == kNoBlock) return std::nullopt;
  const BlockHandle semaphores = device.book.allocate(split.semaphores, pool, MemoryCategory::Temporaries);
  if (semaphores == kNoBlock) return std::nullopt;
  device.book.free(semaphores);
  device.book.free(buffer);
  return true;
}

NormBlock norm_of(Device& device, int pool, Numel numel, DType dtype) {
  NormBlock norm;
  norm.block = device.book.allocate(4, pool, MemoryCategory::Temporaries);
  if (norm.block == kNoBlock) return norm;
  const std::optional<bool> split = reduction_splits(device, pool, contiguous_layout({numel}, dtype), 0);
  if (!split) return {};
  norm.split = *split;
  return norm;
}

bool OptimizerState::clip_lists(Device& device, const Plan& plan, const ActivitySpan& what) {
  // Parameters of one mesh have a norm together (fsdp.allow_traps lists kMixedMeshes where there are several).
  std::map<std::int32_t, std::vector<LocalParam>> meshes;
  for (const LocalParam& param : params_) meshes[param.mesh].push_back(param);
  std::vector<BlockHandle> kept;
  const auto scalar = [&](int count = 1) {
    for (int k = 0; k < count; ++k) {
      kept.push_back(device.book.allocate(4, pool(), MemoryCategory::Temporaries));
      if (kept.back() == kNoBlock) return false;
    }
    scalar_calls(device, what, count);
    return true;
  };
  for (const auto& [mesh, params] : meshes) {
    if (!list_norm(device, plan, params, what) || !scalar()) return false;
  }
  if (meshes.size() > 1 && !scalar(static_cast<int>(meshes.size()) + 3)) return false;  // squares, stack, sum, root
  const std::size_t total = kept.size();
  if (!scalar(3)) return false;  // total + 1e-6, its reciprocal, times the limit
  device.book.free(kept[total]);
  device.book.free(kept[total + 1]);
  kept.erase(kept.begin() + static_cast<std::ptrdiff_t>(total), kept.begin() + static_cast<std::ptrdiff_t>(total + 2));
  if (!scalar()) return false;  // at most 1
  foreach_call(device, what, 2);
  for (const BlockHandle block : kept) device.book.free(block);
  return true;
}

bool OptimizerState::list_norm(Device& device, const Plan& plan, const std::vector<LocalParam>& params,
                               const ActivitySpan& what) {
  bool room = true;
  const auto block_of = [&](std::size_t elements) {
    const Bytes bytes = static_cast<Bytes>(elements) * itemsize(DType::Float32);
    const BlockHandle block = device.book.allocate(bytes, pool(), MemoryCategory::Temporaries);
    room = room && block != kNoBlock;
    return block;
  };
  const auto let_go = [&](std::vector<BlockHandle>& blocks) {
    for (; !blocks.empty(); blocks.pop_back()) device.book.free(blocks.back());
  };
  std::int64_t chunks = 1;
  for (const LocalParam& param : params) chunks = std::max(chunks, ceil_div(param.numel, kListChunk));
  std::vector<BlockHandle> partial{block_of(params.size() * static_cast<std::size_t>(chunks))};
  std::vector<BlockHandle> norms, shares;
  for (std::size_t i = 0; i < params.size() && room; ++i) norms.push_back(block_of(1));
  if (!room) return false;
  scalar_calls(device, what, 2);  // what is summed into is cleared; sums of chunks
  foreach_call(device, what, 1);
  let_go(partial);
  // What every rank of the mesh has becomes a share of the norm, as the others' norms are.
  const bool cut = std::any_of(params.begin(), params.end(), [](const LocalParam& param) { return param.cut; });
  for (const LocalParam& param : params) {
    if (cut && !param.cut && room) shares.push_back(block_of(1));
  }
  scalar_calls(device, what, static_cast<int>(shares.size()) + 1);
  const BlockHandle stacked = block_of(params.size());
  let_go(shares);
  BlockHandle whole = kNoBlock;
  const int dimensions = cut && flattened_ ? 1 : (has_partial_norms(plan) ? 1 : 0) + (cut ? 1 : 0);
  for (int d = 0; d < dimensions && room; ++d) {  // powers, a copy that is reduced in place, the root
    std::vector<BlockHandle> sent{block_of(params.size()), block_of(params.size())};
    const BlockHandle root = block_of(params.size());
    scalar_calls(device, what, 3);
    if (!room) return false;
    std::reverse(sent.begin(), sent.end());
    let_go(sent);
    if (whole != kNoBlock) device.book.free(whole);
    whole = root;
  }
  if (!room) return false;
  if (whole != kNoBlock) device.book.free(whole);
  device.book.free(stacked);
  let_go(norms);
  return true;
}

}  // namespace foreshard
