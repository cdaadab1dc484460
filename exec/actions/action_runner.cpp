#include "exec/actions/action_runner.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "exec/actions/action_runner_buffers.h"
#include "exec/actions/action_runner_layout.h"
#include "exec/actions/action_runner_optimizer.h"
#include "exec/communicators/in_process_communicator.h"
#include "exec/step/iteration_walk.h"
#include "exec/torch/torch_types.h"

namespace foreshard::exec {
namespace {

bool is_full(BufferWhat what) { return what == BufferWhat::Full || what == BufferWhat::FullPrecision; }

class Runner : public ActionRunner {
 public:
  explicit Runner(ActionSetup setup)
      : setup_(std::move(setup)),
        layout_(setup_.source),
        stream_(setup_.backend.create_stream(stream_name(Stream::D), 0)),
        buffers_(setup_.backend, stream_),
        optimizer_(setup_.source, buffers_, layout_) {}

  void make_state(bool optimizer) override {
    for (std::size_t u = 0; u < units().size(); ++u) make_shards(UnitId(u));
    for (std::size_t p = 0; p < model().params.size(); ++p) {
      const ParamInfo& param = model().params[p];
      const ActionBuffer home = home_of(ParamId(p));
      if (param.shares.valid() || home.name.what != BufferWhat::Param || has(home.name)) continue;
      buffers_.allocate_zero({home.name, 0, false}, numel_of(param.shape), param.dtype);
    }
    for (std::size_t b = 0; b < model().buffers.size(); ++b) {
      const BufferInfo& buffer = model().buffers[b];
      make_module_buffer({{BufferWhat::ModuleBuffer, {}, {}}, static_cast<std::int32_t>(b), false},
                         numel_of(buffer.shape), buffer.dtype);
    }
    if (optimizer) optimizer_.make_state();
    settle();
  }

  void set_state(const TrainState& state) override {
    for (std::size_t u = 0; u < units().size(); ++u) make_shards(UnitId(u));
    const bool moments = std::ranges::any_of(state.tensors, [this](const StateTensor& t) { return instance(t) > 0; });
    if (moments) optimizer_.make_state();
    settle();
    for (const StateTensor& tensor : state.tensors) {
      if (tensor.slot == "buffer" || tensor.pieces.empty()) continue;
      for (const auto& [from, to] : pairs(tensor, setup_.source.model.find_param(tensor.fqn))) to.copy_(from);
    }
  }

  TrainState state() const override {
    TrainState state;
    std::vector<std::string> slots{"param"};
    slots.insert(slots.end(), optimizer_.slots().begin(), optimizer_.slots().end());
    for (std::size_t p = 0; p < model().params.size(); ++p) {
      const ParamInfo& info = model().params[p];
      if (info.shares.valid()) continue;
      for (const std::string& slot : slots) {
        StateTensor tensor{info.fqn, slot, info.shape, {}, layout_.pieces(ParamId(p))};
        if (instance(tensor) > 0 && !buffers_.has(optimizer_.home(ParamId(p), instance(tensor)))) continue;
        Numel numel = 0;
        for (const StatePiece& piece : tensor.pieces) numel += piece.numel;
        tensor.local = at::empty({numel}, at::dtype(scalar_type_of(info.dtype)));
        for (const auto& [to, from] : pairs(tensor, ParamId(p))) to.copy_(from);
        state.tensors.push_back(std::move(tensor));
      }
    }
    return state;
  }

  void set_dict(StateDict dict) override { dict_ = std::move(dict); }
  const StateDict& dict() const override { return dict_; }
  void on_shown(std::function<void(ParamId, at::Tensor)> visit) override { visit_ = std::move(visit); }

  Outcome<void> run(std::size_t index) override {
    iteration_ = &setup_.plan.iterations[index];
    request_ = parse_actions(iteration_->actions.front())->front();
    if (!request_.kind_given && setup_.plan.runtime == Runtime::Fsdp2) request_.kind = StateKind::Sharded;
    filled_.assign(units().size(), 0);
    sent_.clear();
    shown_.clear();
    // Everything is on one stream, so that nothing would overlap: each instruction is done before the next is issued,
    // and names mean the same to the issuer and to the stream's work.
    const auto step = static_cast<std::int32_t>(index);
    const auto one_by_one = [this](const Instruction& instruction, const Instruction*,
                                   InstructionId id) -> Outcome<void> {
      id_ = id;
      execute(instruction);
      if (auto done = setup_.backend.synchronize(); !done) return done;
      show(instruction);
      return {};
    };
    const auto walked =
        walk_iteration(setup_.backend, *iteration_, step, first_instruction(setup_.plan, index), one_by_one);
    id_ = {};
    if (!walked) return walked;
    if (request_.action == PlanAction::Save) collect();
    return {};
  }

 private:
  const std::vector<PlanUnit>& units() const { return setup_.plan.units; }
  const PlanUnit& unit_of(const BufferName& buffer) const { return units()[buffer.unit.index()]; }
  const Model& model() const { return setup_.source.model; }

  // ---------------------------------------------------------------------------------------------- memory

  at::Tensor tensor(const BufferName& name, std::int32_t instance = 0, bool on_host = false) const {
    return buffers_.tensor({name, instance, on_host});
  }
  bool has(const BufferName& name, std::int32_t instance = 0, bool on_host = false) const {
    return buffers_.has({name, instance, on_host});
  }

  void allocate(const Instruction& i) {
    const bool on_host = i.stream == Stream::Host;
    const ActionBuffer key{i.buffer, i.arg, on_host};
    if (i.buffer.what == BufferWhat::ModuleBuffer) return make_module_buffer(key, i.numel, i.dtype);
    buffers_.allocate(key, i.numel, i.dtype, id_);
    // A module that exists before it is wrapped has its values; those of meta modules come by reset_parameters.
    const bool made = setup_.source.job.cluster.init != "meta";
    const bool unmanaged =
        setup_.plan.runtime == Runtime::None || (i.buffer.param.valid() && !layout_.place(i.buffer.param).unit.valid());
    if (i.buffer.what == BufferWhat::Param && (made || unmanaged)) fill_param(i.buffer, on_host);
  }

  void make_module_buffer(const ActionBuffer& key, Numel numel, DType dtype) {
    buffers_.allocate(key, numel, dtype, id_);
    work(key.on_host, [this, key, value = setup_.buffers.at(static_cast<std::size_t>(key.instance))] {
      buffers_.tensor(key).copy_(value.reshape({-1}));
    });
  }

  /// What was allocated outside the plan is there. Throws what a stream has failed of.
  void settle() const {
    if (const auto done = setup_.backend.synchronize(); !done) throw std::runtime_error(done.error().text);
  }

  /// Shards that no init made.
  void make_shards(UnitId id) {
    const PlanUnit& unit = units()[id.index()];
    const auto make = [&](BufferName name, Numel numel) {
      if (!has(name)) buffers_.allocate_zero({name, 0, false}, numel, unit.orig_dtype);
    };
    for (const ShardedParam& param : unit.sharded) {
      make({BufferWhat::Shard, id, param.param}, numel_of(param.padded_local_shape));
    }
    if (setup_.plan.runtime != Runtime::Fsdp1 || unit.params.empty()) return;
    make({BufferWhat::Shard, id, {}}, layout_.is_sharded(unit) ? unit.shard_numel : unit.flat_numel);
  }

  /// 0: a parameter itself; else which tensor of the optimizer's state.
  std::int32_t instance(const StateTensor& tensor) const {
    const auto found = std::ranges::find(optimizer_.slots(), tensor.slot);
    return found == optimizer_.slots().end() ? 0 : static_cast<std::int32_t>(found - optimizer_.slots().begin()) + 1;
  }

  ActionBuffer home_of(ParamId param) const {
    const ParamPlace place = layout_.place(param);
    const bool of_unit = place.unit.valid() && setup_.plan.runtime == Runtime::Fsdp1;
    ActionBuffer home{{BufferWhat::Param, place.unit, param}, 0, false};
    if (place.own) home.name = {BufferWhat::Shard, place.unit, param};
    if (!place.own && of_unit) home.name = {BufferWhat::Shard, place.unit, {}};
    home.on_host = !buffers_.has(home);
    return home;
  }

  /// Views of the pieces of `tensor`'s local and of the same elements in the rank's shard.
  std::vector<std::pair<at::Tensor, at::Tensor>> pairs(const StateTensor& tensor, ParamId param) const {
    std::vector<std::pair<at::Tensor, at::Tensor>> views;
    const std::int32_t of = instance(tensor);
    const ActionBuffer place = of > 0 ? optimizer_.home(param, of) : home_of(param);
    if (!buffers_.has(place)) return views;
    const at::Tensor home = buffers_.tensor(place);
    for (const StatePiece& own : of > 0 ? optimizer_.pieces_in_home(param) : layout_.pieces_in_home(param)) {
      for (const StatePiece& piece : tensor.pieces) {
        const Numel from = std::max(own.global_offset, piece.global_offset);
        const Numel numel = std::min(own.global_offset + own.numel, piece.global_offset + piece.numel) - from;
        if (numel <= 0) continue;
        views.emplace_back(tensor.local.view({-1}).narrow(0, piece.local_offset + from - piece.global_offset, numel),
                           home.narrow(0, own.local_offset + from - own.global_offset, numel));
      }
    }
    return views;
  }

  // ---------------------------------------------------------------------------------------------- work

  /// On the host: now, when the device is done with what came before.
  void work(bool on_host, Work what) {
    Work quiet = [what = std::move(what)] {
      at::NoGradGuard no_grad;
      what();
    };
    if (on_host) {
      if (setup_.backend.synchronize()) quiet();
    } else {
      setup_.backend.launch({stream_, id_}, std::move(quiet));
    }
  }

  void collective(const Instruction& i, CollectiveWork what) {
    setup_.backend.collective({stream_, id_}, communicator_of(i), std::move(what));
  }

  /// Of one rank: a gather of a group that meets nobody.
  std::shared_ptr<Communicator> communicator_of(const Instruction& i) {
    auto found = setup_.communicators.find(i.communicator);
    return found != nullptr ? found : alone_;
  }

  void execute(const Instruction& i) {
    const bool on_host = i.stream == Stream::Host;
    const bool moves = i.kind != InstructionKind::Alloc && i.kind != InstructionKind::Free &&
                       i.kind != InstructionKind::AllGather && i.kind != InstructionKind::Broadcast;
    if (moves && ActionOptimizer::concerns(i)) {
      work(on_host, [this, i] { optimizer_.run(i, request_, dict_); });
      return;
    }
    switch (i.kind) {
      case InstructionKind::Alloc: allocate(i); break;
      case InstructionKind::Free: buffers_.release({i.buffer, i.arg, on_host}, id_); break;
      case InstructionKind::UseFull: shown_.push_back(i.buffer); break;
      case InstructionKind::AllGather: all_gather(i); break;
      case InstructionKind::Broadcast: {
        collective(
            i, [this, i](Communicator& c) { c.broadcast(tensor(i.buffer, i.arg).data_ptr(), i.numel, i.dtype, 0); });
        break;
      }
      case InstructionKind::Fill: fill(i); break;
      case InstructionKind::Pad:
        work(on_host, [this, i, on_host] {
          const at::Tensor whole = tensor(i.buffer, i.arg, on_host);
          whole.narrow(0, whole.numel() - i.numel, i.numel).zero_();
        });
        break;
      case InstructionKind::Concat: concat(i); break;
      case InstructionKind::CopyIn:
      case InstructionKind::CopyOut: copy(i); break;
      case InstructionKind::H2d: to_device(i); break;
      case InstructionKind::D2h: to_host(i); break;
      default: break;  // one stream: waits and uses are in its order
    }
  }

  /// Inside summon, when all is there: to whoever asked for it.
  void show(const Instruction& i) {
    const bool is_inside = i.kind == InstructionKind::Mark && setup_.plan.name_of(i.name) == "summon_entered";
    if (!visit_ || request_.action != PlanAction::Summon || !is_inside) return;
    at::NoGradGuard no_grad;
    for (const BufferName& shown : shown_) {
      const bool offloaded = has(shown, 0, true);
      if (!offloaded && !has(shown)) continue;  // rank0_only: resharded at once
      show_flat(unit_of(shown), tensor(shown, 0, offloaded));
    }
    // What is whole anyway needs no unsharding.
    for (std::size_t u = 0; u < units().size(); ++u) {
      const BufferName kept{BufferWhat::Shard, UnitId(u), {}};
      const bool entered = request_.recurse || units()[u].name.empty();
      if (entered && !layout_.is_sharded(units()[u]) && has(kept)) show_flat(units()[u], tensor(kept));
    }
    for (std::size_t p = 0; request_.recurse && p < model().params.size(); ++p) {
      const BufferName plain{BufferWhat::Param, {}, ParamId(p)};
      if (!layout_.place(ParamId(p)).unit.valid() && has(plain))
        visit_(ParamId(p), tensor(plain).view(shape(ParamId(p))));
    }
  }

  void show_flat(const PlanUnit& unit, const at::Tensor& full) const {
    for (const FlatEntry& entry : unit.flat) {
      if (!entry.param.valid()) continue;
      visit_(entry.param, full.narrow(0, entry.offset, entry.numel).view(shape(entry.param)));
    }
  }

  const Shape& shape(ParamId param) const { return model().params[param.index()].shape; }
  at::Tensor initial(ParamId param) const { return setup_.initial(param).contiguous().view({-1}); }

  void fill_param(const BufferName& buffer, bool on_host) {
    work(on_host, [this, buffer, on_host] { tensor(buffer, 0, on_host).copy_(initial(buffer.param)); });
  }

  /// reset_parameters of a module (fsdp1) or of a shard (fsdp2), and zeros.
  void fill(const Instruction& i) {
    const bool resets = setup_.plan.name_of(i.name) == "reset_parameters";
    const bool on_host = i.stream == Stream::Host;
    if (resets && i.buffer.what == BufferWhat::None) {
      for (const ParamId name : model().modules[static_cast<std::size_t>(i.arg)].params) {
        const ParamId param = model().storage_of(name);
        const BufferName buffer{BufferWhat::Param, setup_.source.table.unit_of_param[param.index()], param};
        if (has(buffer)) fill_param(buffer, false);
      }
      return;
    }
    work(on_host, [this, i, resets, on_host] {
      const at::Tensor to = tensor(i.buffer, i.arg, on_host);
      to.zero_();
      if (resets) layout_.copy_rows(i.buffer.param, initial(i.buffer.param).view(shape(i.buffer.param)), to);
    });
  }

  void all_gather(const Instruction& i) {
    collective(i, [this, i](Communicator& c) {
      at::Tensor from = sent(i);
      const Numel each = i.numel / c.size();
      if (from.numel() < each) from = at::cat({from, at::zeros({each - from.numel()}, from.options())});  // padding
      c.all_gather(tensor(i.buffer, i.arg).data_ptr(), from.data_ptr(), each, unit_of(i.buffer).orig_dtype);
    });
  }

  at::Tensor sent(const Instruction& i) const {
    if (ActionOptimizer::concerns(i)) return optimizer_.gathered_from(i);
    const BufferName chunk{BufferWhat::H2dCopy, i.buffer.unit, i.buffer.param};
    if (has(chunk, i.arg)) return tensor(chunk, i.arg);
    return tensor({BufferWhat::Shard, i.buffer.unit, is_full(i.buffer.what) ? ParamId() : i.buffer.param});
  }

  // ---------------------------------------------------------------------------------------------- copies

  /// What a bucket holds: the copies out of it, which stand together before it goes (I5).
  std::vector<const Instruction*> bucket_copies(const Instruction& concat) const {
    const auto& all = iteration_->instructions;
    auto end = static_cast<std::size_t>(&concat - all.data());
    while (end < all.size() && !(all[end].kind == InstructionKind::Free && all[end].buffer == concat.buffer &&
                                 all[end].arg == concat.arg)) {
      ++end;
    }
    std::vector<const Instruction*> copies;
    while (end > 0 && all[end - 1].kind == InstructionKind::CopyOut) copies.insert(copies.begin(), &all[--end]);
    return copies;
  }

  void concat(const Instruction& i) {
    const bool on_host = i.stream == Stream::Host;
    if (i.buffer.what == BufferWhat::Bucket) {
      Numel offset = 0;
      for (const Instruction* copy : bucket_copies(i)) {
        const ActionBuffer bucket{i.buffer, i.arg, false}, part{copy->buffer, copy->arg, false};
        sent_[copy] = {bucket, offset};
        work(false, [this, bucket, part, offset, numel = copy->numel] {
          buffers_.tensor(bucket).narrow(0, offset, numel).copy_(buffers_.tensor(part).narrow(0, 0, numel));
        });
        offset += copy->numel;
      }
    } else if (i.buffer.what == BufferWhat::StateCopy) {  // fsdp2: ranks' chunks side by side
      work(false, [this, i] {
        const at::Tensor ranks = tensor({BufferWhat::AgBuffer, i.buffer.unit, i.buffer.param}, i.arg);
        const at::Tensor whole = layout_.side_by_side(i.buffer.param, ranks).view({-1});
        tensor(i.buffer, i.arg).narrow(0, 0, whole.numel()).copy_(whole);
      });
    } else {  // H3: alignment and world padding are 42
      work(on_host, [this, i, on_host] {
        const at::Tensor flat = tensor(i.buffer, i.arg, on_host);
        flat.fill_(42);
        for (const FlatEntry& entry : unit_of(i.buffer).flat) {
          if (!entry.param.valid()) continue;
          const BufferName param{BufferWhat::Param, i.buffer.unit, entry.param};
          flat.narrow(0, entry.offset, entry.numel).copy_(tensor(param, 0, on_host));
        }
      });
    }
  }

  void copy(const Instruction& i) {
    const bool on_host = i.stream == Stream::Host;
    if (const auto sent = sent_.find(&i); sent != sent_.end()) {
      work(false, [this, i, from = sent->second] {
        const auto& [bucket, offset] = from;
        tensor(i.buffer, i.arg).narrow(0, 0, i.numel).copy_(buffers_.tensor(bucket).narrow(0, offset, i.numel));
      });
      return;
    }
    const Position at = next_in_unit(i);
    work(on_host, [this, i, at, on_host] {
      if (i.buffer.what == BufferWhat::Shard) {
        copy_shard(i, on_host);
      } else if (is_full(i.buffer.what)) {  // load, sharded: the gathered chunks of one parameter
        const FlatEntry& entry = layout_.entry(unit_of(i.buffer), at.param);
        const at::Tensor from = tensor({BufferWhat::StateCopy, i.buffer.unit, at.param});
        tensor(i.buffer).narrow(0, entry.offset, entry.numel).copy_(from.narrow(0, 0, entry.numel));
      } else {
        tensor(i.buffer, i.arg, on_host).copy_(whole_of(i.buffer, i.numel, on_host));
      }
    });
  }

  void copy_shard(const Instruction& i, bool on_host) {
    const at::Tensor shard = tensor(i.buffer, 0, on_host);
    if (i.buffer.param.valid()) {  // fsdp2: rows of a parameter, or of what rank 0 sent
      const BufferName sent{BufferWhat::StateCopy, i.buffer.unit, i.buffer.param};
      const BufferName param{BufferWhat::Param, i.buffer.unit, i.buffer.param};
      const at::Tensor whole = i.phase == Phase::Init ? tensor(param, 0, on_host) : tensor(sent);
      layout_.copy_rows(i.buffer.param, whole.view(shape(i.buffer.param)), shard);
      return;
    }
    if (i.phase == Phase::Load && !any_full(i.buffer.unit)) {  // offload: straight from the dict
      fill_from_dict(i.buffer, shard);
      return;
    }
    const at::Tensor from = i.phase == Phase::Init ? tensor({BufferWhat::Flat, i.buffer.unit, {}}, 0, on_host)
                                                   : tensor(full_of(i.buffer.unit));
    const Numel begin = layout_.rank() * unit_of(i.buffer).shard_numel;
    const Numel numel = std::min(i.numel, std::max<Numel>(0, from.numel() - begin));
    if (numel > 0) shard.narrow(0, 0, numel).copy_(from.narrow(0, begin, numel));
  }

  BufferName full_of(UnitId unit) const {
    const BufferName precise{BufferWhat::FullPrecision, unit, {}};
    return has(precise) || has(precise, 0, true) ? precise : BufferName{BufferWhat::Full, unit, {}};
  }
  bool any_full(UnitId unit) const { return has(full_of(unit)) || has(full_of(unit), 0, true); }

  /// What a state dict clones: a parameter out of the gathered unit, or this rank's rows of it (K1).
  at::Tensor whole_of(const BufferName& buffer, Numel numel, bool on_host) const {
    const PlanUnit& unit = unit_of(buffer);
    if (!unit.sharded.empty()) return tensor({BufferWhat::Shard, buffer.unit, buffer.param}).narrow(0, 0, numel);
    const FlatEntry& entry = layout_.entry(unit, buffer.param);
    const at::Tensor flat = layout_.is_sharded(unit)
                                ? tensor(full_of(buffer.unit), 0, on_host && has(full_of(buffer.unit), 0, true))
                                : tensor({BufferWhat::Shard, buffer.unit, {}});
    const at::Tensor whole = flat.narrow(0, entry.offset, entry.numel);
    if (request_.kind != StateKind::Sharded || !layout_.is_sharded(unit)) return whole;  // NO_SHARD: the full kind
    return layout_.chunk(buffer.param, whole.view(shape(buffer.param))).reshape({-1});
  }

  void fill_from_dict(const BufferName& shard, const at::Tensor& to) {
    const PlanUnit& unit = unit_of(shard);
    if (layout_.is_sharded(unit)) {  // K1, local
      const at::Tensor local = dict_.at(layout_.flat_key(unit)).view({-1});
      to.narrow(0, 0, local.numel()).copy_(local);
      return;
    }
    for (const FlatEntry& entry : unit.flat) {
      if (!entry.param.valid()) continue;
      to.narrow(0, entry.offset, entry.numel).copy_(of_dict(entry.param).reshape({-1}));
    }
  }

  const at::Tensor& of_dict(ParamId param) const { return dict_.at(model().params[param.index()].fqn); }

  struct Position {
    ParamId param;
  };
  /// Loads name the unit for each of its parameters in turn.
  Position next_in_unit(const Instruction& i) {
    if (!is_full(i.buffer.what) || request_.action != PlanAction::Load) return {};
    const PlanUnit& unit = unit_of(i.buffer);
    return {unit.params.at(filled_[i.buffer.unit.index()]++ % unit.params.size())};
  }

  void to_device(const Instruction& i) {
    const Position at = next_in_unit(i);
    work(false, [this, i, at] {
      const at::Tensor to = tensor(i.buffer, i.arg);
      if (has(i.buffer, i.arg, true)) {  // init: the module's tensor moves; U3: what was offloaded comes back, unpadded
        const at::Tensor from = tensor(i.buffer, i.arg, true);
        to.narrow(0, 0, from.numel()).copy_(from);
      } else if (is_full(i.buffer.what)) {
        const FlatEntry& entry = layout_.entry(unit_of(i.buffer), at.param);
        to.narrow(0, entry.offset, entry.numel).copy_(of_dict(at.param).reshape({-1}));
      } else if (i.buffer.what == BufferWhat::Shard && !i.buffer.param.valid()) {
        fill_from_dict(i.buffer, to);
      } else if (i.buffer.what == BufferWhat::Shard) {
        load_rows(i.buffer.param, to);
      } else {  // a chunk of rows that is gathered next, a whole tensor that rank 0 sends, a plain replica
        const at::Tensor from = of_dict(i.buffer.param).reshape({-1});
        to.narrow(0, 0, from.numel()).copy_(from);
      }
    });
  }

  /// fsdp2: the rank's own rows, or rows of a whole tensor.
  void load_rows(ParamId param, const at::Tensor& shard) {
    const at::Tensor& from = of_dict(param);
    if (request_.kind == StateKind::Full) {
      layout_.copy_rows(param, from, shard);
    } else {
      shard.narrow(0, 0, from.numel()).copy_(from.reshape({-1}));
    }
  }

  void to_host(const Instruction& i) {
    // U3: no instruction of its own makes the full parameter on the host.
    if (is_full(i.buffer.what)) buffers_.allocate({i.buffer, i.arg, true}, i.numel, i.dtype, id_);
    work(false, [this, i] {
      const at::Tensor to = buffers_.tensor(buffers_.last_on_host());
      to.narrow(0, 0, i.numel).copy_(tensor(i.buffer, i.arg).narrow(0, 0, i.numel));
    });
  }

  // ---------------------------------------------------------------------------------------------- state dicts

  void collect() {
    dict_.clear();
    std::size_t buffer = 0;
    for (const StateEntry& entry : model_state(setup_.source, request_)) {
      if (!entry.unit.valid() && !entry.param.valid()) {
        while (buffer < model().buffers.size() && model().buffers[buffer].fqn != entry.key) ++buffer;
        dict_[entry.key] = setup_.buffers.at(buffer);
      } else if (entry.held) {
        dict_[entry.key] = collected(entry);
      }
    }
    if (request_.optimizer) optimizer_.collect(request_, dict_);
  }

  at::Tensor collected(const StateEntry& entry) const {
    const Shape& local = entry.sharded ? entry.local : entry.shape;
    const ParamId param = entry.param.valid() ? model().storage_of(entry.param) : ParamId();
    const BufferName copy{BufferWhat::StateCopy, entry.unit, param};
    for (const bool on_host : {true, false}) {
      if (has(copy, 0, on_host)) return tensor(copy, 0, on_host).narrow(0, 0, numel_of(local)).view(local).clone();
    }
    if (param.valid() && home_of(param).name.what == BufferWhat::Param) {
      return buffers_.tensor(home_of(param)).view(local).clone();
    }
    const PlanUnit& unit = units()[entry.unit.index()];
    if (!unit.sharded.empty()) {
      return tensor({BufferWhat::Shard, entry.unit, param}).narrow(0, 0, numel_of(local)).view(local).clone();
    }
    const at::Tensor shard = tensor({BufferWhat::Shard, entry.unit, {}});
    if (!param.valid()) return shard.narrow(0, 0, numel_of(local)).clone();  // no padding (K1)
    const auto pieces = layout_.pieces_in_home(param);
    if (pieces.empty()) return at::empty({0}, shard.options());
    return shard.narrow(0, pieces.front().local_offset, numel_of(local)).view(local).clone();
  }

  ActionSetup setup_;
  const std::shared_ptr<Communicator> alone_ = in_process_communicators(1).front();
  ActionLayout layout_;
  StreamIndex stream_;
  ActionBuffers buffers_;
  ActionOptimizer optimizer_;
  StateDict dict_;
  std::function<void(ParamId, at::Tensor)> visit_;
  const PlanIteration* iteration_ = nullptr;
  ActionRequest request_;
  InstructionId id_;                 // counted over all iterations; outside of them none
  std::vector<std::size_t> filled_;  // by unit: parameters loaded so far
  std::map<const Instruction*, std::pair<ActionBuffer, Numel>> sent_;  // copies out of a bucket: which, and where
  std::vector<BufferName> shown_;                                      // full parameters inside summon
};

std::optional<Error> refused(const ActionSetup& setup) {
  const auto error = [](std::string place, std::string message, std::string got, std::string hint = "") {
    return Error{ErrorCode::Unsupported, std::move(message), "", std::move(place), "actions that `run` has",
                 std::move(got),         std::move(hint)};
  };
  for (const PlanIteration& iteration : setup.plan.iterations) {
    if (iteration.micro_batches > 0 || iteration.actions.size() != 1) {
      return error("summon", "gradients are not shown yet", "with_grads",
                   "plan and simulate take it; leave it out here");
    }
    const auto request = parse_actions(iteration.actions.front());
    if (!request) return request.error();
    const bool init = request->front().action == PlanAction::Init;
    if (setup.source.job.fsdp.cpu_offload && !init) {
      return error(iteration.actions.front(), "CPU offload is not run here yet", "fsdp.cpu_offload",
                   "plan and simulate take it; --set fsdp.cpu_offload=false");
    }
    for (const Instruction& i : iteration.instructions) {
      if (i.stream != Stream::Host && i.stream != Stream::D) {
        return error(std::string(stream_name(i.stream)), "actions run on the compute stream", "");
      }
    }
  }
  return missing_communicator(setup.plan, setup.communicators);
}

}  // namespace

Result<std::unique_ptr<ActionRunner>> ActionRunner::create(ActionSetup setup) {
  if (auto error = refused(setup)) return fail(std::move(*error));
  return std::make_unique<Runner>(std::move(setup));
}

}  // namespace foreshard::exec
