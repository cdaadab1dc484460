#include "tests/oracle/kinds/fsdp1_schedules_tokens.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace foreshard::oracle {
namespace {

/// What a buffer looked like when it was allocated.
struct Buffer {
  Numel numel = 0;
  DType dtype = DType::Float32;
  Stream pool = Stream::D;
  bool pinned = false;
};

class Printer {
 public:
  Printer(const Plan& plan, const Model& model) : plan_(plan) {
    for (const CallGraph& graph : model.calls) containers_.insert(graph.module);
  }
  Json print();

 private:
  Json iteration(const PlanIteration& it);
  void instruction(const Instruction& i);
  void mark(const Instruction& i);
  void head(const std::string& text);
  void token(std::string text);
  void compute(const Instruction& i, bool backward);
  void note(const Instruction& i);
  void ledger(const Instruction& i);
  void record(UnitId unit, const std::string& what, Numel numel, DType dtype, const std::string& pool);
  void final_gradients();
  Json unit_table() const;

  std::string label(UnitId unit) const {
    return plan_.units[unit.index()].name.empty() ? "R" : plan_.units[unit.index()].name;
  }
  const PlanUnit& unit(UnitId id) const { return plan_.units[id.index()]; }
  bool sharded(UnitId id) const { return unit(id).strategy != Strategy::NoShard; }
  std::string at(Stream stream, Stream usual) const {
    return stream == usual ? "" : "@" + std::string(stream_name(stream));
  }
  std::string event(EventId id) const { return "e" + std::to_string(events_.at(id)); }
  const Buffer* alive(UnitId id, BufferWhat what) const {
    const auto it = alive_.find({id, what});
    return it == alive_.end() ? nullptr : &it->second;
  }
  Json live() const;

  const Plan& plan_;
  std::set<ModuleId> containers_;
  Json lines_ = Json::array();
  std::vector<std::string> tokens_;
  std::string head_;
  std::string pending_free_;
  UnitId head_unit_;
  Phase head_phase_ = Phase::None;
  bool final_syncs_ = false;
  std::string last_compute_;  // what the recorder names an older event by
  std::map<EventId, std::string> record_names_;
  std::map<EventId, int> events_;
  int free_count_ = 0;
  SegmentId unpacked_;
  bool limiter_off_ = false;
  std::map<std::pair<UnitId, BufferWhat>, Buffer> alive_;
  std::set<UnitId> host_grads_;
  Json ledger_ = Json::object(), pools_ = Json::object();
};

std::string pool_name(const Buffer& buffer) {
  return buffer.pool == Stream::Host ? (buffer.pinned ? "host, pinned" : "host")
                                     : std::string(stream_name(buffer.pool));
}

Json Printer::live() const {
  std::string text;
  for (std::size_t u = 0; u < plan_.units.size(); ++u) {
    std::string word;
    if (alive(UnitId(u), BufferWhat::Full) != nullptr) {
      word = label(UnitId(u));
    } else if (alive(UnitId(u), BufferWhat::FullPrecision) != nullptr) {
      word = label(UnitId(u)) + "(full precision)";
    }
    if (!word.empty()) text += (text.empty() ? "" : " ") + word;
  }
  return text;
}

void Printer::head(const std::string& text) {
  if (head_phase_ == Phase::Final && final_syncs_) final_gradients();
  if (!head_.empty()) lines_.push_back({head_, fmt::format("{}", fmt::join(tokens_, "; ")), live()});
  head_ = text;
  head_phase_ = Phase::None;
  tokens_.clear();
}

void Printer::token(std::string text) { tokens_.push_back(std::move(text)); }

void Printer::mark(const Instruction& i) {
  const std::string_view name = plan_.name_of(i.name);
  const std::string of = i.unit.valid() ? " " + label(i.unit) : "";
  if (name == "enter") {
    switch (i.phase) {
      case Phase::RootPreForward: head("root-pre"); break;
      case Phase::PreForward: head("fwd" + of); break;
      case Phase::PostForward: head("out" + of); break;
      case Phase::PreBackward: head("bwd" + of); break;
      case Phase::PostBackward: head("post" + of); break;
      case Phase::FrozenPostBackward: head("frozen-post" + of); break;
      case Phase::Final: head("final"); break;
      case Phase::Optimizer: head("step"); break;
      case Phase::Clip: head("clip"); break;
      default: head("?"); break;
    }
    head_unit_ = i.unit;
    head_phase_ = i.phase;
    final_syncs_ = false;
    return;
  }
  static const std::map<std::string_view, std::string> kHeads{{"summon_enter", "summon-enter"},
                                                              {"summon_entered", "summoned"},
                                                              {"summon_exit", "context-exit"},
                                                              {"no_sync_exit", "context-exit"},
                                                              {"wait_unshard", "unshard-wait"}};
  static const std::map<std::string_view, std::string> kTokens{{"skip", "skip"},
                                                               {"stop", "stop"},
                                                               {"no_gradient", "no gradient"},
                                                               {"prefetch_begin", "pf("},
                                                               {"prefetch_end", ")"}};
  static const std::map<std::string_view, std::string> kUnitTokens{
      {"held_gradient", "heldgrad"}, {"saved_gradient", "savegrad"}, {"cleared_gradient", "cleargrad"}};
  if (const auto it = kHeads.find(name); it != kHeads.end()) return head(it->second);
  if (const auto it = kTokens.find(name); it != kTokens.end()) return token(it->second);
  if (const auto it = kUnitTokens.find(name); it != kUnitTokens.end()) return token(it->second + of);
  if (name == "unshard") return head("unshard" + of);
  if (name == "lazy_init" && head_ == "root-pre") return token("lazy-init");
  if (name == "unpack") {
    compute(i, true);
    unpacked_ = i.segment;
  }
}

void Printer::compute(const Instruction& i, bool backward) {
  if (backward && i.kind == InstructionKind::Backward && unpacked_ == i.segment) {
    unpacked_ = {};
    return;
  }
  const Segment& segment = plan_.segments[i.segment.index()];
  if (containers_.contains(segment.module)) return;  // an addition or an activation: the recorder marks layers only
  last_compute_ = "D:" + segment.label + (backward ? "'" : "");
  token(last_compute_);
}

void Printer::note(const Instruction& i) {
  if (i.origin == Origin::Autograd) return;
  const std::string to = "@" + std::string(stream_name(i.other));
  const auto gradient = [&](UnitId id, Numel numel) {
    const PlanUnit& u = unit(id);
    return sharded(id) && numel == u.shard_numel && numel != u.flat_numel ? "gshard" : "grad";
  };
  switch (i.buffer.what) {
    case BufferWhat::Full: return token("note full(" + label(i.unit) + ")" + to);
    case BufferWhat::FullPrecision: return token("note fullfp(" + label(i.unit) + ")" + to);
    case BufferWhat::CastShard: return token("note mp(" + label(i.unit) + ")" + to);
    case BufferWhat::ViewedCopy:
    case BufferWhat::H2dCopy:
      // The recorder takes an unknown tensor inside a post-backward for that unit's gradient.
      if (head_phase_ == Phase::PostBackward) {
        return token(
            fmt::format("note {}({}){}", gradient(head_unit_, unit(i.unit).shard_numel), label(head_unit_), to));
      }
      return token("note h2d" + to);
    case BufferWhat::Grad:
    case BufferWhat::GradReduce: return token("note grad(" + label(i.unit) + ")" + to);
    default: return token(fmt::format("note {}({}){}", gradient(i.unit, unit(i.unit).shard_numel), label(i.unit), to));
  }
}

void Printer::record(UnitId id, const std::string& what, Numel numel, DType dtype, const std::string& pool) {
  Json& sizes = ledger_[label(id)];
  const Json value = {numel, std::string(dtype_short_name(dtype))};
  if (!sizes.contains(what)) sizes[what] = value;
  if (sizes[what] != value) sizes[what + " (later)"] = value;
  Json& pools = pools_[label(id)][what];
  if (pools.is_null()) pools = Json::array();
  if (std::find(pools.begin(), pools.end(), Json(pool)) == pools.end()) pools.push_back(pool);
}

// The buffers that the recorder looked at, at the places where it looked.
void Printer::ledger(const Instruction& i) {
  const auto note_buffer = [&](const std::string& what, UnitId id, const Buffer* buffer) {
    if (buffer != nullptr) record(id, what, buffer->numel, buffer->dtype, pool_name(*buffer));
  };
  if (i.kind == InstructionKind::Cast && i.buffer.what == BufferWhat::CastShard) {
    note_buffer("cast shard", i.unit, alive(i.unit, BufferWhat::CastShard));
  } else if (i.kind == InstructionKind::AllGather &&
             (i.buffer.what == BufferWhat::Full || i.buffer.what == BufferWhat::FullPrecision)) {
    const Buffer* input = alive(i.unit, BufferWhat::CastShard);
    if (input == nullptr) input = alive(i.unit, BufferWhat::H2dCopy);
    const Buffer shard{unit(i.unit).shard_numel, unit(i.unit).orig_dtype, Stream::D, false};
    note_buffer("gather input", i.unit, input != nullptr ? input : &shard);
    note_buffer(i.buffer.what == BufferWhat::Full ? "gather output" : "gather output (full precision)", i.unit,
                alive(i.unit, i.buffer.what));
  } else if (i.kind == InstructionKind::UseShard && head_phase_ == Phase::PostBackward && i.unit == head_unit_) {
    note_buffer("autograd gradient", i.unit, alive(i.unit, BufferWhat::Grad));
  } else if (i.kind == InstructionKind::ReduceScatter) {
    const Buffer* input = alive(i.unit, BufferWhat::GradPadded);
    if (input == nullptr) input = alive(i.unit, BufferWhat::GradReduce);
    if (input == nullptr) input = alive(i.unit, BufferWhat::Grad);
    note_buffer("reduce input", i.unit, input);
    note_buffer("reduce output", i.unit, alive(i.unit, i.buffer.what));
  } else if (i.kind == InstructionKind::NoteUse && i.buffer.what == BufferWhat::Grad && i.origin == Origin::Fsdp &&
             sharded(i.unit)) {
    const Buffer* saved = alive(i.unit, BufferWhat::SavedGrad);
    note_buffer("saved shard gradient", i.unit, saved != nullptr ? saved : alive(i.unit, BufferWhat::ShardGrad));
  }
}

void Printer::final_gradients() {
  for (std::size_t n = 0; n < plan_.units.size(); ++n) {
    const UnitId id(n);
    // A frozen unit's pinned zeros are nobody's gradient.
    const Buffer* buffer = plan_.units[n].requires_grad ? alive(id, BufferWhat::HostGrad) : nullptr;
    for (const BufferWhat what :
         {BufferWhat::ShardGrad, BufferWhat::SavedGrad, BufferWhat::GradReduce, BufferWhat::Grad}) {
      if (buffer == nullptr) buffer = alive(id, what);
    }
    if (buffer != nullptr) record(id, "final gradient", buffer->numel, buffer->dtype, pool_name(*buffer));
  }
}

void Printer::instruction(const Instruction& i) {
  const std::string u = i.unit.valid() ? " " + label(i.unit) : "";
  const std::string stream(stream_name(i.stream)), other(stream_name(i.other));
  const std::string ag = i.origin == Origin::Autograd ? "!ag" : "";
  ledger(i);
  switch (i.kind) {
    case InstructionKind::Mark: return mark(i);
    case InstructionKind::WaitStream:
      final_syncs_ = final_syncs_ || (head_phase_ == Phase::Final && i.other == Stream::G);
      return token(stream + "<-" + other + ag);
    case InstructionKind::RecordEvent:
      if (ag.empty()) return token("ev(" + stream + ")");
      record_names_[i.event] = last_compute_.starts_with(stream) ? last_compute_ : stream;
      return;
    case InstructionKind::WaitEvent:
      return token(stream + "<-ev(" +
                   (ag.empty()                        ? other
                    : record_names_.contains(i.event) ? record_names_[i.event]
                                                      : other) +
                   ")" + ag);
    case InstructionKind::HostWait:
      if (i.event.valid()) return;  // the wait of a pop, which is printed with it
      return token(i.other == Stream::Host ? "CPU!device" : "CPU!" + other);
    case InstructionKind::LimiterCheck: return token(i.event.valid() ? "pop " + event(i.event) : "lim-");
    case InstructionKind::LimiterPush:
      events_[i.event] = ++free_count_;
      token(pending_free_ + " >" + event(i.event) + at(i.stream, Stream::D));
      return pending_free_.clear();
    case InstructionKind::UseShard:
      if (i.arg == 1) return token("keep" + u);
      pending_free_ = (i.arg == 2 ? "refree" : "free") + u;
      if (i.arg == 2) {  // the recorder does not know the storage of a buffer that is gone
        token("note " + (head_phase_ == Phase::PostBackward ? "grad(" + label(head_unit_) + ")" : "h2d") + "@" +
              stream);
        if (limiter_off_) token(std::exchange(pending_free_, {}));
      }
      return;
    case InstructionKind::CopyOut:
      if (i.phase != Phase::Summon) token("writeback" + u);
      return;
    case InstructionKind::Alloc:
      if (i.buffer.unit.valid() && !i.buffer.param.valid())
        alive_[{i.unit, i.buffer.what}] = {i.numel, i.dtype, i.stream, i.pinned};
      return;
    case InstructionKind::Free:
      if (!i.buffer.param.valid()) alive_.erase({i.unit, i.buffer.what});
      if (i.buffer.what == BufferWhat::CastShard) token("-mp" + u);
      if (limiter_off_ && !pending_free_.empty() &&
          (i.buffer.what == BufferWhat::Full || i.buffer.what == BufferWhat::FullPrecision)) {
        token(pending_free_);
        pending_free_.clear();
      }
      return;
    case InstructionKind::NoteUse: return note(i);
    case InstructionKind::UseFull:
      if (i.arg == 1) token("VW" + u + at(i.stream, Stream::U));
      return;
    case InstructionKind::Cast:
      if (i.buffer.what == BufferWhat::CastShard) return token("cast" + u);
      if (i.buffer.what == BufferWhat::GradReduce) return token("rcast" + u);
      if (i.phase == Phase::PostBackward) token("ocast" + u);
      return;
    case InstructionKind::H2d:
      if ((i.buffer.what == BufferWhat::H2dCopy || i.buffer.what == BufferWhat::ViewedCopy) && i.arg == 0)
        token((i.pinned ? "h2d" : "h2d(pageable)") + u);
      return;
    case InstructionKind::D2h:
      if (i.buffer.what == BufferWhat::HostGrad) return token((i.blocking ? "d2h!" : "d2h") + u);
      return token("d2h(full)" + u);
    case InstructionKind::AllGather:
      if (i.buffer.what == BufferWhat::Grad) return;
      return token("AG" + u + (i.buffer.what == BufferWhat::FullPrecision ? "(full precision)" : "") +
                   at(i.stream, Stream::U));
    case InstructionKind::ReduceScatter: return token("RS" + u);
    case InstructionKind::AllReduce:
      if (i.phase == Phase::PostBackward) {
        const bool replicas = plan_.communicators[i.communicator.index()].kind == kReplicateDimension;
        token((replicas ? "ARrep" : "AR") + u);
      }
      return;
    case InstructionKind::Concat:
      if (i.stream == Stream::U) token("U:cat");
      return;
    case InstructionKind::Fill:
      if (i.stream == Stream::U) token("U:zero");
      return;
    case InstructionKind::Add:
      if (i.stream == Stream::U) token("U:add");
      return;
    case InstructionKind::Accumulate: return token("acc" + u);
    case InstructionKind::Pad: return token("pad" + u);
    case InstructionKind::Divide: return token(fmt::format("div {:g}", i.factor));
    case InstructionKind::Forward:
    case InstructionKind::Recompute: return compute(i, false);
    case InstructionKind::Backward: return compute(i, true);
    case InstructionKind::OptimizerStep: return token(i.on_host ? "CPU:optimizer" : "D:optimizer");
    default: return;
  }
}

Json Printer::iteration(const PlanIteration& it) {
  lines_ = Json::array();
  tokens_.clear();
  head_.clear();
  last_compute_ = "start";
  for (const Instruction& i : it.instructions) instruction(i);
  head("");
  Json out;
  out["actions"] = it.actions;
  out["lines"] = lines_;
  const auto names = [&](const std::vector<UnitId>& order) {
    Json list = Json::array();
    for (const UnitId id : order) list.push_back(label(id));
    return list;
  };
  out["pre_order"] = names(it.pre_order);
  out["post_order"] = names(it.post_order);
  Json pre = Json::object();
  for (std::size_t u = 0; u < plan_.units.size(); ++u) {
    if (plan_.units[u].params.empty()) continue;
    const auto found = std::find(it.pre_order.begin(), it.pre_order.end(), UnitId(u));
    pre[label(UnitId(u))] = found == it.pre_order.end() ? Json() : Json(found - it.pre_order.begin());
  }
  out["pre_index"] = pre;
  const bool final_ran = std::any_of(it.instructions.begin(), it.instructions.end(), [&](const Instruction& i) {
    return i.kind == InstructionKind::Mark && i.phase == Phase::Final && plan_.name_of(i.name) == "enter";
  });
  if (final_ran) {
    // O3: the index of a unit's first run, but 0 counts as none.
    std::map<std::string, std::size_t> post;
    for (std::size_t n = 0; n < it.post_order.size(); ++n) {
      std::size_t& index = post.try_emplace(label(it.post_order[n]), 0).first->second;
      if (index == 0) index = n;
    }
    out["post_index"] = post;
  } else {
    out["post_index"] = Json();
  }
  Json queue = Json::array();
  for (const EventId id : it.limiter_queue) queue.push_back(event(id));
  out["queue"] = queue;
  return out;
}

Json Printer::unit_table() const {
  Json rows = Json::array();
  for (const PlanUnit& u : plan_.units) {
    if (u.params.empty()) continue;
    const auto name = [&](ParamId id) {
      return plan_.param_names[id.index()].substr(u.name.empty() ? 0 : u.name.size() + 1);
    };
    Json params = Json::array(), shared = Json::array();
    for (const ParamId id : u.params) params.push_back(name(id));
    for (const SharedName& s : u.shared) shared.push_back({name(s.name), name(s.of)});
    rows.push_back({{"unit", u.name.empty() ? "R" : u.name},
                    {"strategy", strategy_name(u.strategy)},
                    {"n", u.flat_numel},
                    {"c", u.shard_numel},
                    {"F", u.padded_numel},
                    {"shard_group", plan_.groups.shard.size()},
                    {"e_o", dtype_short_name(u.orig_dtype)},
                    {"e_c", dtype_short_name(u.param_dtype)},
                    {"e_r", dtype_short_name(u.reduce_dtype)},
                    {"requires_grad", u.requires_grad},
                    {"params", params},
                    {"shared", shared}});
  }
  return rows;
}

Json Printer::print() {
  limiter_off_ = true;
  for (const PlanIteration& it : plan_.iterations) {
    for (const Instruction& i : it.instructions) limiter_off_ = limiter_off_ && i.kind != InstructionKind::LimiterCheck;
  }
  Json out;
  out["unit_table"] = unit_table();
  Json streams = Json::array();
  for (const StreamInfo& s : plan_.streams) streams.push_back({stream_name(s.stream), s.priority});
  out["streams"] = streams;
  out["divide"] = {{"pre", plan_.pre_divide}, {"post", plan_.post_divide}};
  Json iterations = Json::array();
  for (const PlanIteration& it : plan_.iterations) iterations.push_back(iteration(it));
  if (plan_.failure && !iterations.empty())
    iterations.back()["error"] = {plan_.failure->action, plan_.failure->error_class};
  out["iterations"] = iterations;
  out["ledger"] = ledger_;
  out["pools"] = pools_;
  return out;
}

}  // namespace

Json schedule_of_plan(const Plan& plan, const Model& model) { return Printer(plan, model).print(); }

}  // namespace foreshard::oracle
