#include "core/mesh/context_cut.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/mesh/rank_program.h"

namespace foreshard::mesh {
namespace {

constexpr const char* kFlash = "aten._scaled_dot_product_flash_attention.default";
// PyTorch has no sharding strategy for this one; the executor goes round the same ring with it.
constexpr const char* kCpuFlash = "aten._scaled_dot_product_flash_attention_for_cpu.default";
constexpr std::size_t kCausal = 4;  // argument of flash attention

Error refused(const Model& model, const Op& op, std::string message, std::string expected, std::string hint) {
  return {ErrorCode::Unsupported,
          std::move(message),
          {},
          op.module.valid() ? model.modules[op.module.index()].fqn : std::string("the root"),
          std::move(expected),
          op.name,
          std::move(hint)};
}

Result<void> meet_in_attention(Model& model, const MeshOptions& options, std::int32_t dimension) {
  bool any = false;
  for (Op& op : model.ops) {
    if (!is_attention(op)) continue;
    any = true;
    const bool cpu =
        op.name == kCpuFlash && std::none_of(op.kwargs.begin(), op.kwargs.end(),
                                             [](const NamedArg& named) { return named.name == "attn_mask"; });
    if (op.name != kFlash && !cpu) {
      return fail(refused(model, op,
                          "PyTorch has no ring for this attention (its operators without a sharding strategy fail), "
                          "and only flash attention's is planned",
                          kFlash,
                          "set model.attention = \"sdpa_flash\" and a half-precision compute dtype on a GPU, or "
                          "mesh.context = 1"));
    }
    const bool* causal = op.args.size() > kCausal ? std::get_if<bool>(&op.args[kCausal].value) : nullptr;
    if (causal == nullptr || !*causal) {
      return fail(refused(model, op, "PyTorch ends with 'RuntimeError: Load balancing requires `is_causal=True`.'",
                          "attention with is_causal", "set mesh.context = 1"));
    }
    op.name = cpu ? "mesh.flash_attention_for_cpu" : "mesh.flash_attention";
    op.kwargs.push_back({"mesh", Arg{static_cast<std::int64_t>(dimension)}});
    op.kwargs.push_back({"rotate", Arg{options.context_rotate}});
  }
  if (any) return {};
  return fail({ErrorCode::Unsupported,
               "this model's attention is no operator of its own",
               {},
               "mesh.context",
               kFlash,
               "products and a softmax",
               "set model.attention = \"sdpa_flash\", or mesh.context = 1"});
}

void move_indices(Model& model, const std::vector<std::int32_t>& place) {
  const auto moved = [&](std::int32_t op) {
    return op >= 0 && static_cast<std::size_t>(op) < place.size() ? place[static_cast<std::size_t>(op)] : op;
  };
  for (ValueInfo& value : model.values)
    if (value.held.until == Hold::Until::Op || value.held.until == Hold::Until::Autocast)
      value.held.op = moved(value.held.op);
  if (model.loss_begin >= 0) model.loss_begin = moved(model.loss_begin);
  for (Region& region : model.regions)
    for (std::int32_t& op : region.save) op = moved(op);
}

/// Where a part of the queries alone meets other ranks' keys, results are joined anew: [batch, heads, sequence, head]
/// without gaps, so that a model's contiguous() after the transposition copies.
void copy_results(Model& model) {
  std::set<std::int32_t> joined;             // results of attention
  std::map<std::int32_t, std::int32_t> now;  // transposed, and copied
  std::vector<Op> ops;
  std::vector<std::int32_t> place;
  for (Op& op : model.ops) {
    place.push_back(static_cast<std::int32_t>(ops.size()));
    std::int32_t read = -1;
    for (Arg& arg : op.args) {
      auto* value = std::get_if<ValueRef>(&arg.value);
      if (value == nullptr) continue;
      if (const auto at = now.find(value->id.value); at != now.end()) value->id = ValueId(at->second);
      if (read < 0) read = value->id.value;
    }
    const bool attends = op.name.starts_with("mesh.flash_attention");
    const bool turns = op.name == "aten.transpose.int" && joined.contains(read);
    ops.push_back(std::move(op));
    const Op& made = ops.back();
    const bool seen_alike =
        made.name == "aten.view.default" && joined.contains(read) &&
        model.values[static_cast<std::size_t>(read)].shape == model.values[made.out.front().index()].shape;
    if (attends || seen_alike) {
      joined.insert(made.out.front().value);
      model.values[made.out.front().index()].strides.clear();
    }
    if (!turns) continue;
    const ValueId from = made.out.front();
    Op copy;
    copy.name = "aten.clone.default";
    copy.module = made.module;
    copy.call = made.call;
    copy.region = made.region;
    copy.args.push_back(Arg{ValueRef{from}});
    copy.kwargs.push_back({"memory_format", Arg{std::string("torch.contiguous_format")}});
    ValueInfo value = model.values[from.index()];
    value.name += ".contiguous";
    value.strides.clear();
    value.held = {};
    const ValueId id(model.values.size());
    copy.out.push_back(id);
    model.values.push_back(std::move(value));
    now[from.value] = id.value;
    Shape& strides = model.values[from.index()].strides;
    const Shape& shape = model.values[from.index()].shape;  // [batch, sequence, heads, head]
    if (shape.size() == 4) strides = {shape[1] * shape[2] * shape[3], shape[3], shape[1] * shape[3], 1};
    ops.push_back(std::move(copy));
  }
  model.ops = std::move(ops);
  move_indices(model, place);
}

void hold(Model& model, std::string name, Shape shape, DType dtype) {
  ValueInfo value;
  value.name = std::move(name);
  value.shape = std::move(shape);
  value.dtype = dtype;
  model.inputs.push_back(ValueId(model.values.size()));
  model.values.push_back(std::move(value));
}

/// The whole batch stays beside its part. context_parallel() resizes buffers as long as the sequence: a clone to
/// restore, the part, and the loop's last clone of a part.
void hold_wholes(Model& model, std::int64_t own, std::int64_t ranks, bool resizes_buffers) {
  const std::vector<ValueId> inputs = model.inputs;
  for (const ValueId id : inputs) {
    const ValueInfo input = model.values[id.index()];
    if (input.shape.size() < 2 || input.shape[1] != own) continue;
    Shape whole = input.shape;
    whole[1] *= ranks;
    hold(model, input.name + ".whole", whole, input.dtype);
  }
  if (!resizes_buffers) return;
  Shape last;
  DType last_dtype = DType::Float32;
  for (const BufferInfo& buffer : model.buffers) {
    if (buffer.shape.empty() || buffer.shape.front() < own * ranks) continue;
    last = buffer.shape;
    last_dtype = buffer.dtype;
    hold(model, buffer.fqn + ".original", last, last_dtype);
    last.front() = own;
    hold(model, buffer.fqn + ".part", last, last_dtype);
  }
  if (!last.empty()) hold(model, "shard", last, last_dtype);
}

}  // namespace

Result<void> share_sequence(Model& model, const Job& job, std::int32_t dimension) {
  const std::int64_t ranks = job.mesh.context;
  const std::int64_t own = job.model.seq / ranks;
  const bool fits = std::all_of(model.inputs.begin(), model.inputs.end(), [&](ValueId id) {
    const ValueInfo& value = model.values[id.index()];
    return is_floating(value.dtype) || value.shape.size() != 2 || value.shape[1] == own;
  });
  if (!fits) {
    return fail({ErrorCode::Unsupported, "only a model that is built for a length is cut over context",
                 job.model.source, "mesh.context", fmt::format("inputs of {} tokens, this rank's part", own),
                 "a program of another length",
                 "use a config.json, or capture the module with its part of the sequence"});
  }
  if (auto met = meet_in_attention(model, job.mesh, dimension); !met) return met;
  const bool joins = model.mesh[static_cast<std::size_t>(dimension)].place + 1 < ranks;
  if (joins) copy_results(model);
  hold_wholes(model, own, ranks, job.mesh.context_buffers == "resized");
  model.tokens_per_batch *= ranks;  // of a sample; the ranks share it
  return {};
}

}  // namespace foreshard::mesh
