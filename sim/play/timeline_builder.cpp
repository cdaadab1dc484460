#include "sim/play/timeline_builder.h"

#include <algorithm>
#include <array>
#include <functional>
#include <string>
#include <unordered_map>

#include "core/instruction_spans.h"
#include "sim/device/root_streams.h"

namespace foreshard {
namespace {

class Names {
 public:
  explicit Names(std::vector<std::string>& names) : names_(names) {}
  NameId operator()(std::string_view text) {
    const auto [it, fresh] = known_.try_emplace(std::string(text), names_.size());
    if (fresh) names_.emplace_back(text);
    return NameId(it->second);
  }

 private:
  std::vector<std::string>& names_;
  std::unordered_map<std::string, std::size_t> known_;
};

std::vector<Lane> make_lanes(const Plan& plan, const Device& device, std::array<LaneId, kPlayedStreams>& lane_of) {
  std::vector<Lane> lanes{{plan.rank, "host", 0}};
  lane_of[static_cast<std::size_t>(Stream::Host)] = LaneId(0);
  std::array<bool, kPlayedStreams> used{};
  for (const ActivitySpan& span : device.activity.spans) used[static_cast<std::size_t>(span.stream)] = true;
  for (std::size_t s = 1; s < kPlayedStreams; ++s) {
    const auto info = std::find_if(plan.streams.begin(), plan.streams.end(), [s](const StreamInfo& stream) {
      return static_cast<std::size_t>(stream.stream) == s;
    });
    if (!used[s]) continue;
    lane_of[s] = LaneId(lanes.size());
    const std::int32_t priority = info == plan.streams.end() ? 0 : info->priority;
    lanes.push_back({plan.rank, played_stream_name(static_cast<Stream>(s), plan.runtime), priority});
  }
  return lanes;
}

using LedgerSamples = std::vector<LedgerSample>;

/// Where the host issues for nothing, much happens at one time: what was highest then and what is left after it tell
/// enough, in the order in which they were.
LedgerSamples told_samples(const LedgerSamples& all) {
  LedgerSamples told;
  for (std::size_t begin = 0, end = 0; begin < all.size(); begin = end) {
    std::array<std::size_t, 4> kept{begin, begin, begin, begin};  // highest allocated, active, reserved; the last
    for (end = begin; end < all.size() && all[end].time == all[begin].time; ++end) {
      if (all[end].allocated > all[kept[0]].allocated) kept[0] = end;
      if (all[end].active > all[kept[1]].active) kept[1] = end;
      if (all[end].reserved > all[kept[2]].reserved) kept[2] = end;
      kept[3] = end;
    }
    std::sort(kept.begin(), kept.end());
    const auto distinct = std::unique(kept.begin(), kept.end());
    for (auto place = kept.begin(); place != distinct; ++place) told.push_back(all[*place]);
  }
  return told;
}

/// A counter that changes at a time tells all samples of it, equal ones too: then those of one time belong together
/// across counters, the last with the last.
void add_counter(Timeline& timeline, const Plan& plan, const LedgerSamples& samples, const std::string& name,
                 const std::function<Bytes(const LedgerSample&)>& value) {
  const CounterId id(timeline.counters.size());
  Bytes last = -1;
  for (std::size_t begin = 0, end = 0; begin < samples.size(); begin = end) {
    bool changes = false;
    for (end = begin; end < samples.size() && samples[end].time == samples[begin].time; ++end)
      changes |= value(samples[end]) != last;
    if (!changes) continue;
    for (std::size_t k = begin; k < end; ++k)
      timeline.samples.push_back({id, samples[k].time, last = value(samples[k])});
  }
  timeline.counters.push_back({plan.rank, name, "bytes"});
}

/// What the host issued and waited for, span by span; by instruction, which span is its.
std::vector<SpanId> add_host_spans(Timeline& timeline, Names& name, const Plan& plan, const PlanPlayer& player,
                                   const std::vector<const Instruction*>& instructions) {
  std::vector<SpanId> host_span_of(instructions.size());
  for (const PlanPlayer::HostSpan& span : player.host_spans()) {
    const Instruction& i = *instructions[static_cast<std::size_t>(span.instruction)];
    Span& kept = timeline.spans.emplace_back();
    kept.lane = LaneId(0);
    kept.kind = span.waiting ? SpanKind::HostWait : SpanKind::HostIssue;
    kept.start = span.start;
    kept.duration = span.end - span.start;
    kept.name = name(host_span_name(plan, i));
    kept.instruction = InstructionId(span.instruction);
    kept.unit = i.unit.value;
    kept.phase = static_cast<std::int32_t>(i.phase);
    host_span_of[static_cast<std::size_t>(span.instruction)] = SpanId(timeline.spans.size() - 1);
  }
  return host_span_of;
}

/// What ran on the streams, by stream, with a flow from the host's span to the first of an instruction.
void add_stream_spans(Timeline& timeline, Names& name, const Plan& plan, const LoweredProgram& lowered,
                      const Device& device, const std::vector<const Instruction*>& instructions,
                      const std::array<LaneId, kPlayedStreams>& lane_of, const std::vector<SpanId>& host_span_of) {
  std::vector<NameId> op_names;
  op_names.reserve(lowered.op_names.size());
  for (const std::string& op : lowered.op_names) op_names.push_back(name(op));
  std::array<std::vector<std::size_t>, kPlayedStreams> by_stream;
  for (std::size_t k = 0; k < device.activity.spans.size(); ++k)
    by_stream[static_cast<std::size_t>(device.activity.spans[k].stream)].push_back(k);
  for (std::size_t s = 1; s < kPlayedStreams; ++s) {
    std::int32_t last_instruction = -1;
    for (const std::size_t k : by_stream[s]) {
      const ActivitySpan& span = device.activity.spans[k];
      const Instruction& i = *instructions[static_cast<std::size_t>(span.instruction)];
      Span& kept = timeline.spans.emplace_back();
      kept.lane = lane_of[s];
      kept.kind = span.kind;
      kept.start = span.start;
      kept.duration = span.end - span.start;
      kept.name = span.name >= 0 ? op_names[static_cast<std::size_t>(span.name)] : name(work_span_name(plan, i));
      kept.instruction = InstructionId(span.instruction);
      kept.op = span.op;
      kept.unit = span.unit;
      if (span.communicator >= 0) {
        kept.communicator = name(plan.communicators[static_cast<std::size_t>(span.communicator)].name);
      } else if (i.communicator.valid())
        kept.communicator = name(plan.communicators[i.communicator.index()].name);
      kept.phase = static_cast<std::int32_t>(span.phase);
      kept.bytes = span.bytes;
      const SpanId host = host_span_of[static_cast<std::size_t>(span.instruction)];
      if (span.instruction != last_instruction && host.valid())
        timeline.flows.push_back({host, SpanId(timeline.spans.size() - 1)});
      last_instruction = span.instruction;
    }
  }
}

}  // namespace

Timeline build_timeline(const Plan& plan, const LoweredProgram& lowered, const Device& device, const PlanPlayer& player,
                        const std::vector<const Instruction*>& instructions,
                        const std::vector<PlayedIteration>& iterations) {
  Timeline timeline;
  Names name(timeline.names);
  std::array<LaneId, kPlayedStreams> lane_of{};
  timeline.lanes = make_lanes(plan, device, lane_of);
  for (const PlanUnit& unit : plan.units) timeline.units.push_back(unit.name);
  const std::vector<SpanId> host_span_of = add_host_spans(timeline, name, plan, player, instructions);
  add_stream_spans(timeline, name, plan, lowered, device, instructions, lane_of, host_span_of);
  const LedgerSamples samples = told_samples(player.samples());
  add_counter(timeline, plan, samples, "allocated", [](const auto& s) { return s.allocated; });
  add_counter(timeline, plan, samples, "active", [](const auto& s) { return s.active; });
  add_counter(timeline, plan, samples, "reserved", [](const auto& s) { return s.reserved; });
  for (std::size_t c = 0; c < kMemoryCategories; ++c) {
    add_counter(timeline, plan, samples,
                "category:" + std::string(memory_category_name(static_cast<MemoryCategory>(c))),
                [c](const auto& s) { return s.categories[c]; });
  }
  for (const PlayedIteration& iteration : iterations) {
    timeline.marks.push_back({iteration.begin, plan.rank, name(iteration_mark(iteration.index))});
    timeline.marks.push_back({iteration.issue, plan.rank, name(issue_mark(iteration.index, iteration.first))});
  }
  timeline.provenance.source = "simulated";
  timeline.provenance.hardware = device.profile.id;
  timeline.provenance.clock = "simulated";
  return timeline;
}

}  // namespace foreshard
