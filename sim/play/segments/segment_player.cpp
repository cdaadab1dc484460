#include "sim/play/segments/segment_player.h"

#include <algorithm>
#include <cmath>

namespace foreshard {
namespace {

bool begins_early(const SegmentTemplate& segment) { return segment.early_backward > 0; }

/// Whether runs are whole and on one stream, as a tape's: collectives of the program and copies of its activations move
/// others, and a backward may begin before its region is computed again.
bool fits_tapes(const PlayContext& context) {
  const std::vector<SegmentTemplate>& templates = context.lowered.templates;
  return context.model.mesh.empty() && !context.lowered.offloads &&
         std::none_of(templates.begin(), templates.end(), begins_early);
}

}  // namespace

SegmentPlayer::SegmentPlayer(PlayContext& context, PlanBuffers& buffers, PlayedCollectives& collectives,
                             DataMovement& movement, const Options& options)
    : context_(context),
      buffers_(buffers),
      collectives_(collectives),
      times_(time_templates(context, collectives, work_)),
      recorder_(context, fits_tapes(context) ? options.record_runs : nullptr),
      storages_(context, buffers, recorder_),
      lists_(context),
      follower_(context, buffers, storages_, lists_, fits_tapes(context) ? options.follow_runs : nullptr),
      deferred_(context),
      instructions_(context, buffers, storages_, recorder_, follower_),
      workspaces_(context, recorder_),
      early_(context, storages_, times_),
      sums_(context, storages_, recorder_),
      copies_(context),
      additions_(context, buffers, movement, storages_),
      per_kernel_(options.per_kernel),
      speed_(options.speed),
      defers_(fits_tapes(context) && !context.device.allocator.logs() && speed_.plain()) {
  const std::vector<SegmentTemplate>& templates = context.lowered.templates;
  if (std::any_of(templates.begin(), templates.end(), begins_early))
    begun_.resize(context.lowered.instances.size(), false);
}

bool SegmentPlayer::play(const Instruction& i, Pass pass) {
  const LoweredProgram& lowered = context_.lowered;
  const std::size_t at = i.segment.index();
  const bool has_operators = i.segment.valid() && at < lowered.instances.size();
  if (!has_operators) return pass != Pass::Backward || gradients_without_operators(i);
  const auto index = static_cast<std::size_t>(lowered.instances[at].lowered);
  const auto instance = static_cast<std::int32_t>(at);
  const SegmentTemplate& segment = lowered.templates[index];
  work_.ran(index, pass);
  if (pass == Pass::Recompute && !begin_backward()) return false;
  if (pass == Pass::Backward && !early_.before_backward(instance)) return false;
  std::size_t first = 0;
  if (pass == Pass::Backward && !begun_.empty() && begun_[at]) {
    first = static_cast<std::size_t>(segment.early_backward);
    begun_[at] = false;
  }
  Run run = run_of(i, pass, first);
  if (pass == Pass::Backward && run.first < run.end) {
    run.additions = additions_.find(segment, instance);
    run.due = run.place_of_next();
  }
  if (pass == Pass::Backward) await_gradients(run);
  const bool ok = (follower_.follows() && follow(run)) || play_run(run);
  if (run.ready != Run::kNone) note_ready(run);
  return ok;
}

/// Waits of other streams that follow are for the gradients of this backward, not for what it does after the last.
void SegmentPlayer::await_gradients(Run& run) {
  GradientsReady& ready = context_.gradients_ready;
  ready = {};
  if (run.instruction.stream != Stream::D || !run.additions.empty()) return;
  const auto& all = context_.iteration->instructions;
  auto at = static_cast<std::size_t>(context_.position) + 1;
  while (at < all.size() && all[at].kind == InstructionKind::WaitStream && all[at].origin == Origin::Autograd) ++at;
  if (at == static_cast<std::size_t>(context_.position) + 1) return;
  std::int32_t kernels = 0;
  for (const FinishedGradient& gradient : run.segment.gradients)
    if (gradient.param >= 0) kernels = std::max(kernels, gradient.kernels);
  if (kernels <= static_cast<std::int32_t>(run.first)) return;
  run.ready = static_cast<std::size_t>(kernels);
  ready.until = static_cast<std::int32_t>(at) - 1;
}

/// Of kernels that were launched together only the end is known: the others follow each other up to there. Where one
/// waited for the host, this is too late, but never later than the host's next call.
void SegmentPlayer::note_ready(const Run& run) {
  EventStamp& event = context_.gradients_ready.event;
  if (event.stream >= 0) return;
  event = context_.device.clock.record(kCompute);
  SimDuration behind = 0;
  for (std::size_t k = run.ready; k < run.times.size(); ++k) behind += run.times[k].launches ? run.times[k].device : 0;
  event.time -= behind;
}

bool SegmentPlayer::follow(const Run& run) {
  const std::size_t added = run.additions.size();
  const auto skip = [&](const std::vector<TimedKernel>& times, std::size_t launches) {
    return follower_.skip(run.instruction, run.list, times, launches, run.instance, added, workspaces_.made(),
                          workspaces_.bytes());
  };
  return added == 0 ? skip(run.times, run.number) : skip(additions_.among(run.times), RunFollower::kOwnLaunches);
}

SegmentPlayer::Run SegmentPlayer::run_of(const Instruction& i, Pass pass, std::size_t first) {
  const auto instance = static_cast<std::int32_t>(i.segment.index());
  const auto index = static_cast<std::size_t>(context_.lowered.instances[i.segment.index()].lowered);
  const SegmentTemplate& segment = context_.lowered.templates[index];
  const KernelList& list = pass == Pass::Forward     ? segment.forward
                           : pass == Pass::Recompute ? segment.recompute
                                                     : segment.backward;
  return {i,
          list,
          times_[index].of(pass),
          segment,
          instance,
          speed_.plain() ? 1.0 : draw_slowness(speed_, runs_++),
          context_.span_of(i, SpanKind::Compute),
          3 * index + static_cast<std::size_t>(pass),
          first,
          list.kernels.size()};
}

/// The backward that asked for what is computed again has run its first kernels already.
bool SegmentPlayer::begin_backward() {
  if (begun_.empty()) return true;
  const auto& all = context_.iteration->instructions;
  const auto next = std::find_if(all.begin() + context_.position, all.end(),
                                 [](const Instruction& i) { return i.kind == InstructionKind::Backward; });
  if (next == all.end() || !next->segment.valid() || next->segment.index() >= begun_.size()) return true;
  const std::size_t at = next->segment.index();
  const auto index = static_cast<std::size_t>(context_.lowered.instances[at].lowered);
  const std::int32_t early = context_.lowered.templates[index].early_backward;
  if (early == 0 || begun_[at]) return true;
  begun_[at] = true;
  Run run = run_of(*next, Pass::Backward, 0);
  run.end = static_cast<std::size_t>(early);
  return play_run(run);
}

bool SegmentPlayer::play_run(Run& run) {
  Device& device = context_.device;
  const SimTime begun = device.compute_tail;
  const bool keep = run.keep = device.activity.keep_spans;
  if (!per_kernel_) device.activity.keep_spans = false;
  if (recorder_.records()) recorder_.begin(run.list, run.instance, workspaces_.made(), workspaces_.bytes());
  if (run.first == 0) device.clock.host_cost(device.cost.segment_host());
  const bool ok = defer(run) ? play_deferred(run) : play_kernels(run, run.first);
  if (recorder_.open()) recorder_.end(ok, run.additions.size());
  device.activity.keep_spans = keep;
  if (!keep) return ok;
  if (!per_kernel_ && run.start >= 0 && device.compute_tail > begun) {
    run.what.op = run.what.name = -1;
    run.what.bytes = 0;
    run.what.start = run.start;
    run.what.end = device.compute_tail;
    run.what.stream = run.instruction.stream;
    device.activity.spans.push_back(run.what);
  }
  if (run.highest.allocated > 0) context_.samples.push_back(run.highest);  // its end is no picture of it
  context_.samples.push_back(context_.ledger_now());
  return ok;
}

bool SegmentPlayer::play_kernels(Run& run, std::size_t first) {
  for (std::size_t k = first; k < run.end; ++k) {
    if (!play_kernel(run, k)) return false;
    if (k + 1 == run.ready) context_.gradients_ready.event = context_.device.clock.record(kCompute);
  }
  return true;
}

const DeferrableList& SegmentPlayer::deferrable_of(const Run& run) {
  if (run.number >= deferrable_.size()) deferrable_.resize(run.number + 1);
  std::optional<DeferrableList>& found = deferrable_[run.number];
  if (found) return *found;
  found = deferrable_list(run.list, run.times);
  for (std::size_t k = 0; k < run.times.size(); ++k) {
    const TimedKernel& timed = run.times[k];
    const Kernel& kernel = run.list.kernels[k];
    found->possible = found->possible && GradientSums::stays({timed, kernel, run.list, run.segment, run.instance});
    if (timed.gemm)
      (kernel.backward ? found->engine_workspaces : found->workspaces) |= BlasWorkspaces::wanted(timed.lt);
  }
  return *found;
}

/// Of a run that is summed up or drawn every kernel is looked at.
bool SegmentPlayer::defer(const Run& run) {
  const bool whole = run.first == 0 && run.end == run.times.size() && run.additions.empty();
  if (!defers_ || !whole || run.keep || recorder_.records() || run.instruction.stream != Stream::D ||
      !sums_.none_left() || !context_.device.clock.is_plain())
    return false;
  const DeferrableList& list = deferrable_of(run);
  return list.possible && workspaces_.has(list.workspaces, list.engine_workspaces) &&
         deferred_.begin({&run.list, &run.times, &lists_.of(run.number, run.times), &list, run.instruction.phase});
}

bool SegmentPlayer::play_deferred(Run& run) {
  const auto end = static_cast<std::int32_t>(run.list.events.size());
  std::int32_t event = 0;
  bool ok = true;
  while (ok && event < end && deferred_.open()) {
    deferred_.at(event);
    ok = play_event(run, run.list.events[static_cast<std::size_t>(event)]);
    event += ok ? 1 : 0;
  }
  context_.device.activity.events += event;
  if (!ok) return false;
  if (!deferred_.open()) return play_rest(run, event);
  deferred_.end();
  return true;
}

/// From an event on, in whose predecessor something asked for the launches that were due.
bool SegmentPlayer::play_rest(Run& run, std::int32_t event) {
  const auto at = std::find_if(run.times.begin(), run.times.end(),
                               [event](const TimedKernel& timed) { return timed.after_end >= event; });
  const auto k = static_cast<std::size_t>(at - run.times.begin());
  if (event <= at->before_end) {
    if (!memory_events(run, event, at->before_end) || !issue_kernel(run, k)) return false;
    event = at->after_begin;
  }
  return memory_events(run, event, at->after_end) && play_kernels(run, k + 1);
}

bool SegmentPlayer::play_kernel(Run& run, std::size_t k) {
  if (k == run.due) return play_additions(run, k);
  const TimedKernel& timed = run.times[k];
  if (timed.sums) {
    const Kernel& kernel = run.list.kernels[k];
    const PlayedKernel played{timed, kernel, run.list, run.segment, run.instance};
    if (const Stream views = sums_.stream_of(played); views != Stream::D) {
      recorder_.set_kernel(k + run.added);
      run.what.op = -1;
      run.what.name = kernel.op;
      return sums_.play(played, views, run.what);
    }
  }
  if (!run_kernel(run, k)) return false;
  recorder_.set_kernel(k + run.added + 1);
  return memory_events(run, timed.after_begin, timed.after_end);
}

bool SegmentPlayer::run_kernel(Run& run, std::size_t k) {
  const TimedKernel& timed = run.times[k];
  recorder_.set_kernel(k + run.added);
  if (!memory_events(run, timed.before_begin, timed.before_end)) return false;
  return issue_kernel(run, k);
}

bool SegmentPlayer::issue_kernel(Run& run, std::size_t k) {
  const TimedKernel& timed = run.times[k];
  const Kernel& kernel = run.list.kernels[k];
  if (timed.gemm && !workspaces_.ensure(timed.lt, kernel.backward)) return false;
  if (run.keep && context_.device.allocator.stats().allocated.current > run.highest.allocated)
    run.highest = context_.ledger_now();
  if (timed.communicator >= 0)
    collectives_.play_kernel(kernel, timed.communicator, timed.device, run.what);
  else if (kernel.offload != OffloadStep::None)
    copies_.play(kernel, timed, run.what);
  else if (timed.launches)
    launch(run, timed, kernel);
  else
    context_.device.clock.host_cost(timed.host);
  if (timed.waits) context_.device.clock.stream_synchronize(kCompute);
  return true;
}

std::size_t SegmentPlayer::Run::place_of_next() const {
  if (next_addition >= additions.size()) return kNone;
  const auto after = static_cast<std::size_t>(std::max(1, additions[next_addition].gradient.kernels)) - 1;
  return std::max(first, after);
}

/// The kernel behind which gradients are final that are added to what is there; a copy that would keep one is no
/// kernel.
bool SegmentPlayer::play_additions(Run& run, std::size_t k) {
  const TimedKernel& timed = run.times[k];
  if (!run.additions[run.next_addition].gradient.copied && !run_kernel(run, k)) return false;
  std::int32_t event = timed.after_begin;
  for (; run.due == k; run.due = run.place_of_next()) {
    const GradientAdditions::Addition& addition = run.additions[run.next_addition++];
    if (!addition.gradient.copied) {
      const std::int32_t until = std::clamp(addition.gradient.events, event, timed.after_end);
      if (!memory_events(run, event, until)) return false;
      event = until;
    }
    if (!add(run, addition)) return false;
  }
  recorder_.set_kernel(k + run.added + 1);
  return memory_events(run, event, timed.after_end);
}

bool SegmentPlayer::add(Run& run, const GradientAdditions::Addition& addition) {
  if (!additions_.play_sum(addition)) return false;
  if (addition.gradient.copied) return true;
  ++run.added;
  const auto& all = run.segment.gradients;
  if (recorder_.open()) {
    const auto index = std::find(all.begin(), all.end(), addition.gradient) - all.begin();
    recorder_.gradient_dropped(static_cast<std::int32_t>(index), additions_.place_of_addend(addition),
                               additions_.addend(addition));
  }
  additions_.free_addend(addition);
  if (recorder_.open()) recorder_.changed();
  return true;
}

void SegmentPlayer::launch(Run& run, const TimedKernel& timed, const Kernel& kernel) {
  if (run.keep) {
    const std::int32_t first_op = context_.plan.segments[run.instruction.segment.index()].op_begin;
    run.what.op = kernel.model_op >= 0 ? first_op + kernel.model_op : -1;
    run.what.name = kernel.op;
    run.what.bytes = kernel.read + kernel.written;
  }
  const SimDuration time =
      run.slowness == 1.0 ? timed.device : std::llround(static_cast<double>(timed.device) * run.slowness);
  if (!run.keep && run.instruction.stream == Stream::D && context_.device.clock.is_plain()) {
    context_.device.launch_kernel(timed.host, {time, timed.slowdown}, run.what.phase);
    return;
  }
  const WorkSpan span = context_.device.launch(run.instruction.stream, timed.host, {time, timed.slowdown}, run.what);
  if (run.start < 0) run.start = span.start;
}

bool SegmentPlayer::play_events(const Run& run, std::int32_t begin, std::int32_t end) {
  std::int32_t event = begin;
  while (event < end && play_event(run, run.list.events[static_cast<std::size_t>(event)])) {
    if (recorder_.open()) recorder_.changed();
    ++event;
  }
  context_.device.activity.events += event - begin;
  return event == end;
}

void SegmentPlayer::free_held(bool only_gradients) {
  const std::vector<ImportBinding>& all = context_.lowered.held;
  if (!only_gradients) copies_.drop_all();
  for (std::size_t k = 0; k < all.size(); ++k) {
    if ((!only_gradients || early_.made_in_backward(k)) && !stays(all[k]))
      storages_.free(storages_.place(all[k].instance, all[k].slot));
  }
}

void SegmentPlayer::replace_buffers(std::vector<ResidentBuffer>& buffers) {
  const LoweredProgram& lowered = context_.lowered;
  const std::vector<BufferInfo>& all = context_.model.buffers;
  for (std::size_t k = 0; k < lowered.replaced.size() && !buffers.empty(); ++k) {
    if (lowered.replaced[k] < 0) continue;
    const BufferInfo& like = all[static_cast<std::size_t>(lowered.replaced[k])];  // of a block that stands for others
    const auto alike = [&](const ResidentBuffer& each) {
      if (each.buffer < 0) return false;
      const BufferInfo& info = all[static_cast<std::size_t>(each.buffer)];
      return info.shape == like.shape && info.dtype == like.dtype;
    };
    const auto own = [&](const ResidentBuffer& each) { return each.buffer == lowered.replaced[k]; };
    auto at = std::find_if(buffers.begin(), buffers.end(), own);
    if (at == buffers.end()) at = std::find_if(buffers.begin(), buffers.end(), alike);
    if (at == buffers.end()) continue;
    const ImportBinding& made = lowered.held_until_next[k];
    storages_[storages_.place(made.instance, made.slot)] = at->block;
    buffers.erase(at);
  }
  buffers.clear();
}

std::vector<BlockHandle> SegmentPlayer::take_held() {
  copies_.drop_all();
  std::vector<BlockHandle> taken;
  for (const ImportBinding& each : context_.lowered.held)
    if (!stays(each)) taken.push_back(storages_.take(storages_.place(each.instance, each.slot)));
  return taken;
}

bool SegmentPlayer::stays(const ImportBinding& held) const {
  const std::vector<ImportBinding>& all = context_.lowered.held_until_next;
  return std::find(all.begin(), all.end(), held) != all.end();
}

/// A plan of a model without operators: the gradients that a segment would make are all that its backward allocates.
bool SegmentPlayer::gradients_without_operators(const Instruction& i) {
  const Plan& plan = context_.plan;
  const Model& model = context_.model;
  if (!i.segment.valid() || i.segment.index() >= plan.segments.size()) return true;
  const Segment& segment = plan.segments[i.segment.index()];
  const BufferWhat what = plan.runtime == Runtime::Fsdp1 ? BufferWhat::GradPiece : BufferWhat::Grad;
  for (const ParamId param : segment.params) {
    if (param.index() >= model.params.size() || !model.params[param.index()].requires_grad) continue;
    const BufferName name{what, segment.unit, param};
    if (buffers_.find(name, 0) != kNoBlock) continue;
    const DType dtype =
        segment.unit.valid() ? plan.units[segment.unit.index()].param_dtype : model.params[param.index()].dtype;
    if (!buffers_.allocate(name, 0, Stream::D, numel_of(model.params[param.index()].shape) * itemsize(dtype)))
      return false;
  }
  return true;
}

}  // namespace foreshard
