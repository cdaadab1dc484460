#include "exec/actions/action_state.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "exec/actions/action_runner_layout.h"
#include "exec/torch/torch_types.h"

namespace foreshard::exec {
namespace {

/// Elements of an entry in the flattened whole tensor: all of it, or of the box that the rank holds.
std::vector<StatePiece> pieces_of(const StateEntry& entry) {
  if (!entry.sharded) return {{0, 0, numel_of(entry.shape)}};
  std::vector<StatePiece> pieces;
  const Numel numel = numel_of(entry.local);
  Numel run = 1;  // neighbours here that are neighbours in the whole
  for (std::size_t d = entry.shape.size(); d-- > 0;) {
    run *= entry.local[d];
    if (entry.local[d] != entry.shape[d]) break;
  }
  for (Numel at = 0; at < numel; at += run) {
    Numel rest = at, stride = 1, begins = 0;
    for (std::size_t d = entry.shape.size(); d-- > 0;) {
      begins += (entry.offset[d] + rest % entry.local[d]) * stride;
      rest /= entry.local[d];
      stride *= entry.shape[d];
    }
    pieces.push_back({begins, at, run});
  }
  return pieces;
}

/// K1, local: of a flat parameter that stands beside it; nothing reads it.
bool is_view(const StateSource& source, const ActionRequest& request, const StateEntry& entry) {
  return request.kind == StateKind::Local && source.job.fsdp.runtime == Runtime::Fsdp1 && entry.param.valid() &&
         entry.unit.valid() && source.table.units[entry.unit.index()].strategy != Strategy::NoShard;
}

at::Tensor zeros(const Shape& shape, DType dtype) { return at::zeros(shape, at::dtype(scalar_type_of(dtype))); }

class Draft {
 public:
  explicit Draft(const StateSource& source) : source_(source), layout_(source) {}

  void param(const StateEntry& entry) {
    const at::Tensor local = tensor(entry.key, entry);
    add(model().storage_of(entry.param), "param", local, pieces_of(entry));
  }

  /// K1, local: every parameter's own elements in the flat shard.
  void flat(const StateEntry& entry) {
    const at::Tensor local = tensor(entry.key, entry);
    for (const ParamId param : source_.table.units[entry.unit.index()].params) {
      add(param, "param", local, layout_.pieces_in_home(param));
    }
  }

  void optimizer(const StateEntry& entry) {
    for (const OptimizerTensor& slot : optimizer_tensors(source_.job.train.optimizer)) {
      if (slot.scalar) continue;
      add(entry.param, slot.name, tensor(entry.key + "." + slot.name, entry), pieces_of(entry));
    }
  }

  DictToFill made;

 private:
  const Model& model() const { return source_.model; }

  at::Tensor tensor(const std::string& key, const StateEntry& entry) {
    return made.dict[key] = zeros(entry.sharded ? entry.local : entry.shape, entry.dtype);
  }
  void add(ParamId param, const std::string& slot, const at::Tensor& local, std::vector<StatePiece> pieces) {
    const ParamInfo& info = model().params[param.index()];
    made.state.tensors.push_back({info.fqn, slot, layout_.whole_shape(param), local, std::move(pieces)});
  }

  const StateSource& source_;
  ActionLayout layout_;
};

}  // namespace

DictToFill dict_to_fill(const StateSource& source, const ActionRequest& load, const std::vector<at::Tensor>& buffers) {
  ActionRequest model = load;  // fsdp1 loads the model's full state on every rank, only the optimizer's is sent (K6)
  if (source.job.fsdp.runtime == Runtime::Fsdp1) model.rank0_only = false;
  Draft draft(source);
  std::size_t buffer = 0;
  for (const StateEntry& entry : model_state(source, model)) {
    if (!entry.held || is_view(source, load, entry)) continue;
    if (!entry.unit.valid() && !entry.param.valid()) {
      while (source.model.buffers[buffer].fqn != entry.key) ++buffer;
      draft.made.dict[entry.key] = buffers.at(buffer);
    } else if (!entry.param.valid()) {
      draft.flat(entry);
    } else {
      draft.param(entry);
    }
  }
  if (!load.optimizer) return std::move(draft.made);
  for (const StateEntry& entry : optimizer_state(source, load)) {
    if (entry.held && entry.param.valid() && entry.unit.valid()) draft.optimizer(entry);
  }
  return std::move(draft.made);
}

std::vector<DictTensor> dict_tensors(const StateDict& dict, const StateSource& source, const ActionRequest& save) {
  std::vector<DictTensor> tensors;
  const auto add = [&](const StateEntry& entry, const std::string& key) {
    const auto found = dict.find(key);
    if (found == dict.end()) return;
    const std::vector<StatePiece> pieces = pieces_of(entry);
    tensors.push_back(
        {key, entry.dtype, entry.shape, pieces.empty() ? 0 : pieces.front().global_offset, found->second});
  };
  for (const StateEntry& entry : model_state(source, save)) {
    if (!is_view(source, save, entry)) add(entry, entry.key);
  }
  if (!save.optimizer) return tensors;
  for (const StateEntry& entry : optimizer_state(source, save)) {
    for (const OptimizerTensor& slot : optimizer_tensors(source.job.train.optimizer))
      add(entry, entry.key + "." + slot.name);
  }
  return tensors;
}

void fill_params(TrainState& state, const Model& model, const WholeParam& whole) {
  for (StateTensor& tensor : state.tensors) {
    if (tensor.slot != "param" || tensor.pieces.empty()) continue;
    const at::Tensor from = whole(model.find_param(tensor.fqn)).contiguous().view({-1});
    const at::Tensor to = tensor.local.view({-1});
    for (const StatePiece& piece : tensor.pieces) {
      to.narrow(0, piece.local_offset, piece.numel).copy_(from.narrow(0, piece.global_offset, piece.numel));
    }
  }
}

}  // namespace foreshard::exec
