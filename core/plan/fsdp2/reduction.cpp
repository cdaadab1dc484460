#include "core/plan/fsdp2/reduction.h"

#include <algorithm>

#include "core/model/mesh_dimension.h"

namespace foreshard::fsdp2 {
namespace {

struct Factors {
  std::optional<double> pre, post;
  ReduceOp scatter = ReduceOp::Sum, all_reduce = ReduceOp::Sum;
};

/// F2-21. `hybrid`: there is a replicate group, be it of one rank.
Factors factors_for(DType dtype, std::int32_t shard, std::int32_t ranks, std::optional<double> custom, bool force_sum) {
  const bool overflow_risk = dtype != DType::Float32 && dtype != DType::BFloat16;
  Factors factors;
  if (!overflow_risk && !force_sum) {
    if (custom) {
      factors.scatter = *custom == shard ? ReduceOp::Avg : ReduceOp::PremulSum;
    } else if (ranks > 1) {
      factors.scatter = factors.all_reduce = ReduceOp::Avg;
    }
    return factors;
  }
  const double factor = custom.value_or(ranks);
  if (!overflow_risk) {
    factors.post = factor;
    return factors;
  }
  // G4, with a factor that need not be whole: doubled while it divides and stays below the rest.
  double pre = 1;
  while (factor - pre * static_cast<double>(static_cast<std::int64_t>(factor / pre)) == 0 && factor / pre > pre)
    pre *= 2;
  factors.pre = pre;
  factors.post = factor / pre;
  return factors;
}

}  // namespace

void Reduction::divide(Stream stream, UnitId id, Numel numel, DType dtype, double factor) {
  if (factor == 1) return;
  out_.kernel(InstructionKind::Divide, stream, Word::DivInPlace, id, numel, dtype).factor = factor;
}

void Reduction::free_grad(const UnitState& u, ParamSizes& p) {
  p.has_grad = false;
  out_.free({BufferWhat::Grad, u.id, p.param}, Stream::D, p.grad_bytes);
}

/// What a reduction took.
void Reduction::free_taken(const UnitState& u, ParamSizes& p) {
  if (p.placed) {
    p.placed = p.has_grad = p.has_accumulated = false;
    out_.free({BufferWhat::MeshGrad, u.id, p.param}, Stream::D, p.numel * itemsize(p.placed_dtype));
  } else if (p.has_accumulated) {
    p.has_accumulated = false;
    out_.free({BufferWhat::AccumulatedGrad, u.id, p.param}, Stream::D, p.grad_numel * itemsize(*u.reduce_dtype));
  } else {
    free_grad(u, p);
  }
}

void Reduction::place_on_mesh(UnitState& u, const std::vector<std::int32_t>& with_grad) {
  for (const std::int32_t i : with_grad) {
    ParamSizes& p = u.params[static_cast<std::size_t>(i)];
    if (p.arrives == MeshPart::Gradient::Part) continue;
    const BufferName placed{BufferWhat::MeshGrad, u.id, p.param};
    const DType dtype = p.has_accumulated ? *u.reduce_dtype : p.dtype;
    const Bytes bytes = p.numel * itemsize(dtype);
    out_.alloc(placed, Stream::D, bytes);
    Instruction& copy = out_.kernel(InstructionKind::CopyIn, Stream::D, Word::Clone, u.id, p.numel, dtype);
    copy.buffer = placed;
    copy.arg = p.has_accumulated ? 1 : 0;
    if (p.arrives == MeshPart::Gradient::Term) {
      const MeshDimension& dimension = summing_dimension(run_.model, p.param);
      out_.wait_stream(Stream::M, Stream::D, u.id);
      Instruction& sum = out_.add(InstructionKind::AllReduce, Stream::M, u.id);
      if (run_.model.params[p.param.index()].part.dimension < 0) sum.unit = UnitId();  // a hook's, not FSDP's
      sum.buffer = placed;
      sum.numel = p.numel;
      sum.dtype = dtype;
      sum.bytes = bytes;
      sum.reduce_op = ReduceOp::Sum;
      sum.communicator = enter_dimension(run_.plan, dimension.name, dimension.ranks);
      out_.wait_stream(Stream::D, Stream::M, u.id);
    }
    if (p.has_accumulated) {
      out_.free({BufferWhat::AccumulatedGrad, u.id, p.param}, Stream::D, p.grad_numel * itemsize(*u.reduce_dtype));
    } else {
      out_.free({BufferWhat::Grad, u.id, p.param}, Stream::D, p.grad_bytes);
    }
    p.placed = true;
    p.placed_dtype = dtype;
  }
}

ReduceBuffer Reduction::make_buffer(UnitState& u, BufferWhat what, Stream pool, Bytes bytes) {
  ReduceBuffer buffer{true, what, pool, bytes, 0, u.id, 0};
  buffer.instance = (what == BufferWhat::RsOutput ? u.outputs : u.casts).claim();
  out_.alloc({what, u.id, {}}, pool, bytes, buffer.instance);
  return buffer;
}

void Reduction::drop(ReduceBuffer& buffer) {
  if (!buffer.alive) return;
  buffer.alive = false;
  UnitState& u = run_.unit(buffer.unit);
  if (buffer.what != BufferWhat::RsInput)
    (buffer.what == BufferWhat::RsOutput ? u.outputs : u.casts).release(buffer.instance);
  out_.free({buffer.what, buffer.unit, {}}, buffer.pool, buffer.bytes, buffer.instance);
}

// F2-22: before the reshard, so that the gradients of this micro-batch go first.
void Reduction::accumulate_unsharded(UnitState& u) {
  for (ParamSizes& p : u.params) {
    if (!p.has_accumulated || !p.has_grad) continue;
    const DType dtype = *u.reduce_dtype;
    out_.kernel(InstructionKind::Add, Stream::D, Word::AddInPlace, u.id, p.grad_numel, dtype).buffer = {
        BufferWhat::AccumulatedGrad, u.id, p.param};
    free_grad(u, p);
  }
}

// F2-22: held in the reduce dtype. False: a parameter never unsharded (PyTorch raises).
bool Reduction::to_accumulated(UnitState& u) {
  for (ParamSizes& p : u.params) {
    if (!u.reduce_dtype) continue;
    if (!p.ever_unsharded) return false;
    if (!p.has_grad || p.dtype == *u.reduce_dtype) continue;
    const BufferName held{BufferWhat::AccumulatedGrad, u.id, p.param};
    out_.kernel(InstructionKind::Cast, Stream::D, Word::ToCopy, u.id, p.grad_numel, *u.reduce_dtype).buffer = held;
    out_.alloc(held, Stream::D, p.grad_numel * itemsize(*u.reduce_dtype));
    free_grad(u, p);
    p.has_accumulated = true;
  }
  return true;
}

void Reduction::wait_for_post_backward(UnitState& u) {
  if (u.post_reduce_event.valid()) out_.wait_event(Stream::D, u.post_reduce_event, u.id);
  u.post_reduce_event = {};
  if (u.all_reduce_event.valid()) out_.wait_event(Stream::D, u.all_reduce_event, u.id);
  u.all_reduce_event = {};
  drop(u.all_reduce_input);
}

// Chunk-cat takes all gradients; all but the last are gone after it, the last when the reduction returns (F2-18).
ReduceBuffer Reduction::copy_in_grads(UnitState& u, const std::vector<std::int32_t>& with_grad, DType dtype,
                                      Numel input_numel) {
  const bool many = u.shard_size > 1 && !run_.copies_in_beside;
  const Stream copies = run_.copies_in_beside ? Stream::S : Stream::D;
  const auto release = [&](ParamSizes& p) { free_taken(u, p); };
  // Sharded on another dimension: the gradient is first laid out by ranks. Only the last such original outlives its
  // copy.
  std::int32_t last_other = -1;
  const auto grad_dtype = [&](const ParamSizes& p) { return p.has_accumulated ? *u.reduce_dtype : p.dtype; };
  std::vector<std::pair<std::int32_t, DType>> rearranged;
  for (std::int32_t i : with_grad) {
    ParamSizes& p = u.params[static_cast<std::size_t>(i)];
    if (!many || !p.other_dim) continue;
    if (last_other >= 0) release(u.params[static_cast<std::size_t>(last_other)]);
    last_other = i;
    const BufferName laid_out{BufferWhat::ShardDimGrad, u.id, p.param};
    out_.kernel(InstructionKind::Concat, Stream::D, Word::Cat, u.id, p.numel, grad_dtype(p)).buffer = laid_out;
    out_.alloc(laid_out, Stream::D, p.numel * itemsize(grad_dtype(p)));
    rearranged.emplace_back(i, grad_dtype(p));
  }
  const ReduceBuffer input{true, BufferWhat::RsInput, copies, input_numel * itemsize(dtype), 0, u.id, 0};
  if (copies != Stream::D) out_.wait_stream(copies, Stream::D, u.id);
  out_.alloc({BufferWhat::RsInput, u.id, {}}, copies, input.bytes);
  out_.kernel(InstructionKind::CopyIn, copies, Word::ChunkCat, u.id, input_numel, dtype).buffer = {
      BufferWhat::RsInput, u.id, {}};
  if (copies != Stream::D) out_.wait_stream(Stream::D, copies, u.id);
  for (std::size_t i = with_grad.size(); i-- > 0;) {
    ParamSizes& p = u.params[static_cast<std::size_t>(with_grad[i])];
    if (many && p.other_dim) {
      const auto entry =
          std::find_if(rearranged.begin(), rearranged.end(), [&](const auto& r) { return r.first == with_grad[i]; });
      out_.free({BufferWhat::ShardDimGrad, u.id, p.param}, Stream::D, p.numel * itemsize(entry->second));
    } else if (!many || i + 1 < with_grad.size()) {
      release(p);
    }
  }
  kept_last_.clear();
  if (!many) return input;
  const std::int32_t last = with_grad.back();
  kept_last_.push_back(last);
  if (last_other >= 0 && last_other != last) kept_last_.push_back(last_other);
  return input;
}

void Reduction::release_last_grads(UnitState& u) {
  for (std::int32_t i : kept_last_) {
    ParamSizes& p = u.params[static_cast<std::size_t>(i)];
    if (p.has_accumulated || p.has_grad) free_taken(u, p);
  }
  kept_last_.clear();
}

void Reduction::wait_for_last(UnitId waiter, std::size_t left) {
  const auto is_of_root = [&](const Running& running) {
    return run_.context_of(running.input.unit) == run_.context_of(waiter);
  };
  auto count = static_cast<std::size_t>(std::count_if(running_.begin(), running_.end(), is_of_root));
  for (; count > left; --count) {
    const auto first = std::find_if(running_.begin(), running_.end(), is_of_root);
    Running oldest = *first;
    running_.erase(first);
    out_.wait_event(Stream::D, oldest.event, waiter);
    drop(oldest.input);
  }
}

// In the model's order.
void Reduction::drop_sharded() {
  for (std::int32_t index : run_.zero_order) {
    const ParamSlot& slot = run_.slots[static_cast<std::size_t>(index)];
    if (!slot.unit.valid()) continue;
    ParamSizes& p = run_.unit(slot.unit).params[static_cast<std::size_t>(slot.index)];
    if (p.holder < 0) continue;
    ReduceBuffer& held = sharded_grads_[static_cast<std::size_t>(p.holder)];
    p.holder = -1;
    if (--held.views > 0) continue;
    UnitState& owner = run_.unit(held.unit);
    if (owner.all_reduce_event.valid() && held.what == BufferWhat::RsOutput && !owner.all_reduce_input.alive) {
      owner.all_reduce_input = held;  // F2-20: D has not waited for the all-reduce yet (no last backward so far)
      held.alive = false;
    } else {
      drop(held);
    }
  }
  const bool none =
      std::all_of(sharded_grads_.begin(), sharded_grads_.end(), [](const ReduceBuffer& b) { return b.views == 0; });
  if (none) sharded_grads_.clear();
}

/// The gradients of a unit leave their parameters, in order.
Result<Reduction::Taken> Reduction::take_grads(UnitState& u, const std::vector<std::int32_t>& with_grad) {
  Taken all;
  for (std::int32_t i : with_grad) {
    const ParamSizes& p = u.params[static_cast<std::size_t>(i)];
    Instruction& taken = out_.add(InstructionKind::Mark, Stream::D, u.id);
    taken.name = out_.name(Word::CopyInGrad);
    taken.buffer = {p.placed            ? BufferWhat::MeshGrad
                    : p.has_accumulated ? BufferWhat::AccumulatedGrad
                                        : BufferWhat::Grad,
                    u.id, p.param};
    all.numel += p.padded_numel;
    const DType dtype = p.has_accumulated ? *u.reduce_dtype : p.dtype;
    if (all.dtype && *all.dtype != dtype) {
      return fail({ErrorCode::Inconsistent,
                   "fsdp2 reduces gradients of one dtype at a time",
                   {},
                   "unit \"" + run_.plan.units[u.id.index()].name + "\"",
                   std::string(dtype_name(*all.dtype)),
                   std::string(dtype_name(dtype)),
                   "let every parameter of the unit take part in every micro-batch, or drop reduce_dtype"});
    }
    all.dtype = dtype;
  }
  return all;
}

Result<void> Reduction::reduce(UnitState& u, std::vector<std::int32_t>& with_grad) {
  wait_for_last(u.id, run_.reductions_in_flight - 1);  // F2-18: one reduce-scatter input at a time
  wait_for_post_backward(u);
  const Result<Taken> taken = take_grads(u, with_grad);
  if (!taken) return fail(taken.error());
  const Numel output_numel = taken->numel;
  const DType dtype = u.reduce_dtype.value_or(*taken->dtype);
  const Numel input_numel = output_numel * u.shard_size;
  const Factors factors =
      factors_for(dtype, u.shard_size, u.shard_size * run_.replicate_size, u.divide_factor, u.force_sum);
  ReduceBuffer input = copy_in_grads(u, with_grad, dtype, input_numel);
  if (!run_.copies_in_beside) out_.wait_stream(Stream::S, Stream::D, u.id);
  ReduceBuffer output = make_buffer(u, BufferWhat::RsOutput, Stream::S, output_numel * itemsize(dtype));
  if (factors.pre) divide(Stream::S, u.id, input_numel, dtype, *factors.pre);
  scatter(u, input_numel, dtype, output, factors.scatter);
  if (!run_.copies_in_beside) running_.push_back({out_.record(Stream::S, Word::EventReduceScatter, u.id), input});
  Stream after = Stream::S;
  if (run_.hybrid && !u.all_reduce_grads) {  // F2-20: reduce-scattered only, until the last micro-batch
    const bool first = !u.partial.alive;
    if (first) {
      u.partial = output;
    } else {
      out_.kernel(InstructionKind::Add, Stream::S, Word::AddInPlace, u.id, output_numel, dtype).buffer = {
          BufferWhat::RsOutput, u.id, {}};
    }
    u.post_reduce_event = out_.record(Stream::S, Word::EventPostReduce, u.id);
    release_last_grads(u);
    if (!first) drop(output);
    if (run_.copies_in_beside) drop(input);
    return {};
  }
  if (run_.hybrid) {
    after = Stream::H;
    all_reduce(u, output_numel, dtype, output, factors.all_reduce);
  }
  if (u.hook) {
    after = u.hook_stream ? Stream::X : Stream::H;
    out_.wait_stream(after, Stream::S, u.id);
    Instruction& hook = out_.add(InstructionKind::Mark, after, u.id);
    hook.name = out_.name(Word::AllReduceHook);
    hook.numel = output_numel;
    hook.dtype = dtype;
  }
  if (factors.post) divide(after, u.id, output_numel, dtype, *factors.post);
  finish_output(u, with_grad, output, output_numel, dtype, after);
  if (run_.copies_in_beside) drop(input);  // of its own stream's pool: nothing waits
  return {};
}

void Reduction::scatter(UnitState& u, Numel input_numel, DType dtype, const ReduceBuffer& output, ReduceOp op) {
  if (u.shard_size == 1) {  // F2-4
    ReduceBuffer quotient;  // not in place: reduce_scatter_input / gradient_divide_factor
    if (u.divide_factor) {
      quotient = make_buffer(u, BufferWhat::GradCast, Stream::S, input_numel * itemsize(dtype));
      out_.kernel(InstructionKind::Divide, Stream::S, Word::Div, u.id, input_numel, dtype).factor = *u.divide_factor;
    }
    out_.kernel(InstructionKind::CopyOut, Stream::S, Word::Copy, u.id, input_numel, dtype).buffer = {
        BufferWhat::RsOutput, u.id, {}};
    drop(quotient);
    return;
  }
  Instruction& scattered = out_.add(InstructionKind::ReduceScatter, Stream::S, u.id);
  scattered.numel = input_numel;
  scattered.dtype = dtype;
  scattered.bytes = input_numel * itemsize(dtype);
  scattered.communicator = run_.separate_reduce
                               ? enter_communicator(run_.plan, "reduce", kShardDimension, run_.plan.groups.shard)
                           : u.experts ? run_.groups.expert_shard(run_.plan)
                                       : run_.groups.shard(run_.plan, u.shard_size);
  scattered.reduce_op = op;
  scattered.buffer = {BufferWhat::RsInput, u.id, {}};
  scattered.arg = output.instance;
  if (op == ReduceOp::PremulSum) scattered.factor = 1 / *u.divide_factor;
}

void Reduction::all_reduce(UnitState& u, Numel numel, DType dtype, const ReduceBuffer& output, ReduceOp op) {
  if (u.partial.alive) {
    out_.kernel(InstructionKind::Add, Stream::S, Word::AddInPlace, u.id, numel, dtype).buffer = {
        BufferWhat::RsOutput, u.id, {}};
  }
  out_.wait_stream(Stream::H, Stream::S, u.id);
  Instruction& reduced = out_.add(InstructionKind::AllReduce, Stream::H, u.id);
  reduced.numel = numel;
  reduced.dtype = dtype;
  reduced.bytes = numel * itemsize(dtype);
  reduced.communicator = run_.groups.replicate(run_.plan);
  reduced.reduce_op = op;
  reduced.buffer = {BufferWhat::RsOutput, u.id, {}};
  reduced.arg = output.instance;
  u.all_reduce_event = out_.record(Stream::H, Word::EventAllReduce, u.id);
}

// Cast, then every sharded gradient becomes a view of the output or is added to; what nobody views goes (F2-18, F2-26).
/// Where its sharded gradient is kept.
ParamSizes& Reduction::gradient_of(ParamSizes& p) {
  if (!p.tied.valid()) return p;
  const ParamSlot& slot = run_.slots[static_cast<std::size_t>(run_.slot_of_param[p.tied.index()])];
  return slot.unit.valid() ? run_.unit(slot.unit).params[static_cast<std::size_t>(slot.index)] : p;
}

/// A reduced gradient goes to the host.
void Reduction::offload(UnitState& u, std::int32_t param, Stream after, bool blocking) {
  const ParamSizes& p = u.params[static_cast<std::size_t>(param)];
  Instruction& d2h = out_.add(InstructionKind::D2h, after, u.id);
  d2h.bytes = p.local_numel * itemsize(u.orig_dtype);
  d2h.blocking = blocking;
  d2h.pinned = run_.pin_memory;
  d2h.buffer = {BufferWhat::HostGrad, u.id, p.param};
  if (!blocking) u.offload_events[static_cast<std::size_t>(param)] = out_.record(after, Word::EventGradOffload, u.id);
}

void Reduction::finish_output(UnitState& u, const std::vector<std::int32_t>& with_grad, ReduceBuffer output,
                              Numel numel, DType dtype, Stream after) {
  ReduceBuffer views = output;
  if (dtype != u.orig_dtype) {
    out_.kernel(InstructionKind::Cast, after, Word::ToCopy, u.id, numel, u.orig_dtype).buffer = {
        BufferWhat::GradCast, u.id, {}};
    views = make_buffer(u, BufferWhat::GradCast, after, numel * itemsize(u.orig_dtype));
    if (run_.hybrid) {
      u.all_reduce_input = output;
    } else {
      drop(output);
    }
  }
  std::int32_t holder = -1;
  for (std::int32_t i : with_grad) {
    const ParamSizes& p = u.params[static_cast<std::size_t>(i)];
    ParamSizes& kept = gradient_of(u.params[static_cast<std::size_t>(i)]);
    const bool accumulate = kept.holder >= 0;
    if (run_.offload) offload(u, i, after, !run_.pin_memory || accumulate);
    if (accumulate) {
      Instruction& add = out_.kernel(InstructionKind::Add, after, Word::AddInPlace, u.id, p.local_numel, u.orig_dtype);
      add.buffer = {run_.offload ? BufferWhat::HostGrad : BufferWhat::ShardGrad, u.id, p.param};
      add.on_host = run_.offload;
      continue;
    }
    if (run_.steps_in_backward) {  // post_accumulate_grad hooks: the gradient is gone when they return
      Instruction& step = out_.add(InstructionKind::OptimizerStep, after, u.id);
      step.numel = p.local_numel;
      step.dtype = u.orig_dtype;
      step.buffer = {run_.offload ? BufferWhat::HostGrad : BufferWhat::ShardGrad, u.id, p.param};
      step.on_host = run_.offload;
      continue;
    }
    if (holder < 0) {
      holder = static_cast<std::int32_t>(sharded_grads_.size());
      sharded_grads_.push_back(views);
      sharded_grads_.back().alive = !run_.offload;
    }
    kept.holder = holder;
    ++sharded_grads_.back().views;
  }
  u.post_reduce_event = out_.record(after, Word::EventPostReduce, u.id);
  const bool viewed = holder >= 0 && !run_.offload;
  release_last_grads(u);
  if (!viewed) {
    if (run_.hybrid && views.what == BufferWhat::RsOutput) {
      u.all_reduce_input = views;  // D waits for its all-reduce first
    } else {
      drop(views);
    }
  }
  drop(u.partial);
}

}  // namespace foreshard::fsdp2
