#include "exec/actions/action_memory.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "exec/torch/torch_types.h"

namespace foreshard::exec {

void ActionMemory::make_state(bool optimizer) {
  for (std::size_t u = 0; u < context_.units().size(); ++u) make_shards(UnitId(u));
  for (std::size_t p = 0; p < context_.model().params.size(); ++p) {
    const ParamInfo& param = context_.model().params[p];
    const ActionBuffer home = context_.home_of(ParamId(p));
    if (param.shares.valid() || home.name.what != BufferWhat::Param || context_.has(home.name)) continue;
    context_.buffers.allocate_zero({home.name, 0, false}, numel_of(param.shape), param.dtype);
  }
  for (std::size_t b = 0; b < context_.model().buffers.size(); ++b) {
    const BufferInfo& buffer = context_.model().buffers[b];
    make_module_buffer({{BufferWhat::ModuleBuffer, {}, {}}, static_cast<std::int32_t>(b), false},
                       numel_of(buffer.shape), buffer.dtype);
  }
  if (optimizer) context_.optimizer.make_state();
  context_.settle();
}

void ActionMemory::set_state(const TrainState& state) {
  for (std::size_t u = 0; u < context_.units().size(); ++u) make_shards(UnitId(u));
  const bool moments = std::ranges::any_of(state.tensors, [this](const StateTensor& t) { return instance(t) > 0; });
  if (moments) context_.optimizer.make_state();
  context_.settle();
  for (const StateTensor& tensor : state.tensors) {
    if (tensor.slot == "buffer" || tensor.pieces.empty()) continue;
    for (const auto& [from, to] : pairs(tensor, context_.setup.source.model.find_param(tensor.fqn))) to.copy_(from);
  }
}

TrainState ActionMemory::state() const {
  TrainState state;
  std::vector<std::string> slots{"param"};
  slots.insert(slots.end(), context_.optimizer.slots().begin(), context_.optimizer.slots().end());
  for (std::size_t p = 0; p < context_.model().params.size(); ++p) {
    const ParamInfo& info = context_.model().params[p];
    if (info.shares.valid()) continue;
    for (const std::string& slot : slots) {
      StateTensor tensor{
          info.fqn, slot, context_.layout.whole_shape(ParamId(p)), {}, context_.layout.pieces(ParamId(p))};
      if (instance(tensor) > 0 && !context_.buffers.has(context_.optimizer.home(ParamId(p), instance(tensor))))
        continue;
      Numel numel = 0;
      for (const StatePiece& piece : tensor.pieces) numel += piece.numel;
      tensor.local = at::empty({numel}, at::dtype(scalar_type_of(info.dtype)));
      for (const auto& [to, from] : pairs(tensor, ParamId(p))) to.copy_(from);
      state.tensors.push_back(std::move(tensor));
    }
  }
  return state;
}

void ActionMemory::allocate(const Instruction& i) {
  const bool on_host = i.stream == Stream::Host;
  const ActionBuffer key{i.buffer, i.arg, on_host};
  if (i.buffer.what == BufferWhat::ModuleBuffer) return make_module_buffer(key, i.numel, i.dtype);
  context_.buffers.allocate(key, i.numel, i.dtype, context_.id);
  // A module that exists before it is wrapped has its values; those of meta modules come by reset_parameters.
  const bool made = context_.setup.source.job.cluster.init != "meta";
  const bool unmanaged = context_.setup.plan.runtime == Runtime::None ||
                         (i.buffer.param.valid() && !context_.layout.place(i.buffer.param).unit.valid());
  if (i.buffer.what == BufferWhat::Param && (made || unmanaged)) context_.fill_param(i.buffer, on_host);
}

void ActionMemory::make_module_buffer(const ActionBuffer& key, Numel numel, DType dtype) {
  context_.buffers.allocate(key, numel, dtype, context_.id);
  context_.work(key.on_host, [this, key, value = context_.setup.buffers.at(static_cast<std::size_t>(key.instance))] {
    context_.buffers.tensor(key).copy_(value.reshape({-1}));
  });
}

void ActionMemory::make_shards(UnitId id) {
  const PlanUnit& unit = context_.units()[id.index()];
  const auto make = [&](BufferName name, Numel numel) {
    if (!context_.has(name)) context_.buffers.allocate_zero({name, 0, false}, numel, unit.orig_dtype);
  };
  for (const ShardedParam& param : unit.sharded) {
    make({BufferWhat::Shard, id, param.param}, numel_of(param.padded_local_shape));
  }
  if (context_.setup.plan.runtime != Runtime::Fsdp1 || unit.params.empty()) return;
  make({BufferWhat::Shard, id, {}}, context_.layout.is_sharded(unit) ? unit.shard_numel : unit.flat_numel);
}

std::int32_t ActionMemory::instance(const StateTensor& tensor) const {
  const auto found = std::ranges::find(context_.optimizer.slots(), tensor.slot);
  return found == context_.optimizer.slots().end()
             ? 0
             : static_cast<std::int32_t>(found - context_.optimizer.slots().begin()) + 1;
}

std::vector<std::pair<at::Tensor, at::Tensor>> ActionMemory::pairs(const StateTensor& tensor, ParamId param) const {
  std::vector<std::pair<at::Tensor, at::Tensor>> views;
  const std::int32_t of = instance(tensor);
  const ActionBuffer place = of > 0 ? context_.optimizer.home(param, of) : context_.home_of(param);
  if (!context_.buffers.has(place)) return views;
  const at::Tensor home = context_.buffers.tensor(place), local = tensor.local.view({-1});
  const std::vector<StatePiece> all =
      of > 0 ? context_.optimizer.pieces_in_home(param) : context_.layout.pieces_in_home(param);
  // Both by offset, a piece a row and more: each is looked at once.
  auto own = all.begin();
  auto piece = tensor.pieces.begin();
  while (own != all.end() && piece != tensor.pieces.end()) {
    const Numel own_end = own->global_offset + own->numel, piece_end = piece->global_offset + piece->numel;
    const Numel from = std::max(own->global_offset, piece->global_offset);
    const Numel numel = std::min(own_end, piece_end) - from;
    if (numel > 0) {
      views.emplace_back(local.narrow(0, piece->local_offset + from - piece->global_offset, numel),
                         home.narrow(0, own->local_offset + from - own->global_offset, numel));
    }
    if (own_end <= piece_end)
      ++own;
    else
      ++piece;
  }
  return views;
}

}  // namespace foreshard::exec
