#include "core/plan/unsharded/bucket_reducer.h"

#include <algorithm>

#include "core/plan/process_groups.h"

namespace foreshard::unsharded {
namespace {

Bytes grad_bytes(const Model& model, ParamId param) {
  const ParamInfo& info = model.params[param.index()];
  return numel_of(info.shape) * itemsize(info.dtype);
}

NameId intern(Plan& plan, const char* text) {
  const auto found = std::find(plan.names.begin(), plan.names.end(), text);
  if (found != plan.names.end()) return NameId(static_cast<std::size_t>(found - plan.names.begin()));
  plan.names.emplace_back(text);
  return NameId(plan.names.size() - 1);
}

}  // namespace

std::vector<std::vector<ParamId>> cut_buckets(const Model& model, const std::vector<ParamId>& params) {
  struct Open {
    DType dtype;
    std::vector<ParamId> params;
    Bytes bytes = 0;
    Bytes limit = kFirstBucketBytes;
  };
  std::vector<Open> open;  // one a dtype
  std::vector<std::vector<ParamId>> buckets;
  for (const ParamId param : params) {
    const DType dtype = model.params[param.index()].dtype;
    auto it = std::find_if(open.begin(), open.end(), [&](const Open& o) { return o.dtype == dtype; });
    if (it == open.end()) it = open.insert(open.end(), Open{dtype, {}, 0, kFirstBucketBytes});
    it->params.push_back(param);
    it->bytes += grad_bytes(model, param);
    if (it->bytes < it->limit) continue;
    buckets.push_back(std::move(it->params));
    *it = Open{dtype, {}, 0, kBucketBytes};
  }
  for (Open& rest : open) {
    if (!rest.params.empty()) buckets.push_back(std::move(rest.params));
  }
  return buckets;
}

BucketReducer::BucketReducer(const Model& model, const std::vector<bool>& trainable, std::int32_t world_size,
                             Plan& plan)
    : model_(model),
      world_size_(world_size),
      names_{intern(plan, "aten.mul"), intern(plan, "aten.copy_"), intern(plan, "bucket")} {
  if (world_size > 1) replicas_ = ProcessGroups().replicate(plan);
  std::vector<ParamId> params;
  for (std::size_t p = 0; p < model.params.size(); ++p) {
    if (trainable[p] && !model.params[p].shares.valid()) params.push_back(ParamId(p));
  }
  buckets_ = cut_buckets(model, params);
  std::reverse(buckets_.begin(), buckets_.end());
}

Bytes BucketReducer::bucket_bytes(std::size_t bucket) const {
  Bytes bytes = 0;
  for (const ParamId param : buckets_[bucket]) bytes += grad_bytes(model_, param);
  return bytes;
}

Instruction BucketReducer::base(InstructionKind kind, Stream stream) const {
  Instruction instruction;
  instruction.kind = kind;
  instruction.stream = stream;
  instruction.phase = Phase::Backward;
  return instruction;
}

void BucketReducer::allocate(std::vector<Instruction>& out) {
  bucket_of_.assign(model_.params.size(), -1);
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    Instruction alloc = base(InstructionKind::Alloc, Stream::D);
    alloc.phase = Phase::None;
    alloc.buffer.what = BufferWhat::Bucket;
    alloc.arg = static_cast<std::int32_t>(b);
    alloc.bytes = bucket_bytes(b);
    out.push_back(alloc);
    for (const ParamId param : buckets_[b]) bucket_of_[param.index()] = static_cast<std::int32_t>(b);
  }
  allocated_ = true;
}

void BucketReducer::release(std::vector<Instruction>& out) {
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    Instruction free = base(InstructionKind::Free, Stream::D);
    free.phase = Phase::None;
    free.buffer.what = BufferWhat::Bucket;
    free.arg = static_cast<std::int32_t>(b);
    free.bytes = bucket_bytes(b);
    out.push_back(free);
  }
  allocated_ = false;
}

// A gradient is scaled into its place of the bucket as soon as it is there.
void BucketReducer::take(const Instruction& grad, std::vector<Instruction>& out) {
  const ParamId param = model_.storage_of(grad.buffer.param);
  const std::int32_t bucket = bucket_of_[param.index()];
  if (bucket < 0) return;
  ready_order_.push_back(param);
  Instruction scale = base(InstructionKind::CopyIn, Stream::D);
  scale.name = names_.scale;
  scale.numel = grad.numel;
  scale.dtype = grad.dtype;
  scale.bytes = grad.bytes;
  scale.factor = 1.0 / world_size_;
  scale.buffer.what = BufferWhat::Bucket;
  scale.arg = bucket;
  out.push_back(scale);
  --missing_[static_cast<std::size_t>(bucket)];
  launch_full(out);
}

void BucketReducer::launch_full(std::vector<Instruction>& out) {
  for (; next_bucket_ < buckets_.size() && missing_[next_bucket_] == 0; ++next_bucket_) {
    Instruction wait = base(InstructionKind::WaitStream, Stream::H);
    wait.other = Stream::D;
    out.push_back(wait);
    const ParamId first = buckets_[next_bucket_].front();
    Instruction reduce = base(InstructionKind::AllReduce, Stream::H);
    reduce.dtype = model_.params[first.index()].dtype;
    reduce.bytes = bucket_bytes(next_bucket_);
    reduce.numel = reduce.bytes / itemsize(reduce.dtype);
    reduce.communicator = replicas_;
    reduce.reduce_op = ReduceOp::Sum;
    reduce.buffer.what = BufferWhat::Bucket;
    reduce.arg = static_cast<std::int32_t>(next_bucket_);
    out.push_back(reduce);
    Instruction record = base(InstructionKind::RecordEvent, Stream::H);
    record.event = EventId(next_event_++);
    record.name = names_.bucket;
    reduced_[next_bucket_] = record.event;
    out.push_back(record);
  }
}

// After backward D waits bucket by bucket and copies the means back into the gradients.
void BucketReducer::finish(std::vector<Instruction>& out) {
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    if (!reduced_[b].valid()) continue;
    Instruction wait = base(InstructionKind::WaitEvent, Stream::D);
    wait.event = reduced_[b];
    wait.phase = Phase::Final;
    out.push_back(wait);
    Instruction copy = base(InstructionKind::CopyOut, Stream::D);
    copy.phase = Phase::Final;
    copy.name = names_.copy;
    copy.dtype = model_.params[buckets_[b].front().index()].dtype;
    copy.bytes = bucket_bytes(b);
    copy.numel = copy.bytes / itemsize(copy.dtype);
    copy.buffer.what = BufferWhat::Bucket;
    copy.arg = static_cast<std::int32_t>(b);
    out.push_back(copy);
  }
}

void BucketReducer::apply(PlanIteration& iteration, const std::vector<bool>& reduces) {
  std::vector<Instruction> in = std::move(iteration.instructions), out;
  out.reserve(in.size() + 8 * buckets_.size());
  if (!rebuilt_ && !ready_order_.empty()) {  // from the second forward on buckets follow the order of readiness
    rebuilt_ = true;
    release(out);
    buckets_ = cut_buckets(model_, ready_order_);
  }
  if (!allocated_) allocate(out);
  std::size_t pass = 0;
  bool in_backward = false;
  const auto begin = [&] {
    in_backward = true;
    missing_.clear();
    for (const std::vector<ParamId>& bucket : buckets_) missing_.push_back(bucket.size());
    reduced_.assign(buckets_.size(), EventId());
    next_bucket_ = 0;
    ready_order_.clear();
  };
  const auto end = [&] {
    if (pass >= reduces.size() || reduces[pass]) finish(out);
    in_backward = false;
    ++pass;
  };
  for (const Instruction& instruction : in) {
    const bool backward = instruction.phase == Phase::Backward;
    if (backward && !in_backward) begin();
    if (!backward && in_backward) end();
    out.push_back(instruction);
    const bool grad = instruction.kind == InstructionKind::Mark && instruction.buffer.what == BufferWhat::Grad;
    if (grad && (pass >= reduces.size() || reduces[pass])) take(instruction, out);
  }
  if (in_backward) end();
  iteration.instructions = std::move(out);
}

}  // namespace foreshard::unsharded
