#include "tests/exec/checkpoint/checkpoint_layouts.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace foreshard::exec {
namespace {

ParamInfo param(std::string fqn, Shape shape, bool requires_grad = true) {
  ParamInfo info;
  info.fqn = std::move(fqn);
  info.shape = std::move(shape);
  info.requires_grad = requires_grad;
  return info;
}

void add_piece(StateTensor& tensor, Numel global, Numel numel) {
  if (numel == 0) return;
  const Numel local = tensor.pieces.empty() ? 0 : tensor.pieces.back().local_offset + tensor.pieces.back().numel;
  tensor.pieces.push_back({global, local, numel});
}

/// Rows or columns of one of `parts` equal chunks (the last ones shorter or empty).
void add_chunk(StateTensor& tensor, std::size_t dim, int parts, int part) {
  if (tensor.shape.size() <= dim) {
    if (part == 0) add_piece(tensor, 0, numel_of(tensor.shape));
    return;
  }
  const Numel size = tensor.shape[dim];
  const Numel chunk = (size + parts - 1) / parts;
  const Numel begin = std::min(size, chunk * part), end = std::min(size, begin + chunk);
  Numel inner = 1, outer = 1;
  for (std::size_t d = 0; d < tensor.shape.size(); ++d) (d < dim ? outer : inner) *= d == dim ? 1 : tensor.shape[d];
  for (Numel o = 0; o < outer; ++o) add_piece(tensor, (o * size + begin) * inner, (end - begin) * inner);
}

void fill_local(StateTensor& tensor, const at::Tensor& whole) {
  Numel numel = 0;
  for (const StatePiece& piece : tensor.pieces) numel += piece.numel;
  tensor.local = at::empty({numel}, whole.options());
  for (const StatePiece& piece : tensor.pieces) {
    tensor.local.narrow(0, piece.local_offset, piece.numel)
        .copy_(whole.reshape({-1}).narrow(0, piece.global_offset, piece.numel));
  }
}

/// All parameters of a slot one after another in one flat vector, cut where the ranks' shards end.
void add_flat(TrainState& part, const TrainState& whole, const std::string& slot, const std::vector<Numel>& cuts,
              int rank) {
  const auto r = static_cast<std::size_t>(rank);
  Numel at = 0;
  for (std::size_t t = 0; t < whole.tensors.size(); ++t) {
    if (whole.tensors[t].slot != slot) continue;
    const Numel numel = numel_of(whole.tensors[t].shape);
    const Numel begin = std::clamp<Numel>(cuts[r] - at, 0, numel), end = std::clamp<Numel>(cuts[r + 1] - at, 0, numel);
    add_piece(part.tensors[t], begin, end - begin);
    at += numel;
  }
}

std::vector<Numel> random_cuts(Numel numel, int world_size, std::mt19937& random) {
  std::vector<Numel> cuts{0, numel};
  for (int i = 1; i < world_size; ++i) cuts.push_back(std::uniform_int_distribution<Numel>(0, numel)(random));
  std::ranges::sort(cuts);
  return cuts;
}

}  // namespace

Model odd_model() {
  Model model;
  model.name = "odd";
  model.params = {param("embed.weight", {11, 6}),       param("layers.0.up.weight", {7, 5}),
                  param("layers.0.scale", {}),          param("layers.0.norm.weight", {2}),
                  param("layers.1.frozen", {3}, false), param("layers.1.conv.weight", {4, 3, 5}),
                  param("head.weight", {11, 6})};
  model.params.back().shares = ParamId(0);
  model.buffers = {{"running", {5}, DType::Float64, {}, true}, {"inv_freq", {3}, DType::Float32, {}, false}};
  return model;
}

TrainState whole_state(const Model& model, std::uint64_t seed) {
  auto generator = at::globalContext().defaultGenerator(at::kCPU).clone();
  generator.set_current_seed(seed);
  TrainState state;
  const auto add = [&](const std::string& fqn, const char* slot, const Shape& shape, at::ScalarType type) {
    StateTensor tensor{fqn, slot, shape, at::randn(shape, generator, at::dtype(type)), {}};
    if (tensor.local.numel() > 0) tensor.pieces = {{0, 0, tensor.local.numel()}};
    state.tensors.push_back(std::move(tensor));
  };
  for (const ParamInfo& param : model.params) {
    if (param.shares.valid()) continue;
    add(param.fqn, "param", param.shape, at::kFloat);
    if (!param.requires_grad) continue;
    add(param.fqn, "exp_avg", param.shape, at::kFloat);
    add(param.fqn, "exp_avg_sq", param.shape, at::kFloat);
  }
  for (const BufferInfo& buffer : model.buffers) {
    add(buffer.fqn, "buffer", buffer.shape, buffer.dtype == DType::Float64 ? at::kDouble : at::kFloat);
  }
  state.optimizer_steps = 17;
  return state;
}

std::vector<TrainState> laid_out(const TrainState& whole, LayoutKind kind, int world_size, std::mt19937& random) {
  std::vector<TrainState> parts;
  Numel params = 0, states = 0;
  for (const StateTensor& tensor : whole.tensors) {
    if (tensor.slot == "param") params += numel_of(tensor.shape);
    if (tensor.slot == "exp_avg") states += numel_of(tensor.shape);
  }
  const auto param_cuts = random_cuts(params, world_size, random), state_cuts = random_cuts(states, world_size, random);
  for (int rank = 0; rank < world_size; ++rank) {
    TrainState part;
    part.optimizer_steps = whole.optimizer_steps;
    for (const StateTensor& tensor : whole.tensors)
      part.tensors.push_back({tensor.fqn, tensor.slot, tensor.shape, {}, {}});
    if (kind == LayoutKind::Flat) {
      add_flat(part, whole, "param", param_cuts, rank);
      add_flat(part, whole, "exp_avg", state_cuts, rank);
      add_flat(part, whole, "exp_avg_sq", state_cuts, rank);
    }
    for (std::size_t t = 0; t < part.tensors.size(); ++t) {
      StateTensor& tensor = part.tensors[t];
      if (tensor.slot == "buffer" || kind == LayoutKind::Replicated) {
        add_piece(tensor, 0, numel_of(tensor.shape));
      } else if (kind == LayoutKind::Rows || kind == LayoutKind::Columns) {
        add_chunk(tensor, kind == LayoutKind::Rows ? 0 : 1, world_size, rank);
      } else if (kind == LayoutKind::Hybrid) {
        const int groups = (world_size + 1) / 2;
        add_chunk(tensor, 0, groups, rank % groups);
      }
      fill_local(tensor, whole.tensors[t].local);
    }
    parts.push_back(std::move(part));
  }
  return parts;
}

TrainState emptied(const TrainState& state) {
  TrainState copy = state;
  copy.optimizer_steps = 0;
  for (StateTensor& tensor : copy.tensors) tensor.local = at::zeros_like(tensor.local);
  return copy;
}

bool holds(const TrainState& part, const TrainState& whole) {
  for (std::size_t t = 0; t < part.tensors.size(); ++t) {
    const at::Tensor flat = whole.tensors[t].local.reshape({-1});
    for (const StatePiece& piece : part.tensors[t].pieces) {
      const at::Tensor mine = part.tensors[t].local.view({-1}).narrow(0, piece.local_offset, piece.numel);
      if (!mine.equal(flat.narrow(0, piece.global_offset, piece.numel))) return false;
    }
  }
  return part.optimizer_steps == whole.optimizer_steps;
}

}  // namespace foreshard::exec
