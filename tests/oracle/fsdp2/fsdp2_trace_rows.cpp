#include <algorithm>
#include <set>

#include "tests/oracle/fsdp2/fsdp2_trace.h"

namespace foreshard::oracle {
namespace {

/// The one table between the plan's words and the recorder's.
const std::map<BufferWhat, const char*>& kinds_by_unit() {
  static const std::map<BufferWhat, const char*> kinds{{BufferWhat::AgBuffer, "ag_buffer"},
                                                       {BufferWhat::CastBuffer, "cast_buffer"},
                                                       {BufferWhat::Cast, "cast"},
                                                       {BufferWhat::PostForwardShard, "post_forward_shard"},
                                                       {BufferWhat::AccumulatedGrad, "accumulated_grad"},
                                                       {BufferWhat::RsInput, "rs_input"},
                                                       {BufferWhat::RsOutput, "rs_output"},
                                                       {BufferWhat::GradCast, "grad_cast"},
                                                       {BufferWhat::ShardDimTemp, "shard_dim_temp"},
                                                       {BufferWhat::ShardDimGrad, "shard_dim_grad"},
                                                       {BufferWhat::H2dCopy, "h2d_copy"},
                                                       {BufferWhat::Grad, "grad"}};
  return kinds;
}

const char* short_dtype(DType dtype) {
  switch (dtype) {
    case DType::Float32: return "fp32";
    case DType::Float64: return "fp64";
    case DType::Float16: return "fp16";
    case DType::BFloat16: return "bf16";
    case DType::UInt8: return "u8";
    default: return "?";
  }
}

const char* op_name(ReduceOp op) {
  switch (op) {
    case ReduceOp::Avg: return "AVG";
    case ReduceOp::PremulSum: return "PREMUL_SUM";
    default: return "SUM";
  }
}

class Printer {
 public:
  Printer(const TraceConfig& config, const Plan& plan) : config_(config), plan_(plan) {}

  Json print() {
    for (std::size_t k = 0; k < plan_.iterations.size(); ++k) {
      begun_forward_ = ended_forward_ = false;
      begin_micro_batch(k);
      for (const Instruction& instruction : plan_.iterations[k].instructions) {
        if (begun_forward_ && leaves_forward(instruction)) end_forward();
        row(instruction);
        before_ = instruction;
        begun_forward_ = begun_forward_ || (!ended_forward_ && enters_forward(instruction));
      }
      end_forward();
    }
    flush();
    put({"end_of_run"});
    return std::move(rows_);
  }

 private:
  // ---- the recorder's own marks: a step, a micro-batch, the loss behind its forward

  void begin_micro_batch(std::size_t iteration) {
    flush();
    const auto [step, micro] = config_.micro_batches.at(iteration);
    if (micro == 0) put({"step", step});
    put({"micro", micro});
  }
  static bool enters_forward(const Instruction& i) {
    return i.phase == Phase::RootPreForward || i.phase == Phase::PreForward || i.phase == Phase::Forward;
  }
  bool leaves_forward(const Instruction& i) const {
    if (i.kind == InstructionKind::Mark && plan_.name_of(i.name).starts_with("call:")) return true;
    return i.kind == InstructionKind::Backward || i.kind == InstructionKind::Clip ||
           i.kind == InstructionKind::OptimizerStep || i.kind == InstructionKind::Zero ||
           (i.phase >= Phase::PreBackward && i.phase <= Phase::Optimizer);
  }
  void end_forward() {
    if (!begun_forward_) return;
    begun_forward_ = false;
    ended_forward_ = true;
    flush();
    put({"loss"});
  }

  using Key = std::tuple<BufferWhat, int, int, int>;
  static Key key(const BufferName& name, int instance) {
    return {name.what, name.unit.value, name.param.value, instance};
  }

  std::string unit(UnitId id) const {
    if (!id.valid()) return "";
    const auto found = config_.alias.find(plan_.units[id.index()].name);
    return found == config_.alias.end() ? plan_.units[id.index()].name : found->second;
  }
  std::string param(ParamId id) const { return plan_.param_names[id.index()]; }
  static std::string stream(Stream s) { return s == Stream::X ? "X0" : std::string(stream_name(s)); }

  void put(Json row) { rows_.push_back(std::move(row)); }

  // What follows a segment's backward, once its gradients are there.
  void flush() {
    flush_grads();
    if (!copy_in_.is_null()) put(std::move(copy_in_));
    copy_in_ = Json();
  }
  void flush_grads() {
    for (; !open_.empty(); open_.erase(open_.begin())) {
      if (open_.front().sends_on) put({"compute", "D", open_.front().label + ".bwd_end"});
    }
  }

  void row(const Instruction& i) {
    const bool grad = i.kind == InstructionKind::Mark && plan_.name_of(i.name) == "grad";
    const bool piece = i.kind == InstructionKind::Accumulate || (added_ && i.kind == InstructionKind::Free);
    added_ = i.kind == InstructionKind::Accumulate;
    const bool taken = i.kind == InstructionKind::Mark && plan_.name_of(i.name) == "copy_in_grad";
    if (!grad && !piece) flush_grads();
    if (!taken) {
      if (!copy_in_.is_null()) put(std::move(copy_in_));
      copy_in_ = Json();
    }
    if (piece) return;
    switch (i.kind) {
      case InstructionKind::WaitStream: put({"wait_stream", stream(i.stream), stream(i.other)}); break;
      case InstructionKind::WaitEvent: put({"wait_event", stream(i.stream), event(i.event)}); break;
      case InstructionKind::HostWait: put({"host_sync", event(i.event)}); break;
      case InstructionKind::RecordEvent: record(i); break;
      case InstructionKind::Alloc: alloc(i); break;
      case InstructionKind::Free: free(i); break;
      case InstructionKind::Resize: put({"resize", param(i.buffer.param), stream(i.stream), i.bytes}); break;
      case InstructionKind::Cast:
      case InstructionKind::CopyIn:
      case InstructionKind::CopyOut:
      case InstructionKind::Concat:
      case InstructionKind::Add:
      case InstructionKind::Divide:
        put({"op", stream(i.stream), plan_.name_of(i.name), i.numel, short_dtype(i.dtype)});
        if (i.kind == InstructionKind::Concat) joined(i);
        break;
      case InstructionKind::H2d:
        put({"h2d", stream(i.stream), param(i.buffer.param), i.bytes, i.blocking ? "blocking" : "non_blocking"});
        break;
      case InstructionKind::D2h:
        put({"d2h", stream(i.stream), unit(i.unit), i.bytes, i.blocking ? "blocking" : "non_blocking"});
        break;
      case InstructionKind::AllGather:
        put({"coll", "all_gather", stream(i.stream), unit(i.unit), i.numel, short_dtype(i.dtype), plan_.group_size(i),
             buffer(i.buffer, i.arg)});
        break;
      case InstructionKind::ReduceScatter:
        put({"coll", "reduce_scatter", stream(i.stream), unit(i.unit), i.numel, short_dtype(i.dtype),
             plan_.group_size(i), buffer(i.buffer, 0), op_name(i.reduce_op)});
        break;
      case InstructionKind::AllReduce: all_reduce(i); break;
      case InstructionKind::Forward: forward(i); break;
      case InstructionKind::Recompute: recompute(i); break;
      case InstructionKind::Backward: backward(i); break;
      case InstructionKind::Clip: put({"call", "clip_grad_norm_", i.factor}); break;
      case InstructionKind::OptimizerStep: put({"optimizer"}); break;
      case InstructionKind::Zero: put({"zero_grad"}); break;
      case InstructionKind::Mark: mark(i); break;
      default: break;
    }
  }

  /// A parameter sharded along another dimension is put together in its own storage, which the recorder takes for a new
  /// buffer when it meets it for the first time.
  void joined(const Instruction& i) {
    if (plan_.name_of(i.name) != "aten.cat" || !joined_.insert(i.buffer.param).second) return;
    put({"alloc", "b" + std::to_string(next_buffer_++), "cat:" + unit(i.unit), stream(i.stream),
         i.numel * itemsize(i.dtype)});
  }

  std::string event(EventId id) {
    const auto found = events_.find(id);
    return found == events_.end() ? "?" : found->second;
  }

  void record(const Instruction& i) {
    const std::string name = "e" + std::to_string(events_.size() + 1);
    events_[i.event] = name;
    const std::string label(plan_.name_of(i.name));
    put({"record", name, stream(i.stream), label == "user" ? label : label + ":" + unit(i.unit)});
  }

  std::string buffer(const BufferName& name, int instance) {
    const auto found = buffers_.find(key(name, instance));
    return found == buffers_.end() ? "?" : found->second.first;
  }

  void open_buffer(const BufferName& name, int instance, Stream pool, Bytes bytes) {
    std::string label = kinds_by_unit().at(name.what);
    // One rank casts in the wait itself; the recorder names that buffer by its kernel.
    if (name.what == BufferWhat::Cast && pool == Stream::D && plan_.units[name.unit.index()].shard_size == 1)
      label = "_to_copy";
    const bool by_param = name.what == BufferWhat::H2dCopy || name.what == BufferWhat::Grad;
    label += ":" + (by_param ? param(name.param) : unit(name.unit));
    const std::string id = "b" + std::to_string(next_buffer_++);
    buffers_[key(name, instance)] = {id, label};
    put({"alloc", id, label, stream(pool), bytes});
  }

  /// A unit of one rank divides what it would reduce within one expression: made behind the output, gone behind the
  /// copy.
  bool is_quotient(const Instruction& i) const {
    const bool made = before_.kind == InstructionKind::Alloc && before_.buffer.what == BufferWhat::RsOutput;
    const bool copied = before_.kind == InstructionKind::CopyOut && before_.buffer.what == BufferWhat::RsOutput;
    return i.buffer.what == BufferWhat::GradCast && (i.kind == InstructionKind::Alloc ? made : copied);
  }

  // What the recorder did not watch: optimizer memory, a cast buffer on D, what no name holds.
  bool unseen(const Instruction& i) const {
    return !kinds_by_unit().contains(i.buffer.what) || is_quotient(i) ||
           (i.buffer.what == BufferWhat::CastBuffer && i.stream == Stream::D);
  }

  void alloc(const Instruction& i) {
    if (unseen(i)) return;
    if (i.buffer.what == BufferWhat::ShardDimTemp)
      put({"op", "D", "aten.empty_like", i.bytes / itemsize(i.dtype), short_dtype(i.dtype)});
    open_buffer(i.buffer, i.arg, i.stream, i.bytes);
    if (i.buffer.what == BufferWhat::PostForwardShard) {
      const ParamInfo& info = config_.model.params[i.buffer.param.index()];
      put({"op", "D", kShapeOperator, numel_of(info.shape), short_dtype(info.dtype)});
    }
  }

  void free(const Instruction& i) {
    if (unseen(i) || (i.buffer.what == BufferWhat::Grad && !i.buffer.unit.valid())) return;
    const auto found = buffers_.find(key(i.buffer, i.arg));
    if (found == buffers_.end()) {
      put({"free", "?", buffer_name(plan_, i.buffer)});
      return;
    }
    put({"free", found->second.first, found->second.second});
    buffers_.erase(found);
  }

  void all_reduce(const Instruction& i) {
    if (i.unit.valid()) {
      put({"coll", "all_reduce", stream(i.stream), unit(i.unit), i.numel, short_dtype(i.dtype), plan_.group_size(i),
           buffer(i.buffer, i.arg), op_name(i.reduce_op)});
    } else {
      put({"coll", "all_reduce_functional", stream(i.stream), "", i.numel, short_dtype(i.dtype), plan_.group_size(i),
           nullptr, i.reduce_op == ReduceOp::Max ? "max" : "sum"});
    }
  }

  // ---- the model's own work. A block with units inside is made of parts; its marks are its first and last ones.

  struct Place {
    std::string label;
    bool part = false, first = false, last = false, summed = false;
  };

  Place place(SegmentId id) const {
    const Segment& segment = plan_.segments[id.index()];
    std::string fqn = segment.label;
    Place place;
    if (!fqn.starts_with("blocks.")) {
      place.label = fqn;
      return place;
    }
    const std::size_t end = fqn.find('.', 7);
    place.label = "B" + fqn.substr(7, end == std::string::npos ? end : end - 7);
    const auto same_block = [&](std::size_t s) {
      const std::string& other = plan_.segments[s].label;
      return other.substr(0, other.find('.', 7)) == fqn.substr(0, end);
    };
    place.part = fqn.find(".lin") != std::string::npos || plan_.segments[id.index()].params.empty();
    if (!place.part) return place;
    std::size_t begin = id.index(), stop = id.index();
    while (begin > 0 && same_block(begin - 1)) --begin;
    while (stop + 1 < plan_.segments.size() && same_block(stop + 1)) ++stop;
    const std::size_t offset = (id.index() - begin) % 6;
    place.first = offset == 0;
    place.last = offset == 5;
    place.summed = offset == 4;
    return place;
  }

  void forward(const Instruction& i) {
    const Place p = place(i.segment);
    if (p.label.empty()) put({"compute", "D", "embed.fwd"});
    if (p.label.empty() || p.label == "embed") return;  // the root's own mark stands for it
    if (!p.part || p.summed) put({"compute", "D", p.label + ".fwd"});
  }

  void recompute(const Instruction& i) {
    const Place p = place(i.segment);
    if (!p.part) {
      put({"compute", "D", p.label + ".bwd_begin"});
      begun_ = true;
    }
    if (!p.part || p.first) put({"compute", "D", p.label + ".recompute"});
  }

  void backward(const Instruction& i) {
    const Place p = place(i.segment);
    if (p.part) {
      if (p.last) put({"compute", "D", p.label + ".bwd_begin"});
      if (p.first) put({"compute", "D", p.label + ".bwd_end"});
      return;
    }
    if (p.label.empty()) put({"compute", "D", "embed.bwd_begin"});
    if (p.label.empty() || p.label == "embed") return;
    if (!begun_) put({"compute", "D", p.label + ".bwd_begin"});
    begun_ = false;
    open_.push_back({p.label, i.arg == 1});
  }

  void mark(const Instruction& i) {
    const std::string name(plan_.name_of(i.name));
    if (name.starts_with("begin ") || name.starts_with("end ")) {
      const std::size_t space = name.find(' ');
      put({name.substr(0, space), name.substr(space + 1), unit(i.unit)});
      if (name == "begin root_pre_forward" && !streams_) {
        streams_ = true;
        for (const StreamInfo& info : plan_.streams) put({"stream", stream(info.stream), info.priority});
      }
    } else if (name == "grad") {
      if (!i.buffer.unit.valid()) return;  // an ignored parameter's; nobody watched it
      if (i.arg == 0) open_buffer(i.buffer, 0, Stream::D, i.bytes);
      put({"grad", param(i.buffer.param), short_dtype(i.dtype), config_.model.params[i.buffer.param.index()].shape});
    } else if (name == "copy_in_grad") {
      if (copy_in_.is_null()) copy_in_ = {"copy_in_grads", unit(i.unit), Json::array()};
      copy_in_[2].push_back(param(i.buffer.param));
    } else if (name == "wait_work") {
      put({"wait_work", stream(i.stream), "all_gather"});
    } else if (name == "all_reduce_hook") {
      put({"hook", stream(i.stream), name, i.numel, short_dtype(i.dtype)});
    } else if (name.starts_with("call:")) {
      user_call(name);
    }
  }

  void user_call(const std::string& text) {
    if (calls_++ < static_cast<int>(config_.setup_calls)) return;
    Result<Action> action = parse_action(text);
    if (!action || action->method == "set_post_optim_event" || action->method == "set_all_reduce_hook")
      return;  // not logged
    Json row = {"call", config_.alias.at(action->unit), action->method};
    if (action->method == "state_dict") row = {"call", "state_dict"};
    if (!action->args.empty()) {
      for (const Json& arg : Json::parse("[" + action->args + "]")) row.push_back(arg);
    }
    put(std::move(row));
  }

  struct OpenBackward {
    std::string label;
    bool sends_on = false;
  };

  const TraceConfig& config_;
  const Plan& plan_;
  Json rows_ = Json::array();
  std::map<EventId, std::string> events_;
  std::map<Key, std::pair<std::string, std::string>> buffers_;
  std::vector<OpenBackward> open_;
  Json copy_in_;
  int next_buffer_ = 0, calls_ = 0;
  bool added_ = false;  // the gradient freed next went into another one
  Instruction before_;  // the one before
  bool streams_ = false, begun_ = false, begun_forward_ = false, ended_forward_ = false;
  std::set<ParamId> joined_;
};

}  // namespace

Json print_events(const TraceConfig& config, const Plan& plan) { return Printer(config, plan).print(); }

Json count_events(const Json& events) {
  Json counts = Json::object();
  std::map<std::string, int> live;
  std::map<std::string, int> peak;
  std::map<std::string, std::pair<std::string, std::int64_t>> buffers;
  std::map<std::string, std::int64_t> storages;
  std::int64_t total = 0, most = 0;
  for (const Json& e : events) {
    const std::string kind = e.at(0);
    if (kind == "coll") {
      const std::string what = e.at(1);
      counts[what] = counts.value(what, 0) + 1;
    } else if (kind == "h2d" || kind == "d2h" || kind == "host_sync") {
      counts[kind] = counts.value(kind, 0) + 1;
    } else if (kind == "alloc") {
      const std::string label = e.at(2).get<std::string>().substr(0, e.at(2).get<std::string>().find(':'));
      buffers[e.at(1)] = {label, e.at(4)};
      peak[label] = std::max(peak[label], ++live[label]);
      total += e.at(4).get<std::int64_t>();
    } else if (kind == "free" && buffers.contains(e.at(1))) {
      --live[buffers.at(e.at(1)).first];
      total -= buffers.at(e.at(1)).second;
    } else if (kind == "resize") {
      total += e.at(3).get<std::int64_t>() - storages[e.at(1)];
      storages[e.at(1)] = e.at(3);
    }
    most = std::max(most, total);
  }
  counts["peak_live_buffers"] = peak;
  counts["peak_bytes_params_and_comm"] = most;
  return counts;
}

}  // namespace foreshard::oracle
