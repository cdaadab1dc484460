#include "sim/play/cut_on_device.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "core/model/mesh_dimension.h"
#include "core/model/module_kind.h"
#include "core/model/untied.h"
#include "sim/play/resident_state.h"

namespace foreshard {
namespace {

constexpr int kCutting = static_cast<int>(Stream::D);

/// distribute_tensor (Shard._shard_tensor): a rank's part is a tensor that is scattered to. What the first rank of the
/// dimension has of the others' lies side by side where the first dimension is cut evenly, else it is copied, and
/// padded. kNoBlock: out of memory.
BlockHandle cut_part(Device& device, const Model& model, const ParamInfo& param) {
  const auto ranks = static_cast<std::int64_t>(model.mesh[static_cast<std::size_t>(param.part.dimension)].ranks.size());
  Shape padded = param.shape;
  padded[static_cast<std::size_t>(param.part.dim)] = ceil_div(param.part.whole, ranks);
  const Bytes bytes = numel_of(padded) * itemsize(param.dtype);
  std::vector<BlockHandle> others;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    const std::int64_t left = param.part.whole - rank * padded[static_cast<std::size_t>(param.part.dim)];
    if (param.part.dim == 0 && left >= padded.front()) continue;  // a view
    others.push_back(device.book.allocate(bytes, kCutting, MemoryCategory::Temporaries));
    if (others.back() == kNoBlock) return kNoBlock;
  }
  BlockHandle part = device.book.allocate(bytes, kCutting, MemoryCategory::FullParams);
  free_list(device, others);
  if (part == kNoBlock || param.part.dim == 0 || padded == param.shape) return part;
  const BlockHandle own =
      device.book.allocate(numel_of(param.shape) * itemsize(param.dtype), kCutting, MemoryCategory::FullParams);
  device.book.free(part);
  return own;
}

/// Scripts cut the layers around their blocks first, with the model at hand, then block by block, or the other way
/// round. (tensor_plan.py tells which by the same stacks.)
std::vector<ModuleId> cutting_order(const Model& model, const Job& job) {
  const auto in_block = [&](const ModuleInfo& module) {
    for (ModuleId at = module.parent; at.valid(); at = model.modules[at.index()].parent)
      if (is_stack(model, at)) return true;
    return false;
  };
  std::vector<ModuleId> order;
  const bool blocks_first = job.cluster.init == "device_blocks_first";
  for (const bool blocks : {blocks_first, !blocks_first}) {
    for (std::size_t m = 0; m < model.modules.size(); ++m)
      if (in_block(model.modules[m]) == blocks) order.push_back(ModuleId(m));
  }
  return order;
}

}  // namespace

bool makes_whole(const Job& job) { return job.cluster.init.starts_with("device"); }

bool is_made_before(const Job& job) { return makes_whole(job) || job.cluster.init == "parts"; }

Bytes param_bytes(const Model& model, ParamId id) {
  const ParamInfo& param = model.params[id.index()];
  return numel_of(param.shape) * itemsize(param.dtype);
}

Bytes made_bytes(const Model& model, ParamId id, const Job& job) {
  const ParamInfo& param = model.params[id.index()];
  return makes_whole(job) ? numel_of(whole_shape(param)) * itemsize(param.dtype) : param_bytes(model, id);
}

std::vector<ParamId> untied_from(const Model& model) {
  std::vector<ParamId> from(model.params.size());
  const auto place_of = [&](std::string_view name) {
    const auto at = std::find_if(model.params.begin(), model.params.end(),
                                 [&](const ParamInfo& param) { return param.fqn == name; });
    return static_cast<std::size_t>(at - model.params.begin());
  };
  for (const ParallelStyle& row : model.parallel) {
    if (!row.style.starts_with(kUntied)) continue;
    const std::size_t untied = place_of(row.modules), owner = place_of(row.style.substr(kUntied.size()));
    if (untied < from.size() && owner < from.size()) from[untied] = ParamId(owner);
  }
  return from;
}

bool is_tied_later(const Model& model, ParamId id, const Job& job) {
  const ParamInfo& param = model.params[id.index()];
  return param.shares.valid() && param.part.dim >= 0 && job.fsdp.tied.contains(param.fqn);
}

bool cut_whole(Device& device, const Model& model, const Job& job, const std::vector<ParamId>& untied,
               std::vector<BlockHandle>& full) {
  std::vector<int> users(full.size(), 1);
  for (const ParamId owner : untied)
    if (owner.valid()) ++users[owner.index()];
  std::vector<BlockHandle> whole = full, replaced;
  for (const ModuleId of : cutting_order(model, job)) {
    const ModuleInfo& module = model.modules[of.index()];
    std::vector<std::size_t> cut;
    for (const ParamId id : module.params) {
      const ParamInfo& param = model.params[id.index()];
      const std::size_t from = untied[id.index()].valid() ? untied[id.index()].index() : id.index();
      const bool tied_later = is_tied_later(model, id, job);
      if ((param.shares.valid() && !tied_later) || (param.part.dim < 0 && from == id.index())) continue;
      const bool takes_over = param.part.dim < 0 && model.params[from].part.dim >= 0;  // the one that is cut leaves it
      if (takes_over) {
        full[id.index()] = whole[from];
        continue;
      }
      full[id.index()] = param.part.dim >= 0
                             ? cut_part(device, model, param)
                             : device.book.allocate(param_bytes(model, id), kCutting, MemoryCategory::FullParams);
      if (full[id.index()] == kNoBlock) return false;
      cut.push_back(from);
      if (tied_later) replaced.push_back(std::exchange(full[id.index()], kNoBlock));
    }
    for (const std::size_t from : cut)
      if (--users[from] == 0) device.book.free(whole[from]);
  }
  for (const BlockHandle part : replaced) device.book.free(part);
  return true;
}

bool cut_on_the_way(Device& device, const Model& model, const Job& job, std::vector<BlockHandle>& parts) {
  for (const ModuleId module : cutting_order(model, job)) {
    for (const ParamId id : model.modules[module.index()].params) {
      const ParamInfo& param = model.params[id.index()];
      if (param.shares.valid() || param.part.dim < 0) continue;
      const Bytes bytes = numel_of(whole_shape(param)) * itemsize(param.dtype);
      const BlockHandle whole = device.book.allocate(bytes, kCutting, MemoryCategory::Temporaries);
      if (whole == kNoBlock) return false;
      parts[id.index()] = cut_part(device, model, param);
      if (parts[id.index()] == kNoBlock) return false;
      device.book.free(whole);
    }
  }
  return true;
}

}  // namespace foreshard
